"""Rows: what is done to one token's numbers between two products: norm, whole numbers, rotary, KV. One row a call.

Sums run in one fixed order over the row alone. A number that is no number, or infinite, makes the row's scale
not-a-number, and with it all that is computed from the row: it cannot get lost on the way through whole numbers.
"""
import numpy as np

from .lanes import (
    WIDTH,
    absolute,
    add,
    add_ints,
    div,
    exp,
    fma,
    larger,
    load,
    mul,
    peek_float,
    peek_int,
    peek_short,
    poke_float,
    poke_int,
    poke_short,
    rounded,
    shift_left,
    shift_right,
    splat,
    splat_ints,
    store,
    store_bytes,
    store_shorts,
    sub,
    sub_ints,
    to_ints,
)  # fmt: skip
from .native import native
from .sums import bf16_bits, largest, total, total_ints
from .tiles import GROUP

HIGHEST = 32512.0  # of two passes: 127 * 256, so that the high byte never overflows
_ONE = np.float32(1.0)
_ZERO = np.float32(0.0)


@native
def norm(x: int, weight: int, out: int, n: int, eps: float) -> None:
    """out = x / sqrt(mean(x²) + eps) * weight, n float32 (n a multiple of 16)."""
    squares = splat(_ZERO)
    for i in range(0, 4 * n, 4 * WIDTH):
        one = load(x + i)
        squares = fma(one, one, squares)
    factor = splat(np.float32(1.0) / np.sqrt(total(squares) / np.float32(n) + np.float32(eps)))
    for i in range(0, 4 * n, 4 * WIDTH):
        store(out + i, mul(mul(load(x + i), factor), load(weight + i)))


@native
def quantise_two(x: int, n: int, out: int, facts: int) -> None:
    """n float32 as 16-bit numbers in two bytes, with one scale.

    out: of each group of 32 the high bytes, then the low ones. facts: of each group the sum as float32, of each group
    the sum times -128 as int32, and then the scale, float32.
    """
    groups = (n + GROUP - 1) // GROUP
    scale = facts + 8 * groups
    most, check = splat(_ZERO), splat(_ZERO)
    for i in range(0, 4 * n, 4 * WIDTH):
        one = load(x + i)
        most = larger(absolute(one), most)
        check = fma(one, splat(_ZERO), check)
    top = largest(most)
    unit = top / np.float32(HIGHEST)
    inverse = splat(np.float32(HIGHEST) / top if top > np.float32(1e-30) else _ZERO)
    poke_float(scale, unit + total(check))
    half = splat_ints(np.int32(128))
    eight = splat_ints(np.int32(8))
    for group in range(groups):
        whole = splat_ints(np.int32(0))
        for part in range(2):
            i = group * GROUP + part * WIDTH
            to = out + group * 2 * GROUP + part * WIDTH
            number = to_ints(rounded(mul(load(x + 4 * i), inverse))) if i < n else splat_ints(np.int32(0))
            high = shift_right(add_ints(number, half), eight)
            store_bytes(to, high)
            store_bytes(to + GROUP, sub_ints(number, shift_left(high, eight)))
            whole = add_ints(whole, number)
        count = total_ints(whole)
        poke_float(facts + 4 * group, np.float32(count))
        poke_int(facts + 4 * (groups + group), np.int32(-128) * count)


@native
def quantise_one(x: int, n: int, out: int, facts: int) -> None:
    """n float32 as bytes. facts: of each group of 32 the scaled sum, the sum times -128 as int32, and the scale."""
    groups = (n + GROUP - 1) // GROUP
    for group in range(groups):
        i = group * GROUP
        first = load(x + 4 * i)
        second = load(x + 4 * (i + WIDTH)) if i + WIDTH < n else splat(_ZERO)
        top = largest(larger(absolute(first), absolute(second)))
        check = total(add(mul(first, splat(_ZERO)), mul(second, splat(_ZERO))))
        inverse = splat(np.float32(127.0) / top if top > np.float32(1e-30) else _ZERO)
        left, right = to_ints(rounded(mul(first, inverse))), to_ints(rounded(mul(second, inverse)))
        store_bytes(out + i, left)
        store_bytes(out + i + WIDTH, right)
        count = total_ints(add_ints(left, right))
        unit = top / np.float32(127.0) + check
        poke_float(facts + 4 * (2 * groups + group), unit)
        poke_float(facts + 4 * group, unit * np.float32(count))
        poke_int(facts + 4 * (groups + group), np.int32(-128) * count)


@native
def gate(gates: int, ups: int, out: int) -> None:
    """silu of 16 gates times 16 ups."""
    g = load(gates)
    store(out, mul(div(g, add(splat(_ONE), exp(sub(splat(_ZERO), g)))), load(ups)))


@native
def rotate(x: int, turns: int, dim: int, factor: float) -> None:
    """Turns one head in place by `turns` (dim / 2 cosines, then as many sines), and multiplies it."""
    half = dim // 2
    if half % WIDTH == 0:
        size = splat(np.float32(factor))
        for i in range(0, 4 * half, 4 * WIDTH):
            cosine, sine = mul(load(turns + i), size), mul(load(turns + 4 * half + i), size)
            a, b = load(x + i), load(x + 4 * half + i)
            store(x + i, sub(mul(a, cosine), mul(b, sine)))
            store(x + 4 * half + i, add(mul(b, cosine), mul(a, sine)))
        return
    for i in range(half):
        cosine, sine = peek_float(turns + 4 * i), peek_float(turns + 4 * (half + i))
        a, b = peek_float(x + 4 * i), peek_float(x + 4 * (half + i))
        poke_float(x + 4 * i, (a * cosine - b * sine) * np.float32(factor))
        poke_float(x + 4 * (half + i), (b * cosine + a * sine) * np.float32(factor))


@native
def narrow(x: int, out: int, dim: int) -> None:
    """float32 to bfloat16; out may be x."""
    for i in range(0, dim, WIDTH):
        store_shorts(out + 2 * i, bf16_bits(load(x + 4 * i)))


@native
def store_key(x: int, block: int, slot: int, dim: int) -> None:
    """A key in bfloat16 to its block: [dim / 2][16 tokens][2], a pair of dimensions of 16 tokens being one register."""
    for pair in range(dim // 2):
        poke_int(block + (pair * WIDTH + slot) * 4, peek_int(x + 4 * pair))


@native
def store_value(x: int, block: int, slot: int, dim: int, last: bool) -> None:
    """A value in bfloat16 to its block: [8 pairs of tokens][dim][2]. The `last` of a row clears the slot that it shares
    a pair with: whatever lies there would be multiplied by 0, which does not help against not-a-number."""
    base = block + (slot // 2) * dim * 4
    if last and slot % 2 == 0:
        for i in range(dim):
            poke_int(base + 4 * i, peek_short(x + 2 * i))
    else:
        for i in range(dim):
            poke_short(base + 4 * i + (slot % 2) * 2, peek_short(x + 2 * i))
