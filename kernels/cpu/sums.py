"""Sums: dot products inside registers, sums and maxima across one; operations as lanes.py has them. In one order."""
from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import types

from .lanes import (
    BF16,
    FLOATS,
    I8,
    I16,
    I32,
    INTS,
    WIDTH,
    FloatLanes,
    IntLanes,
    call,
    const,
    operation,
)  # fmt: skip
from .processor import HAS_BF16_DOT, HAS_INT8_DOT, HAS_SHORT_SUMS

HALF = WIDTH // 2
_BYTES, _SHORTS, _HALF = ir.VectorType(I8, 4 * HALF), ir.VectorType(I16, 2 * HALF), ir.VectorType(I32, HALF)

# Dot products


@operation(IntLanes, IntLanes, IntLanes, IntLanes)
def dot_bytes(b, total, unsigned, signed):
    """total + the sum of 4 products in each lane, of bytes that are unsigned on one side and signed on the other."""
    if HAS_INT8_DOT:
        return call(b, "llvm.x86.avx512.vpdpbusd.512", INTS, total, unsigned, signed)
    for shift in (0, 8, 16, 24):
        left = b.and_(b.lshr(unsigned, const(INTS, shift)), const(INTS, 255))
        right = b.ashr(b.shl(signed, const(INTS, 24 - shift)), const(INTS, 24))
        total = b.add(total, b.mul(left, right))
    return total


def dot_group(
    b: ir.IRBuilder, totals: list[list[Any]], bits: int, weights: Callable[[int, int], Any],
    four: Callable[[int, int], Any],
) -> list[list[Any]]:
    """Part of a tile: totals[half][token] + the products of 32 inputs in each of a half's 16 lanes.

    weights(half, step): a register of bytes without a sign, of `bits` bits each. four(token, step): the signed bytes
    that it is multiplied by. Each is asked for where it is used, so that few are held at once.
    """
    tokens = range(len(totals[0]))
    if HAS_INT8_DOT or not HAS_SHORT_SUMS:
        totals = [list(half) for half in totals]
        for step in range(8) if bits == 8 else (0, 4, 1, 5, 2, 6, 3, 7):  # of 4 bits, two steps lie in the same bytes
            own = [weights(half, step) for half in range(len(totals))]
            for token in tokens:  # the tokens' sums side by side: none waits for itself
                signed = four(token, step)
                for sums, weight in zip(totals, own, strict=True):
                    sums[token] = dot_bytes.emit(b, sums[token], weight, signed)
        return totals
    return [_dot_lanes(b, sums, [weights(half, step) for step in range(8)], bits, four)
            for half, sums in enumerate(totals)]


def _dot_lanes(
    b: ir.IRBuilder, totals: list[Any], weights: list[Any], bits: int, four: Callable[[int, int], Any]
) -> list[Any]:
    halves = [_dot_half(b, len(totals), weights, bits, four, first) for first in (0, HALF)]
    return [
        b.add(total, b.shuffle_vector(*both, ir.Constant(INTS, list(range(WIDTH)))))
        for total, *both in zip(totals, *halves, strict=True)
    ]


