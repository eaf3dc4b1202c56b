"""Rows: what is done to one token's numbers between two products: norm, whole numbers, rotary, KV. One row a call.

Sums run in one fixed order over the row alone. A number that is no number, or infinite, makes the row's scale
not-a-number, and with it all that is computed from the row: it cannot get lost on the way through whole numbers.
"""
from typing import Any

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
    poke_long,
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
from .native import everywhere, native
from .sums import bf16_bits, largest, total, total_ints
from .tiles import BIAS, GROUP, SCALE, SETS, SUM

HIGHEST = np.float32(127.0)  # of a byte
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


@everywhere
def row_bytes(width: int) -> int:
    """Of one token's bytes and facts, a multiple of 64."""
    groups = (width + GROUP - 1) // GROUP
    return ((SETS + GROUP + 4) * groups + 8 * ((groups + 63) // 64) + 63) // 64 * 64


@native
def quantise(x: int, n: int, exact_above: float, out: int) -> None:
    """n float32 as whole numbers with a scale for each group of 32: of 8 bits; of 16 where a group's largest one is
    more than `exact_above` times as large as the row's are on average.

    out [row_bytes(n)], in the order that tiles.py says: the high bytes; the sum of a group's high bytes times -128
    (int32), the scale (float32), and the scaled sum of the numbers themselves; the set; the low bytes, else 0, of which
    256 make a high one; and the sum of these times -128.
    """
    groups = (n + GROUP - 1) // GROUP
    words = (groups + 63) // 64
    sets = out + SETS * groups
    lows = sets + 8 * words
    sizes, zeros = splat(_ZERO), splat(_ZERO)
    for i in range(0, 4 * n, 4 * WIDTH):
        one = load(x + i)
        sizes, zeros = add(sizes, absolute(one)), fma(one, splat(_ZERO), zeros)
    bound, check = total(sizes) / np.float32(n) * np.float32(exact_above), total(zeros)
    for word in range(words):
        exact = 0
        for group in range(64 * word, min(64 * word + 64, groups)):
            i = GROUP * group
            first = load(x + 4 * i)
            second = load(x + 4 * (i + WIDTH)) if i + WIDTH < n else splat(_ZERO)
            top = largest(larger(absolute(first), absolute(second)))
            unit = top / HIGHEST + check
            inverse = HIGHEST / top if top > np.float32(1e-30) else _ZERO
            if top > bound:
                high_sum, low_sum = _two_bytes(first, second, np.float32(256.0) * inverse, out + i, lows + i)
                poke_int(lows + GROUP * groups + 4 * group, np.int32(-128) * low_sum)
                count = np.float32(high_sum) + np.float32(low_sum) / np.float32(256.0)
                exact |= 1 << (group - 64 * word)
            else:
                high_sum = _one_byte(first, second, inverse, out + i)
                store_shorts(lows + i, splat_ints(np.int32(0)))
                poke_int(lows + GROUP * groups + 4 * group, np.int32(0))
                count = np.float32(high_sum)
            poke_int(out + BIAS * groups + 4 * group, np.int32(-128) * high_sum)
            poke_float(out + SCALE * groups + 4 * group, unit)
            poke_float(out + SUM * groups + 4 * group, unit * count)
        poke_long(sets + 8 * word, exact)


@native
def _one_byte(first: Any, second: Any, inverse: float, highs: int) -> Any:
    """Writes a group; the sum of its bytes."""
    left, right = to_ints(rounded(mul(first, splat(inverse)))), to_ints(rounded(mul(second, splat(inverse))))
    store_bytes(highs, left)
    store_bytes(highs + WIDTH, right)
    return total_ints(add_ints(left, right))


@native
def _two_bytes(first: Any, second: Any, inverse: float, highs: int, lows: int) -> Any:
    """Writes a group; the sums of its high and of its low bytes."""
    left, right = to_ints(rounded(mul(first, splat(inverse)))), to_ints(rounded(mul(second, splat(inverse))))
    eight, half = splat_ints(np.int32(8)), splat_ints(np.int32(128))
    left_high, right_high = shift_right(add_ints(left, half), eight), shift_right(add_ints(right, half), eight)
    left_low, right_low = sub_ints(left, shift_left(left_high, eight)), sub_ints(right, shift_left(right_high, eight))
    store_bytes(highs, left_high)
    store_bytes(highs + WIDTH, right_high)
    store_bytes(lows, left_low)
    store_bytes(lows + WIDTH, right_low)
    return total_ints(add_ints(left_high, right_high)), total_ints(add_ints(left_low, right_low))


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
