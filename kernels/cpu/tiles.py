"""Tiles: the innermost loops of the matrix product, unrolled over registers. They know addresses and no shapes beyond.

A weight matrix [out, in] is cut into panels of 32 outputs and groups of 32 inputs (packing.py). One tile is a few
tokens times one panel. Weights are whole numbers with a float16 scale a group, activations are whole numbers too, so
the sum over a group is exact; it is made float32, scaled, and added to the sums of the groups before it, from the first
group to the last.

Activations are (high + low / 256) * scale of the group (rows.py), and few groups have low bytes: a tile multiplies the
high bytes of all groups, and then each of its tokens adds what its own low bytes contribute. So a token's result is the
same whatever tokens share its tile.
"""
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from llvmlite import ir
from numba.core import cgutils

from .lanes import (
    FLOATS,
    I64,
    INTS,
    call,
    const,
    fma,
    load,
    load_half,
    load_ints,
    outlined,
    pointer,
    prefetch,
    repeat,
    repeat_ints,
    store,
)  # fmt: skip
from .sums import dot_group

GROUP = 32  # inputs that share a scale
PANEL = 32  # outputs of one tile: two registers of 16
GROUP_BYTES = {4: 640, 8: 1088}  # of one panel: 32 x 32 numbers of 4 or 8 bits, 32 scales, and with 4 bits 32 minima
AHEAD = 16  # groups of weights that are asked for before they are needed
STEPS = GROUP // 4  # dot_bytes takes 4 inputs at a time
# A token's row (rows.py): the high bytes of its groups; three facts of 4 bytes for each group; the set of groups that
# have low bytes, 64 to a word; the low bytes; and one fact more for each group. They begin at so many bytes a group:
BIAS, SCALE, SUM, SETS = (GROUP + 4 * number for number in range(4))


def matrix_tile(tokens: int, bits: int) -> Any:
    """tile(panel, groups, x, row, following, out): out[token, 0:32] = x[token] times the panel, float32 [tokens, 32].

    x: the first token's row; `row` bytes further begins the next token's. following: the panel after this one. Weights
    are asked for some groups before they are needed, further than the processor does by itself, and across its end.
    """

    def build(b, panel, groups, x, row, following, out):
        totals = [[cgutils.alloca_once_value(b, const(FLOATS, 0.0)) for _ in range(2)] for _ in range(tokens)]
        highs = [_behind(b, x, row, token) for token in range(tokens)]
        biases, scales, sums = ([_behind(b, one, groups, n) for one in highs] for n in (BIAS, SCALE, SUM))
        ahead = b.select(b.icmp_signed("<", groups, const(I64, AHEAD)), groups, const(I64, AHEAD))
        last = b.sub(groups, ahead)
        within, beyond = _behind(b, panel, ahead, GROUP_BYTES[bits]), _behind(b, following, last, -GROUP_BYTES[bits])
        with cgutils.for_range(b, groups) as loop:
            block = _behind(b, panel, loop.index, GROUP_BYTES[bits])
            coming = b.select(b.icmp_signed("<", loop.index, last), within, beyond)
            coming = _behind(b, coming, loop.index, GROUP_BYTES[bits])
            for line in range(0, GROUP_BYTES[bits], 64):
                prefetch.emit(b, b.add(coming, const(I64, line)))
            both = _dots(b, block, bits, _each(b, highs, loop.index, GROUP), _each(b, biases, loop.index, 4))
            for half, dots in enumerate(both):
                scale, minimum = _scale(b, block, half, bits), _minimum(b, block, half) if bits == 4 else None
                for token, dot in enumerate(dots):
                    cell, own = totals[token][half], repeat.emit(b, _behind(b, scales[token], loop.index, 4))
                    total = fma.emit(b, b.fmul(b.sitofp(dot, FLOATS), own), scale, b.load(cell))
                    if minimum is not None:
                        total = fma.emit(b, minimum, repeat.emit(b, _behind(b, sums[token], loop.index, 4)), total)
                    b.store(total, cell)
        for token, cells in enumerate(totals):
            for half, cell in enumerate(cells):
                at = b.add(out, const(I64, 4 * (PANEL * token + 16 * half)))
                b.store(b.load(cell), pointer(b, at, FLOATS), align=4)

    return outlined(f"tile_{tokens}_{bits}", 6, build)