def _dot_half(
    b: ir.IRBuilder, tokens: int, weights: list[Any], bits: int, four: Callable[[int, int], Any], first: int
) -> list[Any]:
    """_dot_lanes of 8 lanes. The instruction adds two products of bytes in 16 bits, and those hold the sum of 8 such
    pairs where one factor is at most 15: so bytes are taken as two halves of 4 bits, and only sums are made wider."""
    sums = [[ir.Constant(_SHORTS, [0] * 2 * HALF)] * (bits // 4) for _ in range(tokens)]
    for step, weight in enumerate(weights):
        parts = _nibbles(b, _lanes(b, weight, first), bits)
        for token, own in enumerate(sums):
            signed = b.bitcast(_lanes(b, four(token, step), first), _BYTES)
            for place, part in enumerate(parts):
                own[place] = b.add(own[place], call(b, "llvm.x86.avx2.pmadd.ub.sw", _SHORTS, part, signed))
    ones, four_bits = ir.Constant(_SHORTS, [1] * 2 * HALF), ir.Constant(_HALF, [4] * HALF)
    made = [[call(b, "llvm.x86.avx2.pmadd.wd", _HALF, part, ones) for part in own] for own in sums]
    return [b.add(own[0], b.shl(own[1], four_bits)) if bits == 8 else own[0] for own in made]


def _nibbles(b: ir.IRBuilder, x: Any, bits: int) -> list[Any]:
    """The lower and the upper 4 bits of each byte; the byte itself where it has no more."""
    low = ir.Constant(_HALF, [0x0F0F0F0F] * HALF)
    upper = b.and_(b.lshr(x, ir.Constant(_HALF, [4] * HALF)), low)
    return [b.bitcast(part, _BYTES) for part in ([x] if bits == 4 else [b.and_(x, low), upper])]


def _lanes(b: ir.IRBuilder, x: Any, first: int) -> Any:
    return b.shuffle_vector(x, ir.Constant(INTS, ir.Undefined), ir.Constant(_HALF, list(range(first, first + HALF))))


@operation(FloatLanes, FloatLanes, IntLanes, IntLanes)
def dot_bf16(b, total, x, y):
    """total + the sum of 2 products in each lane, of pairs of bfloat16."""
    if HAS_BF16_DOT:
        pairs = ir.VectorType(BF16, 2 * WIDTH)
        return call(b, "llvm.x86.avx512bf16.dpbf16ps.512", FLOATS, total, b.bitcast(x, pairs), b.bitcast(y, pairs))
    for first in (True, False):
        left, right = (
            b.bitcast(b.shl(v, const(INTS, 16)) if first else b.and_(v, const(INTS, -65536)), FLOATS) for v in (x, y)
        )
        total = call(b, "llvm.fma.v16f32", FLOATS, left, right, total)
    return total


@operation(IntLanes, FloatLanes)
def bf16_bits(b, x):
    """Each lane rounded to bfloat16, in the low half of its lane; not-a-number stays, whatever its bits.

    Processors that do it in one instruction make what is below 1e-38 zero.
    """
    if HAS_BF16_DOT:
        narrow = b.fptrunc(x, ir.VectorType(BF16, WIDTH))
        return b.zext(b.bitcast(narrow, ir.VectorType(I16, WIDTH)), INTS)
    bits = b.bitcast(x, INTS)
    upper = b.lshr(bits, const(INTS, 16))
    odd = b.and_(upper, const(INTS, 1))
    near = b.lshr(b.add(bits, b.add(odd, const(INTS, 0x7FFF))), const(INTS, 16))
    return b.select(b.fcmp_unordered("uno", x, x), b.or_(upper, const(INTS, 0x40)), near)


@operation(FloatLanes, IntLanes)
def from_bf16(b, x):
    """The bfloat16 in the low half of each lane, widened."""
    return b.bitcast(b.shl(x, const(INTS, 16)), FLOATS)


# Reductions, in one fixed order: halves upon each other


def _reduce(b, x, combine):
    for half in (8, 4, 2, 1):
        low, high = (
            b.shuffle_vector(x, ir.Constant(x.type, ir.Undefined), ir.Constant(ir.VectorType(I32, half), list(lanes)))
            for lanes in (range(half), range(half, 2 * half))
        )
        x = combine(low, high)
    return b.extract_element(x, const(I32, 0))


@operation(types.float32, FloatLanes)
def total(b, x):
    return _reduce(b, x, b.fadd)


@operation(types.int32, IntLanes)
def total_ints(b, x):
    return _reduce(b, x, b.add)


@operation(types.float32, FloatLanes)
def largest(b, x):
    return _reduce(b, x, lambda low, high: b.select(b.fcmp_ordered(">", low, high), low, high))
