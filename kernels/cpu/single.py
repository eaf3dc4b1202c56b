"""Single: one operation of a step at a time, on one thread, for measuring; and what a core can do at most. No step."""
from typing import Any

import numpy as np
from numba.core import cgutils

from .lanes import (
    FLOATS,
    I64,
    INTS,
    add_ints,
    const,
    load_ints,
    outlined,
    peek_double,
    repeat_ints,
    splat_ints,
    store,
    store_ints,
)  # fmt: skip
from .native import entry, native
from .plan import (
    ATTENTION_NORM,
    BYTES,
    CACHE,
    FACTORS,
    LAYER_BYTES,
    LAYERS,
    PHASES,
    SCRATCH,
)
from .product import product
from .rows import quantise, row_bytes
from .sharing import clear
from .step import attend_rows, merge_rows, norm_rows, sample_rows, turn_rows
from .sums import dot_bf16, dot_group, total_ints
from .tiles import PANEL, STEPS

NORM, TURN, ATTEND, MERGE, SAMPLE = (
    PHASES.index(name) for name in ("attention norm", "rotary, store", "attention", "merge", "sample")
)
ROOM, PARTS = 2048, 4  # bytes that each of the two loops below looks at, a part in each turn
SIDE_BY_SIDE = 8  # sums, of which none waits for another
BYTE_OPS = 2 * 4 * 16 * STEPS * SIDE_BY_SIDE  # multiplications and additions of one turn of the loop
PAIR_OPS = 2 * 2 * 16 * SIDE_BY_SIDE


@entry
def read(at: int, size: int) -> int:
    """Reads memory from one end to the other: a multiple of 256 bytes."""
    a, b, c, d = splat_ints(np.int32(0)), splat_ints(np.int32(0)), splat_ints(np.int32(0)), splat_ints(np.int32(0))
    for i in range(at, at + size, 256):
        a, b = add_ints(a, load_ints(i)), add_ints(b, load_ints(i + 64))
        c, d = add_ints(c, load_ints(i + 128)), add_ints(d, load_ints(i + 192))
    return total_ints(add_ints(add_ints(a, b), add_ints(c, d)))


def _bytes_loop() -> Any:
    """loop(times, data, out, 0, 0): products of bytes as tiles.py makes them, with weights of 4 bits, and no more."""

    def build(b, times, data, out, _, __):
        totals = [cgutils.alloca_once_value(b, const(INTS, 0)) for _ in range(SIDE_BY_SIDE)]
        low = const(INTS, 0x0F0F0F0F)
        with cgutils.for_range(b, times) as loop:
            at = _part(b, data, loop.index)
            weights = [b.and_(load_ints.emit(b, b.add(at, const(I64, 64 * step))), low) for step in range(STEPS)]

            def four(token: int, step: int) -> Any:
                return repeat_ints.emit(b, b.add(at, const(I64, 4 * (STEPS * token + step))))

            [dotted] = dot_group(b, [[b.load(cell) for cell in totals]], 4, lambda _, step: weights[step], four)
            for cell, total in zip(totals, dotted, strict=True):
                b.store(total, cell)
        for number, cell in enumerate(totals):
            store_ints.emit(b, b.add(out, const(I64, 64 * number)), b.load(cell))

    return outlined("bytes_loop", 5, build)


def _pairs_loop() -> Any:
    """loop(times, data, out, 0, 0): products of pairs of bfloat16 as attention.py makes them, and no more."""

    def build(b, times, data, out, _, __):
        totals = [cgutils.alloca_once_value(b, const(FLOATS, 0.0)) for _ in range(SIDE_BY_SIDE)]
        with cgutils.for_range(b, times) as loop:
            at = _part(b, data, loop.index)
            key = load_ints.emit(b, at)
            for number, cell in enumerate(totals):
                pair = repeat_ints.emit(b, b.add(at, const(I64, 4 * number)))
                b.store(dot_bf16.emit(b, b.load(cell), key, pair), cell)
        for number, cell in enumerate(totals):
            store.emit(b, b.add(out, const(I64, 64 * number)), b.load(cell))

    return outlined("pairs_loop", 5, build)


def _part(b, data, turn):
    """Where this turn's numbers lie: were they always the same, the compiler would multiply them once."""
    return b.add(data, b.mul(b.and_(turn, const(I64, PARTS - 1)), const(I64, ROOM // PARTS)))


_dot_bytes, _dot_pairs = _bytes_loop(), _pairs_loop()


@entry
def dot_bytes_of(times: int, data: int, out: int) -> None:
    """BYTE_OPS `times` over, of what lies in the first level of cache. out: 64 SIDE_BY_SIDE bytes."""
    _dot_bytes(times, data, out, 0, 0)


@entry
def dot_pairs_of(times: int, data: int, out: int) -> None:
    _dot_pairs(times, data, out, 0, 0)


@entry
def quantise_rows(x: int, tokens: int, width: int, exact_above: float, out: int) -> None:
    """float32 [tokens, width] as `multiply` takes them."""
    for token in range(tokens):
        quantise(x + 4 * width * token, width, exact_above, out + token * row_bytes(width))


@entry
def multiply(
    matrices: int, matrix_bytes: int, first: int, times: int, of: int, bits: int, outputs: int, width: int,
    x: int, tokens: int, mode: int, out: int, out_bytes: int, scratch: int,
) -> None:
    """Tokens times `times` matrices, one after the other from number `first` of `of` on; all are written to `out`."""
    panels = (outputs + PANEL - 1) // PANEL
    for one in range(first, first + times):
        product(matrices + one % of * matrix_bytes, bits, 0, panels, width, x, tokens, 0, mode, out, out_bytes,
                scratch, matrices + (one + 1) % of * matrix_bytes)


@entry
def repeat(plan: np.ndarray, layers: np.ndarray, board: int, kind: int, times: int) -> None:
    """Does one of the kinds of phase above once more, as the last step did it, in each layer in turn."""
    for one in range(times):
        _repeat(plan, layers[one % plan[LAYERS]], plan[CACHE] + one % plan[LAYERS] * plan[LAYER_BYTES], board, kind)


@native
def _repeat(plan: np.ndarray, layer: np.ndarray, cache: int, board: int, kind: int) -> None:
    clear(board, 1)
    epsilon, scale = peek_double(plan[FACTORS]), peek_double(plan[FACTORS] + 8)
    if kind == NORM:
        norm_rows(plan, board, 1, 0, layer[ATTENTION_NORM], epsilon, plan[BYTES], plan[SCRATCH])
    elif kind == TURN:
        turn_rows(plan, layer, cache, board, 1, 0, epsilon, scale)
    elif kind == ATTEND:
        attend_rows(plan, cache, board, 1, 0, plan[SCRATCH])
    elif kind == MERGE:
        merge_rows(plan, board, 1, 0, plan[BYTES], plan[SCRATCH])
    elif kind == SAMPLE:
        sample_rows(plan, board, 1, 0, 0)
