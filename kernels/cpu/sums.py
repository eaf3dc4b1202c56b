"""Sums: dot products inside registers, sums and maxima across one; operations as lanes.py has them. In one order."""
from llvmlite import ir
from numba import types

from .lanes import (
    BF16,
    FLOATS,
    HAS_BF16_DOT,
    HAS_INT8_DOT,
    I32,
    INTS,
    WIDTH,
    FloatLanes,
    IntLanes,
    call,
    const,
    operation,
)  # fmt: skip

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
    """Each lane rounded to bfloat16, in the low half of its lane; not-a-number stays, whatever its bits."""
    bits = b.bitcast(x, INTS)
    upper = b.lshr(bits, const(INTS, 16))
    odd = b.and_(upper, const(INTS, 1))
    near = b.lshr(b.add(bits, b.add(odd, const(INTS, 0x7FFF))), const(INTS, 16))
    return b.select(b.fcmp_unordered("uno", x, x), b.or_(upper, const(INTS, 0x40)), near)


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
