"""w4a16: rows of floats times a matrix of 4-bit numbers with scales by group, decode and prefill.

The product is made the other way round, outputs by tokens: weights come out of their nibbles in registers, which is
where a matrix unit takes its first operand from, and the few tokens of a decode step are the side that may be short.
"""
from functools import partial

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..quantized import RUN, W4A16
from .chip import chip_of
from .product import INTERPRETED, converted, product
from .split_k import Sums
from .tile import Tile, tile_for
from .variant import TARGETS, Variant, meta

TILES = (
    Tile(tokens=16, outputs=128, inputs=128, warps=4, stages=4, fill=2),
    Tile(tokens=64, outputs=128, inputs=128, warps=4, stages=3, fill=1),
    Tile(tokens=128, outputs=128, inputs=64, warps=4, stages=3),
    Tile(tokens=256, outputs=128, inputs=64, warps=8, stages=3),
)
OFFSET_TILES = (*TILES[:2], Tile(tokens=128, outputs=64, inputs=64, warps=4, stages=3))  # offsets take registers

EIGHT, INTEGER, OFFSET = (tl.constexpr(kind) for kind in range(3))
"""What stands for zero: always 8, an integer of each group, or a number that is added after the scale."""


def w4a16(x: Tensor, weight: W4A16, bias: Tensor | None = None, *, invariant: bool = False) -> Tensor:
    """x [T, in] float16 or bfloat16, the matrix [out, in], bias [out] -> [T, out] of x's dtype.

    Weights are rounded to x's dtype, but not where whole groups are summed before they are scaled (decode, groups of
    128 and more). invariant: a row's sum is the same in any company.
    """
    tokens, (outputs, inputs) = x.shape[0], weight.shape
    group = weight.group
    assert group in (RUN, 2 * RUN) or group % 128 == 0
    x = x if weight.permutation is None else x[:, weight.permutation]
    x = x if x.stride(1) == 1 else x.contiguous()
    zeros = EIGHT if weight.zeros is None else INTEGER if weight.zeros.dtype == torch.uint8 else OFFSET
    tile = tile_for(OFFSET_TILES if zeros == OFFSET else TILES, tokens, invariant=invariant)
    sums = Sums.of(x, tile, outputs, inputs, x.dtype)
    if tokens:
        _w4a16[sums.grid](
            x, weight.packed, weight.scales, weight.zeros, bias if sums.whole else None, sums.parts, tokens, outputs,
            inputs // 8, inputs // group, x.stride(0), sums.steps, group, zeros,
            zeros != OFFSET and tile.fill > 0 and group % tile.inputs == 0,
            inputs % tile.inputs == 0 and outputs % tile.outputs == 0, tile.tokens, tile.outputs, tile.inputs,
            num_warps=tile.warps,
            num_stages=tile.stages_on(chip_of(x), tile.inputs * (tile.tokens * x.itemsize + tile.outputs // 2)),
        )
    return sums.added(bias)


@triton.jit
def _w4a16(
    x, packed, scales, zeros, bias, out, tokens, outputs, words_a_row, groups, stride, steps, GROUP: tl.constexpr,
    ZEROS: tl.constexpr, SCALED_AFTER: tl.constexpr, EVEN: tl.constexpr, TOKENS: tl.constexpr, OUTPUTS: tl.constexpr,
    INPUTS: tl.constexpr,
):
    output = tl.program_id(0) * OUTPUTS + tl.arange(0, OUTPUTS)
    token = tl.program_id(1) * TOKENS + tl.arange(0, TOKENS)
    split = tl.program_id(2)
    row = output if EVEN else tl.minimum(output, outputs - 1)  # what is read twice is not stored
    word = tl.arange(0, INPUTS // 8)[None, :]
    column = tl.arange(0, INPUTS // 4)[:, None]
    column = column // 8 * 32 + column % 8  # of plane 0; plane i is 8 i further on
    packed += row.to(tl.int64)[:, None] * words_a_row + word
    x += tl.minimum(token, tokens - 1).to(tl.int64)[None, :] * stride + column
    dtype: tl.constexpr = x.dtype.element_ty
    GROUPS: tl.constexpr = max(INPUTS // GROUP, 1)
    group = tl.arange(0, GROUPS)[:, None]
    total = tl.zeros((OUTPUTS, TOKENS), tl.float32)
    first, last = split * steps, tl.minimum((split + 1) * steps, tl.cdiv(words_a_row, INPUTS // 8))
    at = (first * INPUTS // GROUP + group) * outputs + row[None, :]
    there = at < groups * outputs
    scale = tl.load(scales + at, there, other=0.0)
    zero = tl.load(zeros + at, there, other=0) if ZEROS != EIGHT else scale
    for step in range(first, last):
        # Scales are too few for the copies that Triton makes ahead: they are read here for the next step.
        at = ((step + 1) * INPUTS // GROUP + group) * outputs + row[None, :]
        there = at < groups * outputs
        next_scale = tl.load(scales + at, there, other=0.0)
        next_zero = tl.load(zeros + at, there, other=0) if ZEROS != EIGHT else scale
        words_at = packed + step * (INPUTS // 8)
        words = tl.load(words_at) if EVEN else tl.load(words_at, step * (INPUTS // 8) + word < words_a_row, other=0)
        zero_tile = _zero_tile(zero, ZEROS, INPUTS, dtype)
        if SCALED_AFTER:
            scale_tile = tl.trans(scale).to(tl.float32)
            part = tl.zeros((OUTPUTS, TOKENS), tl.float32)
        else:
            scale_tile = _spread(converted(scale, tl.float32 if INTERPRETED else dtype), INPUTS // 4)
            part = total
        for plane in tl.static_range(4):
            x_at = x + step * INPUTS + 8 * plane
            inside = step * INPUTS + 8 * plane + column < words_a_row * 8
            x_tile = tl.load(x_at) if EVEN else tl.load(x_at, inside, other=0.0)
            weights = _plane(words, zero_tile, scale_tile, 4 * plane, ZEROS, SCALED_AFTER, dtype)
            part = product(weights, x_tile, part)
        total = total + part * scale_tile if SCALED_AFTER else part
        scale, zero = next_scale, next_zero
    if bias is not None:
        total += tl.load(bias + row).to(tl.float32)[:, None]
    at = (split * tokens + token.to(tl.int64)[None, :]) * outputs + output[:, None]
    tl.store(out + at, converted(total, out.dtype.element_ty), (output < outputs)[:, None] & (token < tokens)[None, :])


@triton.jit
def _plane(
    words, zero, scale, SHIFT: tl.constexpr, ZEROS: tl.constexpr, SCALED_AFTER: tl.constexpr, dtype: tl.constexpr
):
    """The weights [outputs, 2 words] of one nibble of every half-word.

    No nibble is converted: or'ed into the lowest bits of 128 (bfloat16) or 1024 (float16) it adds its value to it, two
    at a time. An integer zero is taken away in the same bits, with 16 more so that nothing is borrowed.
    """
    ONE: tl.constexpr = 128.0 if dtype == tl.bfloat16 else 1024.0
    BITS: tl.constexpr = 0x43004300 if dtype == tl.bfloat16 else 0x64006400
    two = (words >> SHIFT) & 0x000F000F
    two = two + zero if ZEROS == INTEGER else two | BITS
    halves = tl.join(two.to(tl.int16), (two >> 16).to(tl.int16)).reshape(words.shape[0], words.shape[1] * 2)
    q = halves.to(dtype, bitcast=True)
    if INTERPRETED:
        q = q.to(tl.float32)
    if ZEROS == EIGHT:
        q = q - (ONE + 8)
    elif ZEROS == INTEGER:
        q = q - (ONE + 16)
    else:
        q = (q - ONE) * scale + zero
    if ZEROS != OFFSET and not SCALED_AFTER:
        q = q * scale
    return q


@triton.jit
def _zero_tile(zero, ZEROS: tl.constexpr, INPUTS: tl.constexpr, dtype: tl.constexpr):
    """zero [groups, outputs] as _plane takes it."""
    if ZEROS == INTEGER:
        ONE: tl.constexpr = 0x43104310 if dtype == tl.bfloat16 else 0x64106410
        return _spread(ONE - zero.to(tl.int32) * 0x00010001, INPUTS // 8)
    elif ZEROS == OFFSET:
        return _spread(converted(zero, tl.float32 if INTERPRETED else dtype), INPUTS // 4)
    else:
        return zero


@triton.jit
def _spread(x, WIDTH: tl.constexpr):
    """[groups, outputs] -> [outputs, WIDTH]: each group's number along its part of the columns."""
    columns = tl.trans(x)[:, :, None].broadcast_to(x.shape[1], x.shape[0], WIDTH // x.shape[0])
    return columns.reshape(x.shape[1], WIDTH)


def _variants() -> tuple[Variant, ...]:
    """One matrix of Llama 8B (attention's output, 4096 x 4096) in the forms of AWQ, GPTQ and GGUF."""
    n = 4096

    def variant(
        name: str, tokens: int, group: int, zeros: torch.dtype | None, product: str | None = None,
        tested: tuple[str, ...] = TARGETS,
    ) -> Variant:
        scales = meta(n // group, n, dtype=torch.float16)
        zero = None if zeros is None else meta(n // group, n, dtype=zeros)
        weight = W4A16(meta(n, n // 8, dtype=torch.int32), scales, zero)
        x = meta(tokens, n)
        read = weight.packed.nbytes + scales.nbytes + (0 if zero is None else zero.nbytes)
        claims = {"sm_90": product} if product else {}
        return Variant(f"{tokens} x {n} x {n}, {name}", partial(w4a16, x, weight), read + 2 * x.nbytes,
                       2 * tokens * n * n, claims=claims, tested=tested)

    return (
        variant("groups of 128", 16, 128, None),
        variant("groups of 128, zeros", 16, 128, torch.uint8),
        variant("groups of 32, offsets", 16, 32, torch.float16),
        variant("groups of 128", 64, 128, None, "HGMMA", tested=("sm_90",)),
        variant("groups of 128", 128, 128, None, "HGMMA", tested=("sm_90",)),
        variant("groups of 128, zeros", 2048, 128, torch.uint8, "HGMMA"),
        variant("groups of 32, offsets", 2048, 32, torch.float16, "HGMMA"),
    )


VARIANTS = _variants()
