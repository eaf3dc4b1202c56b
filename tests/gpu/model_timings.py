"""Whole models of random weights: what a step takes in the runner that serves, and whether graphs change an answer."""
import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import torch
from stepping import sequence
from torch import Tensor

from hamdam.engine.config import EngineConfig
from hamdam.engine.execution.decode_graphs import CudaRecorder
from hamdam.engine.execution.model_runner import ModelRunner
from hamdam.engine.execution.step_inputs import blocks_of
from hamdam.engine.models.config import ModelConfig
from hamdam.engine.models.rope import Rope
from hamdam.engine.models.transformer import Transformer
from hamdam.engine.models.weights import Source
from hamdam.engine.policy.batch import Batch, Row
from hamdam.engine.policy.sequence import Sequence
from hamdam.kernels.ops import Weight
from hamdam.kernels.quantized import quantise_bytes, quantise_int4
from hamdam.kernels.triton.ops import TritonOps


def llama(
    hidden: int, wide: int, layers: int, heads: int, kv_heads: int, dim: int, words: int, *, tied: bool
) -> ModelConfig:
    return ModelConfig(
        architecture="llama", vocab_size=words, hidden_size=hidden, num_layers=layers, num_heads=heads,
        num_kv_heads=kv_heads, head_dim=dim, intermediate_size=wide, rms_norm_eps=1e-5, rope=Rope(theta=5e5),
        max_context=131_072, tie_word_embeddings=tied,
    )


LARGE = {
    "8B": llama(4096, 14336, 32, 32, 8, 128, 128_256, tied=False),
    "1B": llama(2048, 8192, 16, 32, 8, 64, 128_256, tied=True),
}
TINY = {"tiny": llama(64, 96, 1, 2, 1, 64, 300, tied=False)}


@dataclass(frozen=True)
class Load:
    cells: tuple[tuple[int, int], ...]  # rows and context of decode
    fewer: tuple[tuple[int, int], ...]  # of them, those for graphs off and for invariant steps
    prompt: int  # tokens
    warm: int  # steps, or prompts, that are not timed
    timed: int
    group: int  # of 4-bit weights


LARGE_LOAD = Load(
    ((1, 1024), (4, 1024), (16, 1024), (64, 1024), (256, 1024), (1, 8192), (16, 8192), (64, 8192)),
    ((1, 1024), (16, 1024), (64, 1024)), 2048, 2, 8, 128,
)
TINY_LOAD = Load(((1, 20), (2, 20)), ((1, 20),), 16, 0, 1, 32)


@dataclass
class RandomCheckpoint:
    """As much of a checkpoint as a runner asks for."""

    config: ModelConfig
    device: torch.device
    fingerprint: str = "random"
    eos_ids: frozenset[int] = field(default_factory=frozenset)

    def quantised(self) -> list[str]:
        return []

    def pieces(self, *, keep: bool, hold: bool = False) -> Iterator[tuple[str, Source]]:
        """Whole, though plain: what is quantised of them is quantised as it is packed. There is nothing to keep."""
        generator = torch.Generator(self.device).manual_seed(0)
        shapes = Transformer(self.config, TritonOps(), dtype=torch.bfloat16, device=torch.device("meta")).parameters()
        for name, like in shapes.items():
            numbers = torch.randn(like.shape, generator=generator, device=self.device, dtype=torch.bfloat16)
            yield name, torch.ones_like(numbers) if "norm" in name else numbers * like.shape[-1] ** -0.5


class Quantising(TritonOps):
    """Matrices of layers are quantised as they are packed; a head stays as it is, as in files that people have."""

    def __init__(self, kind: str, words: int, group: int, *, invariant: bool) -> None:
        super().__init__(invariant=invariant)
        self._kind, self._words, self._group, self.bytes = kind, words, group, 0

    def pack(self, weight: Tensor) -> Weight:
        packed: Weight = weight
        if weight.shape[0] != self._words and self._kind == "int4":
            packed = quantise_int4(weight, self._group)
            self.bytes += packed.packed.nbytes + packed.scales.nbytes
        elif weight.shape[0] != self._words and self._kind == "fp8":
            packed = quantise_bytes(weight, torch.float8_e4m3fn)
            self.bytes += packed.values.nbytes
        else:
            self.bytes += weight.nbytes
        return packed


@dataclass(frozen=True)
class Cell:
    """One line of the table."""

    mode: str
    rows: int
    context: int
    seconds: float
    tokens: int  # that a step makes
    bytes: int
    flops: int


