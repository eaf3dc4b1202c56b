"""Attention over KV blocks where they lie: one unit is a few queries that share a KV head, over one split of the keys.

A head's part of a block of 16 tokens is their keys [dim / 2][16][2] and then their values [8][dim][2], bfloat16: 16
scores at once need no sum across a register, and both feed the same dot product of pairs.

Keys are taken 64 at a time, counted from position 0, and in splits of 256: what one query computes, and in what order,
depends on its own position alone. So it gives the same bits in a prefill, in a decode, and beside whomever.
"""
from collections.abc import Iterator
from typing import Any

import numpy as np
from llvmlite import ir
from numba.core import cgutils

from .lanes import (
    FLOATS,
    I64,
    WIDTH,
    add,
    const,
    div,
    exp,
    fma,
    lane_numbers,
    larger,
    load,
    load_ints,
    mul,
    outlined,
    peek_float,
    peek_int,
    peek_long,
    poke_float,
    poke_long,
    prefetch,
    repeat_ints,
    splat,
    store,
    store_shorts,
    sub,
    where_less,
)  # fmt: skip
from .native import native
from .processor import HAS_BF16_DOT
from .sums import bf16_bits, dot_bf16, from_bf16, largest, total

CHUNK = 64  # keys whose scores are taken at once
PAGES = CHUNK // WIDTH
SPLIT = 256  # keys of one unit
ROWS = 6  # queries of one unit at most: 24 registers of scores, 24 of values
MINUS = np.float32(-np.inf)
_ONE, _ZERO = np.float32(1.0), np.float32(0.0)


def _score_tile(rows: int) -> Any:
    """scores(queries, row bytes, pairs, keys, out): out[row, 0:64] = query . key, float32.

    keys: 8 addresses, of the keys of 4 blocks and of 4 that come next, which are asked for on the way: blocks are
    spread over memory, and the processor cannot foresee them.
    """

    def build(b, queries, row_bytes, pairs, keys, out):
        addresses = [b.load(b.inttoptr(b.add(keys, const(I64, 8 * n)), I64.as_pointer())) for n in range(2 * PAGES)]
        totals = [[cgutils.alloca_once(b, FLOATS) for _ in range(PAGES)] for _ in range(rows)]
        for row in totals:
            for cell in row:
                b.store(const(FLOATS, 0.0), cell)
        for some in _at_once(rows, PAGES):
            with cgutils.for_range(b, pairs) as loop:
                step = b.mul(loop.index, const(I64, 4 * WIDTH))
                here = [load_ints.emit(b, b.add(addresses[page], step)) for page in some]
                for page in some:
                    prefetch.emit(b, b.add(addresses[PAGES + page], step))
                for number, row in enumerate(totals):
                    at = b.add(b.add(queries, b.mul(row_bytes, const(I64, number))), b.mul(loop.index, const(I64, 4)))
                    pair = repeat_ints.emit(b, at)
                    for key, page in zip(here, some, strict=True):
                        b.store(dot_bf16.emit(b, b.load(row[page]), key, pair), row[page])
        _store_all(b, totals, out, const(I64, 4 * CHUNK))

    return outlined(f"scores_{rows}", 5, build)


def _value_tile(rows: int, wide: int) -> Any:
    """values(weights, pairs, values, next, stride, out): out[row, 0:16 wide] += weights . values of one block.

    weights: bfloat16, 128 bytes a row. stride: from one pair of tokens to the next, which is also that of out's rows.
    next: the values of the block that comes next, asked for on the way.
    """

    def build(b, weights, pairs, source, following, stride, out):
        totals = [[cgutils.alloca_once(b, FLOATS) for _ in range(wide)] for _ in range(rows)]
        for number, row in enumerate(totals):
            for part, cell in enumerate(row):
                at = b.add(b.add(out, b.mul(stride, const(I64, number))), const(I64, 64 * part))
                b.store(b.load(b.inttoptr(at, FLOATS.as_pointer()), align=4), cell)
        for some in _at_once(rows, wide):
            with cgutils.for_range(b, pairs) as loop:
                step = b.mul(loop.index, stride)
                here = [load_ints.emit(b, b.add(b.add(source, step), const(I64, 64 * part))) for part in some]
                for part in some:
                    prefetch.emit(b, b.add(b.add(following, step), const(I64, 64 * part)))
                for number, row in enumerate(totals):
                    at = b.add(b.add(weights, const(I64, 2 * CHUNK * number)), b.mul(loop.index, const(I64, 4)))
                    pair = repeat_ints.emit(b, at)
                    for value, part in zip(here, some, strict=True):
                        b.store(dot_bf16.emit(b, b.load(row[part]), value, pair), row[part])
        _store_all(b, totals, out, stride)

    return outlined(f"values_{rows}_{wide}", 6, build)


