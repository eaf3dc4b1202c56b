"""NativePath: models opened on the CPU's native path for tests, and what it makes of whole texts. Not a test."""
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from stepping import sequence
from tiny_models import CONFIG, Tensors, random_tensors

from hamdam.engine.config import BLOCK_SIZE, EngineConfig
from hamdam.engine.execution.native_runner import NativeRunner
from hamdam.engine.execution.packed_weights import open_packed
from hamdam.engine.loading.checkpoint import Checkpoint
from hamdam.engine.policy.batch import Batch, Row
from hamdam.engine.policy.sequence import Sequence as Generation
from hamdam.kernels.cpu.decoder import Weights
from hamdam.kernels.cpu.packing import from_floats

Floats = NDArray[np.float32]
TINY = CONFIG | {"head_dim": 16}  # native code takes multiples of 16


@contextmanager
def native(
    checkpoint: Checkpoint, *, dtype: str = "int8", threads: int = 1, weights: Weights | None = None, **knobs: Any
) -> Iterator[NativeRunner]:
    """`weights` may be shared by several."""
    config = EngineConfig(model=Path(), **{"kv_memory": 1 << 20} | knobs)
    packed = open_packed(checkpoint, None) if weights is None else weights
    runner = NativeRunner(checkpoint, config, packed, threads=threads, dtype=dtype)
    try:
        yield runner
    finally:
        runner.close()


def placed(texts: Sequence[list[int]]) -> list[Generation]:
    """A sequence each, with blocks of its own."""
    found, first = [], 0
    for id, ids in enumerate(texts):
        one = sequence(id, ids)
        count = -(-len(ids) // BLOCK_SIZE)
        one.block_table = list(range(first, first + count))
        first += count
        found.append(one)
    return found


def logits_of(runner: NativeRunner, rows: Sequence[Row]) -> Floats:
    """[rows that sample, vocabulary], valid until the next step."""
    runner.run(Batch(list(rows)))
    return runner.decoder.logits(sum(row.sample for row in rows))


def decoded_logits(runner: NativeRunner, texts: Sequence[list[int]]) -> list[Floats]:
    """[tokens, vocabulary] of each text, all of them side by side, a token a step: as answers are computed."""
    sequences = placed(texts)
    found = [np.empty((len(ids), runner.vocab_size), np.float32) for ids in texts]
    for position in range(max(map(len, texts))):
        running = [number for number, ids in enumerate(texts) if position < len(ids)]
        logits = logits_of(runner, [Row(sequences[number], position, 1, sample=True) for number in running])
        for number, own in zip(running, logits, strict=True):
            found[number][position] = own
    return found


def prefilled_logits(runner: NativeRunner, ids: list[int], *ends: int) -> Floats:
    """[vocabulary] of the last of so many tokens, computed in as many steps as there are ends."""
    [one] = placed([ids])
    start = 0
    for end in ends:
        logits = logits_of(runner, [Row(one, start, end - start, sample=True)])[0].copy()
        start = end
    return logits


def exact_tensors(config: dict[str, Any], *, seed: int = 0) -> Tensors:
    """A tiny model's tensors that 8 bits hold as they are, so that float32 computes with the very same weights; its
    activations stay about as large from layer to layer, and the logits a few apart."""
    tensors = random_tensors(config, seed=seed, head=not config["tie_word_embeddings"])
    for name, tensor in tensors.items():
        if name.endswith("bias"):
            tensor *= 0.1
        elif tensor.ndim == 1:
            tensor.copy_(1 + 0.2 * tensor)
        else:
            spread = 1 if "embed" in name else tensor.shape[1] ** -0.5
            tensor.copy_(torch.from_numpy(_rounded(tensor.numpy() * np.float32(spread))))
    return tensors


def _rounded(matrix: Floats) -> Floats:
    blocks = from_floats(matrix)
    numbers = (blocks.numbers ^ 0x80).view(np.int8).astype(np.float32)
    values: Floats = (numbers * blocks.scales.astype(np.float32)[..., None]).reshape(len(matrix), -1)
    return np.ascontiguousarray(values[:, : matrix.shape[1]])