class Model:
    """One model in one form, opened as a server opens it."""

    def __init__(self, shape: ModelConfig, kind: str, load: Load, device: torch.device, *, invariant: bool) -> None:
        start = time.perf_counter()
        self.shape, self.load, self.device = shape, load, device
        self.ops = Quantising(kind, shape.vocab_size, load.group, invariant=invariant)
        cuda = device.type == "cuda"
        longest = max(load.prompt, *(context for _, context in load.cells))
        config = EngineConfig(
            model=Path(), max_context=longest + load.warm + load.timed,
            max_batch_tokens=max(load.prompt, 4), max_running=max(rows for rows, _ in load.cells),
            kv_memory=None if cuda else 1 << 20, invariant=invariant,
        )
        self.runner = ModelRunner(
            RandomCheckpoint(shape, device), config, self.ops, device=device, dtype=torch.bfloat16,
            record=CudaRecorder() if cuda else None, ahead=True,
        )
        self._foreseen: Batch | None = None
        with torch.inference_mode():
            self.runner._cache.zero_()  # or not-a-number may lie there
        self.weights = self.ops.bytes + (shape.vocab_size * shape.hidden_size * 2 if shape.tie_word_embeddings else 0)
        self.seconds = time.perf_counter() - start

    def facts(self) -> dict[str, float]:
        cache = self.runner._cache
        taken = torch.cuda.memory_reserved() if self.device.type == "cuda" else 0
        return {
            "weights_gb": self.weights / 1e9, "kv_gb": cache.nbytes / 1e9, "kv_tokens": 16 * self.runner.num_blocks,
            "reserved_gb": taken / 1e9, "open_s": self.seconds,
        }

    def decode(self, rows: int, context: int, mode: str) -> Cell | None:
        """None where it does not fit."""
        sequences = self._sequences(rows, context)
        if sequences is None:
            return None
        times = []
        self._foreseen = None
        for _ in range(self.load.warm + self.load.timed):
            start = time.perf_counter()
            self.step(sequences, ahead=mode == "ahead")
            times.append(time.perf_counter() - start)
        return Cell(mode, rows, context, statistics.median(times[self.load.warm :]), rows,
                    self.weights + rows * context * self._kv(), rows * self._flops(context))

    def prompt(self, mode: str) -> Cell:
        tokens, times = self.load.prompt, []
        [one] = self._sequences(1, tokens) or []
        for _ in range(self.load.warm + 1):
            start = time.perf_counter()
            self.runner.run(Batch([Row(one, 0, tokens, sample=True)]))
            times.append(time.perf_counter() - start)
        return Cell(mode, 1, tokens, times[-1], tokens, self.weights + tokens * self._kv(),
                    tokens * self._flops(tokens // 2))

    def step(self, sequences: list[Sequence], *, ahead: bool = False) -> list[object]:
        """Every sequence's next id, which is appended. ahead: the step after it is launched meanwhile, and asked for
        next."""
        batch = self._foreseen or Batch([Row(each, len(each.ids) - 1, 1, sample=True) for each in sequences])
        self._foreseen = Batch([Row(each, len(each.ids), 1, sample=True) for each in sequences]) if ahead else None
        batch.foresee = lambda: self._foreseen
        drawn = self.runner.run(batch)
        for each, id in zip(sequences, drawn, strict=True):
            assert isinstance(id, int), f"{id}"
            each.ids.append(id)
        return list(drawn)

    def differing(self) -> int:
        """Of some rows' next ids, how many are others alone, in company, launched, replayed or ahead. Greedily."""
        rows = 5 if self.device.type == "cuda" else 2
        graphs = self.runner._graphs
        several = self._sequences(rows, 16) or []
        together, following = self.step(several), self.step(several)
        several = self._sequences(rows, 16) or []
        beforehand = [*self.step(several, ahead=True), *self.step(several)]
        alone = [self.step([each])[0] for each in self._sequences(rows, 16) or []]
        self.runner._graphs = None
        launched = self.step(self._sequences(rows, 16) or [])
        self.runner._graphs = graphs
        differing = sum(not (a == b == c) for a, b, c in zip(together, alone, launched, strict=True))
        return differing + sum(a != b for a, b in zip(beforehand, together + following, strict=True))

    def without_graphs(self) -> None:
        self.runner._graphs = None

    def close(self) -> None:
        self.runner.close()

    def _sequences(self, rows: int, context: int) -> list[Sequence] | None:
        own = blocks_of(context + self.load.warm + self.load.timed)
        if rows * own > self.runner.num_blocks:
            return None
        made = []
        for number in range(rows):
            ids = [number % 97] * (context - 1) + [(7 * number + 1) % self.shape.vocab_size]
            made.append(sequence(number, ids, max_tokens=1000))
            made[-1].block_table = list(range(number * own, (number + 1) * own))
        return made

    def _kv(self) -> int:
        """Bytes of a token."""
        return 2 * self.shape.num_layers * self.shape.num_kv_heads * self.shape.head_dim * 2

    def _flops(self, context: int) -> int:
        """Of a token, the head's left out."""
        s = self.shape
        heads = 2 * (s.num_heads + s.num_kv_heads) * s.head_dim
        matrices = s.hidden_size * (heads + 3 * s.intermediate_size)
        return 2 * s.num_layers * (matrices + 2 * context * s.num_heads * s.head_dim)