def _at_once(rows: int, wide: int) -> Iterator[range]:
    """Which of `wide` totals a row are summed up in one loop: all, or as many as 16 registers of 8 lanes hold."""
    count = wide if HAS_BF16_DOT else max(1, ROWS // rows)
    return (range(first, min(first + count, wide)) for first in range(0, wide, count))


def _store_all(b: ir.IRBuilder, totals: list[list[Any]], out: Any, row_bytes: Any) -> None:
    for number, row in enumerate(totals):
        for part, cell in enumerate(row):
            at = b.add(b.add(out, b.mul(row_bytes, const(I64, number))), const(I64, 64 * part))
            b.store(b.load(cell), b.inttoptr(at, FLOATS.as_pointer()), align=4)


_scores_1, _scores_2, _scores_3, _scores_4, _scores_5, _scores_6 = (_score_tile(rows) for rows in range(1, ROWS + 1))
_values_1, _values_2, _values_3, _values_4, _values_5, _values_6 = (_value_tile(rows, 4) for rows in range(1, ROWS + 1))
_narrow_1, _narrow_2, _narrow_3, _narrow_4, _narrow_5, _narrow_6 = (_value_tile(rows, 1) for rows in range(1, ROWS + 1))


@native
def _scores(rows: int, q: int, row_bytes: int, pairs: int, keys: int, out: int) -> None:
    if rows == 1:
        _scores_1(q, row_bytes, pairs, keys, out)
    elif rows == 2:
        _scores_2(q, row_bytes, pairs, keys, out)
    elif rows == 3:
        _scores_3(q, row_bytes, pairs, keys, out)
    elif rows == 4:
        _scores_4(q, row_bytes, pairs, keys, out)
    elif rows == 5:
        _scores_5(q, row_bytes, pairs, keys, out)
    else:
        _scores_6(q, row_bytes, pairs, keys, out)


@native
def _values(rows: int, weights: int, pairs: int, source: int, following: int, dim: int, out: int) -> None:
    """All of one block's dimensions: 64 at a time, and 16 at a time what is left."""
    part = 0
    while part < dim:
        at, then, to = source + 4 * part, following + 4 * part, out + 4 * part
        if dim - part >= 4 * WIDTH:
            if rows == 1:
                _values_1(weights, pairs, at, then, 4 * dim, to)
            elif rows == 2:
                _values_2(weights, pairs, at, then, 4 * dim, to)
            elif rows == 3:
                _values_3(weights, pairs, at, then, 4 * dim, to)
            elif rows == 4:
                _values_4(weights, pairs, at, then, 4 * dim, to)
            elif rows == 5:
                _values_5(weights, pairs, at, then, 4 * dim, to)
            else:
                _values_6(weights, pairs, at, then, 4 * dim, to)
            part += 4 * WIDTH
        else:
            if rows == 1:
                _narrow_1(weights, pairs, at, then, 4 * dim, to)
            elif rows == 2:
                _narrow_2(weights, pairs, at, then, 4 * dim, to)
            elif rows == 3:
                _narrow_3(weights, pairs, at, then, 4 * dim, to)
            elif rows == 4:
                _narrow_4(weights, pairs, at, then, 4 * dim, to)
            elif rows == 5:
                _narrow_5(weights, pairs, at, then, 4 * dim, to)
            else:
                _narrow_6(weights, pairs, at, then, 4 * dim, to)
            part += WIDTH


SCRATCH = ROWS * CHUNK * 4 + ROWS * CHUNK * 2 + 16 * PAGES  # bytes: scores, their weights as bfloat16, addresses


@native
def attend(
    rows: int, queries: int, row_bytes: int, dim: int, limits: int, window: int, table: int, blocks: int,
    block_bytes: int, first: int, end: int, following: int, out: int, state: int, scratch: int,
) -> None:
    """A few queries over keys `first` up to `end`, of one KV head.

    queries: bfloat16 and scaled, `row_bytes` apart. limits: int32, each query's own position. table: the sequence's
    int32 block numbers; `blocks`: where the head's part of block 0 lies, and `following` where that of the head to come
    lies, or 0. out [rows, dim] float32 gets the sums, not yet divided; state [rows, 2] the largest score and the sum of
    the weights.
    """
    weights = scratch + ROWS * CHUNK * 4
    keys = weights + ROWS * CHUNK * 2
    for row in range(rows):
        poke_float(state + 8 * row, MINUS)
        poke_float(state + 8 * row + 4, _ZERO)
        for part in range(0, 4 * dim, 4 * WIDTH):
            store(out + row * 4 * dim + part, splat(_ZERO))
    last = (end - 1) // WIDTH
    start = first // CHUNK * CHUNK
    for base in range(start, end, CHUNK):
        # Behind the last key the first block stands in: its scores are masked, its values not read.
        _point(keys, table, base // WIDTH, last, blocks, block_bytes)
        if base + CHUNK < end:
            _point(keys + 8 * PAGES, table, base // WIDTH + PAGES, last, blocks, block_bytes)
        else:
            _point(keys + 8 * PAGES, table, start // WIDTH, last, following if following != 0 else blocks, block_bytes)
        _scores(rows, queries, row_bytes, dim // 2, keys, scratch)
        for row in range(rows):
            limit = peek_int(limits + 4 * row)
            _weigh(scratch + row * 4 * CHUNK, weights + row * 2 * CHUNK, state + 8 * row, out + row * 4 * dim, dim,
                   limit + 1 - base, limit + 1 - window - base if window > 0 else 0)
        count = min(end - base, CHUNK)
        values = 2 * WIDTH * dim  # bytes of a block's keys, behind which its values lie
        for page in range((count + WIDTH - 1) // WIDTH):
            pairs = (min(count - page * WIDTH, WIDTH) + 1) // 2
            block, then = peek_long(keys + 8 * page), peek_long(keys + 8 * (PAGES + page))
            _values(rows, weights + page * 2 * WIDTH, pairs, block + values, then + values, dim, out)


@native
def _point(keys: int, table: int, number: int, last: int, blocks: int, block_bytes: int) -> None:
    """The addresses of one head's part of 4 blocks from `number` on."""
    for page in range(PAGES):
        at = blocks + peek_int(table + 4 * (number + page if number + page <= last else number)) * block_bytes
        poke_long(keys + 8 * page, at)


@native
def _weigh(scores: int, weights: int, state: int, out: int, dim: int, seen: int, hidden: int) -> None:
    """Softmax of one row's next 64 scores, of which numbers `hidden` up to `seen` count: what was summed before is
    scaled down to the new largest score."""
    s0, s1, s2, s3 = load(scores), load(scores + 64), load(scores + 128), load(scores + 192)
    if seen < CHUNK or hidden > 0:
        lanes, never = lane_numbers(), splat(MINUS)
        s0, s1, s2, s3 = (
            where_less(lanes, np.int32(seen), s0, never), where_less(lanes, np.int32(seen - 16), s1, never),
            where_less(lanes, np.int32(seen - 32), s2, never), where_less(lanes, np.int32(seen - 48), s3, never),
        )
        if hidden > 0:
            s0, s1, s2, s3 = (
                where_less(lanes, np.int32(hidden), never, s0),
                where_less(lanes, np.int32(hidden - 16), never, s1),
                where_less(lanes, np.int32(hidden - 32), never, s2),
                where_less(lanes, np.int32(hidden - 48), never, s3),
            )
    before = peek_float(state)
    most = max(before, largest(larger(larger(s0, s1), larger(s2, s3))))
    if most == MINUS:  # nothing is seen yet: this chunk leaves no trace, as if another query had not asked for it
        for part in range(0, 2 * CHUNK, 4 * WIDTH):
            store(weights + part, splat(_ZERO))
        # 0 is added, unless scores are no numbers, of which none is the largest: those must not go unseen.
        poke_float(state + 4, peek_float(state + 4) + total(add(add(exp(s0), exp(s1)), add(exp(s2), exp(s3)))))
        return
    top = splat(most)
    p0, p1, p2, p3 = exp(sub(s0, top)), exp(sub(s1, top)), exp(sub(s2, top)), exp(sub(s3, top))
    b0, b1, b2, b3 = bf16_bits(p0), bf16_bits(p1), bf16_bits(p2), bf16_bits(p3)
    store_shorts(weights, b0)
    store_shorts(weights + 32, b1)
    store_shorts(weights + 64, b2)
    store_shorts(weights + 96, b3)
    # What is summed is what values are multiplied by: its rounding then weighs nothing.
    whole = total(add(add(from_bf16(b0), from_bf16(b1)), add(from_bf16(b2), from_bf16(b3))))
    fade = exp(splat(before - most))
    held = total(fade) / np.float32(WIDTH) * peek_float(state + 4)
    poke_float(state + 4, held + whole)
    poke_float(state, most)
    if before != most:
        for part in range(0, 4 * dim, 4 * WIDTH):
            store(out + part, mul(load(out + part), fade))


@native
def merge(
    parts: int, part_bytes: int, states: int, state_bytes: int, first: int, splits: int, dim: int, out: int
) -> None:
    """One query's result from its splits `first` up to `splits`: sums at `parts` [split, dim], float32."""
    most = MINUS
    for split in range(first, splits):
        most = max(most, peek_float(states + split * state_bytes))
    whole = _ZERO
    for part in range(0, 4 * dim, 4 * WIDTH):
        store(out + part, splat(_ZERO))
    for split in range(first, splits):
        factor = exp(splat(peek_float(states + split * state_bytes) - most))
        whole += total(factor) / np.float32(WIDTH) * peek_float(states + split * state_bytes + 4)
        for part in range(0, 4 * dim, 4 * WIDTH):
            store(out + part, fma(load(parts + split * part_bytes + part), factor, load(out + part)))
    for part in range(0, 4 * dim, 4 * WIDTH):
        store(out + part, div(load(out + part), splat(whole)))
