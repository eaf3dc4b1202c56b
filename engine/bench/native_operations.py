"""NativeOperations: the CPU path's parts at the sizes that a model's steps have, on one thread. It times nothing.

There are two sources of them, since there are two ceilings of arithmetic: products of bytes, and of pairs of bfloat16.
"""
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import accumulate, cycle

import numpy as np
from numpy.typing import NDArray

from hamdam.kernels.cpu import packing, single
from hamdam.kernels.cpu.attention import SPLIT
from hamdam.kernels.cpu.decoder import Decoder, LayerWeights, Weights
from hamdam.kernels.cpu.facts import Step
from hamdam.kernels.cpu.packing import Blocks, Bytes, Packed, aligned
from hamdam.kernels.cpu.product import ADD, GATE, SCRATCH, WRITE
from hamdam.kernels.cpu.rows import row_bytes
from hamdam.kernels.cpu.step import padded
from hamdam.kernels.cpu.tiles import GROUP

from ..config import BLOCK_SIZE
from ..execution.packed_weights import shape_of
from ..execution.quality import EXACT_ABOVE
from ..models.config import ModelConfig
from .operation import Operation, Source
from .sizes import (
    CHUNK,
    CHUNK_CONTEXT,
    DECODES,
    FEW_AND_MANY,
    OUT_OF_CACHE,
    ROWS,
    SAMPLED,
    SETTINGS,
    SPREAD,
    matrices,
    seen,
)  # fmt: skip

READ = 512 << 20  # bytes that the ceiling reads
TURNS = 20_000  # of the loops of arithmetic in one call
SEVERAL = 10  # times that a call does what takes some microseconds
AT_ONCE = 20_000_000  # products of a call: a few hundred microseconds
MODES = {"qkv": WRITE, "output": ADD, "gate_up": GATE, "down": ADD, "head": WRITE}


def native_operations(shape: ModelConfig, *, dtype: str) -> Iterator[Source]:
    """Made one after the other: each holds some hundred MB."""
    yield Products(shape, dtype)
    yield Rows(shape, dtype)


def passes_of(dtype: str) -> int:
    """Times that a product goes over weights here: random numbers have no group that needs its low bytes in int8."""
    return 2 if EXACT_ABOVE[dtype] == 0 else 1


class OneThread:
    """What both have in common: the ceiling of memory, and a room that the loops of arithmetic look at."""

    def __init__(self, name: str) -> None:
        self.name = f"native code on cpu, one thread: {name}"
        memory = _filled(READ, np.random.default_rng(0).integers(0, 256, 1 << 16, np.uint8))
        self.copy = Operation(name="read", bytes=READ, flops=0, call=lambda: single.read(_at(memory), memory.nbytes))
        self._small = memory[: single.ROOM].copy()
        self._found = aligned(64 * single.SIDE_BY_SIDE)

    def finish(self) -> None:
        """A call is done when it returns."""


