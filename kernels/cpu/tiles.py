"""Tiles: the innermost loops of the matrix product, unrolled over registers. They know addresses and no shapes beyond.

A weight matrix [out, in] is cut into panels of 32 outputs and groups of 32 inputs (packing.py). One tile is a few
tokens times one panel. Weights are whole numbers with a float16 scale a group, activations are whole numbers too, so
the sum over a group is exact; it is made float32, scaled, and added to the sums of the groups before it, from the first
group to the last: a token's result is the same whatever tokens share its tile.

Activations come in one of two forms (rows.py):
  one pass:   x = byte * scale of the group;
  two passes: x = (256 high + low) * scale of the token; a group is 32 high bytes, then 32 low ones.
"""
from typing import Any

from llvmlite import ir
from numba.core import cgutils

from .lanes import FLOATS, I64, INTS, const, fma, load_half, load_ints, outlined, prefetch, repeat, repeat_ints
from .sums import dot_group

GROUP = 32  # inputs that share a scale
PANEL = 32  # outputs of one tile: two registers of 16
GROUP_BYTES = {4: 640, 8: 1088}  # of one panel: 32 x 32 numbers of 4 or 8 bits, 32 scales, and with 4 bits 32 minima
AHEAD = 8  # blocks
STEPS = GROUP // 4  # dot_bytes takes 4 inputs at a time


def matrix_tile(tokens: int, bits: int, passes: int) -> Any:
    """tile(panel, groups, x, facts, row bytes, row facts, out): out[token, 0:32] = x[token] times the panel.

    x, facts: where the first token's bytes are, and what rows.py says of each of its groups: the sum (float32), the sum
    times -128 (int32), and with one pass the scale; each kind for all groups in a row. `row bytes` and `row facts` lead
    to the next token. out [tokens, 32] float32; with two passes the token's own scale is still missing.
    """

    def build(b, panel, groups, x, facts, row_bytes, row_facts, out):
        totals = [[cgutils.alloca_once(b, FLOATS) for _ in range(2)] for _ in range(tokens)]
        for row in totals:
            for cell in row:
                b.store(const(FLOATS, 0.0), cell)
        strides = [_times(b, row_bytes, t) for t in range(tokens)]
        fact_strides = [_times(b, row_facts, t) for t in range(tokens)]
        integers = b.mul(groups, const(I64, 4))  # from one kind of facts to the next
        with cgutils.for_range(b, groups) as loop:
            block = b.add(panel, b.mul(loop.index, const(I64, GROUP_BYTES[bits])))
            inputs = b.add(x, b.mul(loop.index, const(I64, GROUP * passes)))
            offset = b.mul(loop.index, const(I64, 4))
            if tokens <= 2:  # bound by memory: ask for what comes, further ahead than the processor does by itself
                for line in range(0, GROUP_BYTES[bits], 64):
                    prefetch.emit(b, b.add(block, const(I64, AHEAD * GROUP_BYTES[bits] + line)))
            own = [b.add(inputs, stride) for stride in strides]
            own_sums = [b.add(b.add(facts, stride), offset) for stride in fact_strides]
            corrections = [b.add(one, integers) for one in own_sums]
            for half in range(2):
                weights = _weights(b, block, half, bits)
                after = b.add(block, const(I64, (GROUP_BYTES[bits] - (128 if bits == 4 else 64)) + 32 * half))
                scale = load_half.emit(b, after)
                minimum = load_half.emit(b, b.add(after, const(I64, 64))) if bits == 4 else None
                corrected = bits == 8 and passes == 1  # with two passes it is done between them
                dots = [repeat_ints.emit(b, one) if corrected else const(INTS, 0) for one in corrections]
                for one in range(passes):

                    def four(t: int, step: int, own: Any = own, first: int = GROUP * one) -> Any:
                        return repeat_ints.emit(b, b.add(own[t], const(I64, first + 4 * step)))

                    dots = dot_group(b, dots, weights, bits, four)
                    if one < passes - 1:
                        dots = [b.shl(dot, const(INTS, 8)) for dot in dots]
                        if bits == 8:
                            dots = [b.add(dot, repeat_ints.emit(b, corrections[t])) for t, dot in enumerate(dots)]
                for t, dot in enumerate(dots):
                    found, total = b.sitofp(dot, FLOATS), b.load(totals[t][half])
                    if passes == 1:
                        found = b.fmul(found, repeat.emit(b, b.add(corrections[t], integers)))
                    total = fma.emit(b, found, scale, total)
                    if minimum is not None:
                        total = fma.emit(b, minimum, repeat.emit(b, own_sums[t]), total)
                    b.store(total, totals[t][half])
        for t, row in enumerate(totals):
            for half, cell in enumerate(row):
                at = b.add(out, const(I64, 4 * (PANEL * t + 16 * half)))
                b.store(b.load(cell), b.inttoptr(at, FLOATS.as_pointer()), align=4)

    return outlined(f"tile_{tokens}_{bits}_{passes}", 7, build)


def _weights(b: ir.IRBuilder, block: Any, half: int, bits: int) -> list[Any]:
    """The 8 registers of 16 outputs times 32 inputs, as bytes without a sign."""
    if bits == 8:
        return [load_ints.emit(b, b.add(block, const(I64, 64 * (STEPS * half + step)))) for step in range(STEPS)]
    pairs = [load_ints.emit(b, b.add(block, const(I64, 64 * (4 * half + step)))) for step in range(STEPS // 2)]
    low = const(INTS, 0x0F0F0F0F)
    return [b.and_(x, low) for x in pairs] + [b.and_(b.lshr(x, const(INTS, 4)), low) for x in pairs]


def _times(b: ir.IRBuilder, stride: Any, count: int) -> Any:
    return b.mul(stride, const(I64, count))