def low_tile(bits: int) -> Any:
    """tile(panel, groups, x, out): adds to out[0:32] what the low bytes of one token contribute."""

    def build(b, panel, groups, x, out):
        ends = [b.add(out, const(I64, 64 * half)) for half in range(2)]
        totals = [cgutils.alloca_once_value(b, load.emit(b, at)) for at in ends]
        words = _words(b, groups)
        scales, sets = _behind(b, x, groups, SCALE), _behind(b, x, groups, SETS)
        lows = _behind(b, sets, words, 8)
        biases = _behind(b, lows, groups, GROUP)
        with _members(b, sets, groups) as group:
            block = _behind(b, panel, group, GROUP_BYTES[bits])
            own = b.fmul(repeat.emit(b, _behind(b, scales, group, 4)), const(FLOATS, 1 / 256))
            both = _dots(b, block, bits, [_behind(b, lows, group, GROUP)], [_behind(b, biases, group, 4)])
            for half, [dot] in enumerate(both):
                scale = _scale(b, block, half, bits)
                total = fma.emit(b, b.fmul(b.sitofp(dot, FLOATS), own), scale, b.load(totals[half]))
                b.store(total, totals[half])
        for cell, at in zip(totals, ends, strict=True):
            store.emit(b, at, b.load(cell))

    return outlined(f"low_tile_{bits}", 4, build)


def _dots(b: ir.IRBuilder, block: Any, bits: int, bytes: list[Any], biases: list[Any]) -> list[list[Any]]:
    """[half][token]: the products of one group, summed up in each of a half's 16 lanes."""

    def weights(half: int, step: int) -> Any:
        if bits == 8:
            return load_ints.emit(b, b.add(block, const(I64, 64 * (STEPS * half + step))))
        pair = load_ints.emit(b, b.add(block, const(I64, 64 * (STEPS // 2 * half + step % 4))))
        return b.and_(pair if step < 4 else b.lshr(pair, const(INTS, 4)), const(INTS, 0x0F0F0F0F))

    def four(token: int, step: int) -> Any:
        return repeat_ints.emit(b, b.add(bytes[token], const(I64, 4 * step)))

    start = [const(INTS, 0)] * len(bytes) if bits == 4 else [repeat_ints.emit(b, one) for one in biases]
    return dot_group(b, [start, start], bits, weights, four)


def _scale(b: ir.IRBuilder, block: Any, half: int, bits: int) -> Any:
    return load_half.emit(b, b.add(block, const(I64, GROUP_BYTES[bits] - (128 if bits == 4 else 64) + 32 * half)))


def _minimum(b: ir.IRBuilder, block: Any, half: int) -> Any:
    return load_half.emit(b, b.add(block, const(I64, GROUP_BYTES[4] - 64 + 32 * half)))


@contextmanager
def _members(b: ir.IRBuilder, sets: Any, count: Any) -> Iterator[Any]:
    """Does what follows for each number below `count` whose bit is set in int64 that lie in a row, from the lowest on.
    Bits behind those do not count: nobody sets them, but a row may be read while it becomes another (helping.py)."""
    left = cgutils.alloca_once(b, I64)
    with cgutils.for_range(b, _words(b, count)) as loop:
        rest = b.sub(const(I64, 64), b.sub(count, b.shl(loop.index, const(I64, 6))))  # bits that do not count
        rest = b.select(b.icmp_signed(">", rest, const(I64, 0)), rest, const(I64, 0))
        word = b.load(pointer(b, _behind(b, sets, loop.index, 8), I64), align=4)
        b.store(b.and_(word, b.lshr(const(I64, -1), rest)), left)
        head, body, end = (b.append_basic_block(name) for name in ("members", "member", "members_end"))
        b.branch(head)
        b.position_at_end(head)
        word = b.load(left)
        b.cbranch(b.icmp_unsigned("!=", word, const(I64, 0)), body, end)
        b.position_at_end(body)
        b.store(b.and_(word, b.sub(word, const(I64, 1))), left)
        bit = call(b, "llvm.cttz.i64", I64, word, ir.Constant(ir.IntType(1), 1))
        yield b.add(b.shl(loop.index, const(I64, 6)), bit)
        b.branch(head)
        b.position_at_end(end)


def _words(b: ir.IRBuilder, count: Any) -> Any:
    """How many int64 have so many bits."""
    return b.lshr(b.add(count, const(I64, 63)), const(I64, 6))


def _behind(b: ir.IRBuilder, address: Any, count: Any, size: int) -> Any:
    return b.add(address, b.mul(count, const(I64, size)))


def _each(b: ir.IRBuilder, addresses: list[Any], count: Any, size: int) -> list[Any]:
    return [_behind(b, one, count, size) for one in addresses]