class Products(OneThread):
    """Implements operation.Source: matrix products, of 4-bit and of 8-bit weights."""

    def __init__(self, shape: ModelConfig, dtype: str) -> None:
        super().__init__(f"products with {dtype}")
        self._shape, self._exact_above, self._passes = shape, EXACT_ABOVE[dtype], passes_of(dtype)
        self.product = Operation(
            name="int8 products in the first level of cache", bytes=0, flops=single.BYTE_OPS * TURNS,
            call=lambda: single.dot_bytes_of(TURNS, _at(self._small), _at(self._found)),
        )

    def operations(self) -> Iterator[Operation]:
        random = np.random.default_rng(0)
        for bits in (4, 8):
            for name, (outputs, inputs) in matrices(self._shape).items():
                matrix = _matrix(random, outputs, inputs, bits)
                count = max(1, OUT_OF_CACHE // matrix.data.nbytes)
                data = _filled(count * matrix.data.nbytes, matrix.data)
                for rows in ROWS:
                    yield self._product(f"{name} in {bits} bits, {rows}", matrix, data, count, rows, MODES[name])

    def _product(self, name: str, matrix: Packed, data: Bytes, count: int, rows: int, mode: int) -> Operation:
        width, size = matrix.inputs, matrix.data.nbytes
        x = np.random.default_rng(0).standard_normal((rows, width), np.float32)
        numbers = aligned(rows * row_bytes(width))
        out, scratch = aligned(rows * padded(matrix.outputs)), aligned(SCRATCH)
        single.quantise_rows(_at(x), rows, width, self._exact_above, _at(numbers))
        times = max(1, min(count, AT_ONCE // (rows * matrix.outputs * width)))
        firsts = cycle(range(0, count, times))
        return Operation(
            name=name, bytes=size + numbers.nbytes + 4 * rows * matrix.outputs, times=times,
            flops=2 * self._passes * rows * matrix.outputs * width,
            call=lambda: single.multiply(
                _at(data), size, next(firsts), times, count, matrix.bits, matrix.outputs, width, _at(numbers), rows,
                mode, _at(out), padded(matrix.outputs), _at(scratch),
            ),
        )


class Rows(OneThread):
    """Implements operation.Source: what lies between the products, as parts of a step that was taken once before."""

    def __init__(self, shape: ModelConfig, dtype: str) -> None:
        super().__init__("attention, rows, samples")
        self._shape, self._exact_above = shape, EXACT_ABOVE[dtype]
        self._heads = shape.num_heads + 2 * shape.num_kv_heads
        self._kv = 4 * shape.num_kv_heads * shape.head_dim  # bytes of one token's in one layer
        self.product = Operation(
            name="bfloat16 products in the first level of cache", bytes=0, flops=single.PAIR_OPS * TURNS,
            call=lambda: single.dot_pairs_of(TURNS, _at(self._small), _at(self._found)),
        )

    def operations(self) -> Iterator[Operation]:
        shape = self._shape
        hidden, turned = shape.hidden_size, self._heads * shape.head_dim
        for tokens in FEW_AND_MANY:
            step = self._step([1] * tokens, [BLOCK_SIZE] * tokens)
            yield Operation(
                name=f"norm, quantise, {tokens}", bytes=tokens * 6 * hidden, flops=6 * tokens * hidden,
                times=SEVERAL, call=step.again(single.NORM, SEVERAL),
            )
            yield Operation(
                name=f"rotary, store, {tokens}", bytes=tokens * 6 * turned, flops=4 * tokens * turned, times=SEVERAL,
                call=step.again(single.TURN, SEVERAL),
            )
        for batch, context in DECODES:
            yield from self._attention(f"{batch} × {context}", [1] * batch, [context] * batch)
        yield from self._attention(f"{CHUNK} of {CHUNK_CONTEXT}", [CHUNK], [CHUNK_CONTEXT])
        yield from self._samples()

    def _attention(self, name: str, counts: list[int], contexts: list[int]) -> Iterator[Operation]:
        """Blocks lie in memory as they do after a while: anywhere."""
        shape = self._shape
        layers = max(1, min(shape.num_layers, OUT_OF_CACHE // (sum(contexts) * self._kv) + 1))
        step = self._step(counts, contexts, layers)
        queries = sum(counts) * shape.num_heads * shape.head_dim
        yield Operation(
            name=f"attention, {name}", bytes=sum(contexts) * self._kv + 6 * queries, times=layers,
            flops=4 * seen(counts, contexts) * shape.num_heads * shape.head_dim,
            call=step.again(single.ATTEND, layers),
        )
        splits = -(-max(contexts) // SPLIT)
        yield Operation(
            name=f"merge, quantise, {name}", bytes=4 * splits * queries + 2 * queries, times=layers,
            flops=(2 * splits + 4) * queries, call=step.again(single.MERGE, layers),
        )

    def _samples(self) -> Iterator[Operation]:
        step = self._step([1] * SAMPLED, [BLOCK_SIZE] * SAMPLED)
        logits = step.decoder.logits(SAMPLED)
        logits[:] = SPREAD * np.random.default_rng(0).standard_normal(logits.shape, np.float32)
        for name, heat, top_p in SETTINGS:
            step.facts.settings[:] = (heat, 0, top_p, 0.0, 0.5)
            yield Operation(
                name=f"sample {name}, {SAMPLED}", bytes=logits.nbytes, flops=logits.size,
                call=step.again(single.SAMPLE, 1),
            )

    def _step(self, counts: list[int], contexts: list[int], layers: int = 1) -> "TakenStep":
        return TakenStep(self._shape, counts, contexts, layers=layers, exact_above=self._exact_above)


class TakenStep:
    """A decoder of random weights and keys that has taken a step: each sequence's last tokens, all of which sample."""

    def __init__(
        self, shape: ModelConfig, counts: list[int], contexts: list[int], *, layers: int, exact_above: float
    ) -> None:
        random = np.random.default_rng(0)
        tables = [-(-context // BLOCK_SIZE) for context in contexts]
        order = random.permutation(sum(tables)).astype(np.int32)
        padded_tables = np.zeros((len(tables), max(tables)), np.int32)
        for line, end, blocks in zip(padded_tables, accumulate(tables), tables, strict=True):
            line[:blocks] = order[end - blocks : end]
        tokens, samples = sum(counts), len(counts)
        spans = [range(context - count, context) for count, context in zip(counts, contexts, strict=True)]
        self.facts = Step(
            ids=np.zeros(tokens, np.int32), owners=np.repeat(np.arange(samples, dtype=np.int32), counts),
            positions=np.concatenate(spans, dtype=np.int32), starts=np.cumsum([0, *counts], dtype=np.int32),
            tables=padded_tables, turns=np.full((tokens, shape.head_dim), 0.7, np.float32),
            sampled=np.arange(samples, dtype=np.int32), settings=np.zeros((samples, 5)),
            edits=np.zeros(0, np.int32), divisors=np.zeros(0, np.float32), added=np.zeros(0, np.float32),
            edit_starts=np.zeros(samples + 1, np.int32), kept=np.full(samples, -1, np.int32),
            masks=np.zeros((0, 0), np.uint32), mask_of=np.full(samples, -1, np.int32),
        )
        self.decoder = Decoder(
            replace(shape_of(shape), layers=layers), _weights(random, shape, layers), blocks=sum(tables),
            max_tokens=tokens, threads=1, exact_above=exact_above,
        )
        keys = random.standard_normal(1 << 16, np.float32).view(np.uint16)[1::2]  # as bfloat16
        self.decoder.cache[:] = np.resize(keys.copy().view(np.uint8), self.decoder.cache.shape)
        self.drawn = self.decoder.step(self.facts)  # kept, as the facts are: the plan goes on pointing to both

    def again(self, kind: int, times: int) -> Callable[[], None]:
        """One of single.py's phases, in so many layers in turn."""
        plan, layers, _, board = self.decoder.plans
        return lambda: single.repeat(plan, layers, board, kind, times)


def _weights(random: np.random.Generator, shape: ModelConfig, layers: int) -> Weights:
    """All layers have the same ones: nothing is measured that reads them."""
    own = {name: _matrix(random, *sizes, 8) for name, sizes in matrices(shape).items()}
    norm = np.ones(shape.hidden_size, np.float32)
    layer = LayerWeights(
        attention_norm=norm, qkv=own["qkv"], qkv_bias=None, query_norm=None, key_norm=None, output=own["output"],
        output_bias=None, mlp_norm=norm, gate_up=own["gate_up"], down=own["down"],
    )
    return Weights(embedding=own["head"], layers=[layer] * layers, norm=norm, head=own["head"])


def _matrix(random: np.random.Generator, outputs: int, inputs: int, bits: int) -> Packed:
    groups = -(-inputs // GROUP)
    numbers = random.integers(0, 256, (outputs, groups, GROUP * bits // 8), np.uint8)
    scales = np.full((outputs, groups), 0.1 / inputs**0.5 / (1 << bits), np.float16)
    return packing.pack(Blocks(bits, numbers, scales, scales * np.float16(-8) if bits == 4 else None), inputs)


def _filled(size: int, part: Bytes) -> Bytes:
    """Memory of its own all over: what was only zeroed would be read out of one page that all share."""
    data = aligned(size)
    for start in range(0, size, part.nbytes):
        data[start : start + part.nbytes] = part[: size - start]
    return data


def _at(array: NDArray[np.generic]) -> int:
    return array.ctypes.data
