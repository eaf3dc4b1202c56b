"""w8a16: rows of floats times a matrix of int8 or float8_e4m3fn, decode and prefill. The rows stay as they are.

As in w4a16 the product is outputs by tokens: weights become floats in registers, all of them exactly.
"""
from functools import partial

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..quantized import FP8_BLOCK, W8A16
from .chip import chip_of
from .product import INTERPRETED, converted, product
from .split_k import Sums
from .tile import Tile, tile_for
from .variant import TARGETS, Variant, meta

TILES = (
    Tile(tokens=16, outputs=128, inputs=128, warps=4, stages=4, fill=2),
    Tile(tokens=64, outputs=128, inputs=128, warps=4, stages=3, fill=1),
    Tile(tokens=128, outputs=128, inputs=64, warps=8, stages=3),
)


def w8a16(x: Tensor, weight: W8A16, bias: Tensor | None = None, *, invariant: bool = False) -> Tensor:
    """x [T, in] float16 or bfloat16, the matrix [out, in], bias [out] -> [T, out] of x's dtype.

    invariant: a row's sum is the same in any company.
    """
    tokens, (outputs, inputs) = x.shape[0], weight.shape
    x = x if x.stride(1) == 1 else x.contiguous()
    tile = tile_for(TILES, tokens, invariant=invariant)
    sums = Sums.of(x, tile, outputs, inputs, x.dtype)
    by_block = weight.scales.dim() == 2
    if tokens:
        _w8a16[sums.grid](
            x, weight.packed, weight.scales, bias if sums.whole else None, sums.parts, tokens, outputs, inputs // 4,
            x.stride(0), weight.scales.shape[1] if by_block else weight.scales.dim(), sums.steps,
            weight.dtype != torch.int8, by_block, inputs % tile.inputs == 0 and outputs % tile.outputs == 0,
            tile.tokens, tile.outputs, tile.inputs, FP8_BLOCK, num_warps=tile.warps,
            num_stages=tile.stages_on(chip_of(x), tile.inputs * (tile.tokens * x.itemsize + tile.outputs)),
        )
    return sums.added(bias)


@triton.jit
def _w8a16(
    x, packed, scales, bias, out, tokens, outputs, words_a_row, stride, scale_stride, steps, FP8: tl.constexpr,
    BY_BLOCK: tl.constexpr, EVEN: tl.constexpr, TOKENS: tl.constexpr, OUTPUTS: tl.constexpr, INPUTS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    output = tl.program_id(0) * OUTPUTS + tl.arange(0, OUTPUTS)
    token = tl.program_id(1) * TOKENS + tl.arange(0, TOKENS)
    split = tl.program_id(2)
    row = output if EVEN else tl.minimum(output, outputs - 1)  # what is read twice is not stored
    word = tl.arange(0, INPUTS // 4)[None, :]
    column = tl.arange(0, INPUTS // 2)[:, None]
    column = column // 8 * 16 + column % 8  # of plane 0; plane 1 is 8 further on
    packed += row.to(tl.int64)[:, None] * words_a_row + word
    x += tl.minimum(token, tokens - 1).to(tl.int64)[None, :] * stride + column
    total = tl.zeros((OUTPUTS, TOKENS), tl.float32)
    first, last = split * steps, tl.minimum((split + 1) * steps, tl.cdiv(words_a_row, INPUTS // 4))
    if BY_BLOCK:
        scales += tl.program_id(0) * OUTPUTS // BLOCK * scale_stride
        scale = tl.load(scales + first * INPUTS // BLOCK)
    for step in range(first, last):
        words_at = packed + step * (INPUTS // 4)
        words = tl.load(words_at) if EVEN else tl.load(words_at, step * (INPUTS // 4) + word < words_a_row, other=0)
        part = tl.zeros((OUTPUTS, TOKENS), tl.float32) if BY_BLOCK else total
        for plane in tl.static_range(2):
            x_at = x + step * INPUTS + 8 * plane
            inside = step * INPUTS + 8 * plane + column < words_a_row * 4
            x_tile = tl.load(x_at) if EVEN else tl.load(x_at, inside, other=0.0)
            part = product(_plane(words, plane, FP8, x.dtype.element_ty), x_tile, part)
        if BY_BLOCK:
            following = tl.load(scales + tl.minimum(step + 1, last - 1) * INPUTS // BLOCK)
            total += part * scale
            scale = following
        else:
            total = part
    if not BY_BLOCK:
        total *= tl.load(scales + row * scale_stride)[:, None]
    if bias is not None:
        total += tl.load(bias + row).to(tl.float32)[:, None]
    at = (split * tokens + token.to(tl.int64)[None, :]) * outputs + output[:, None]
    tl.store(out + at, converted(total, out.dtype.element_ty), (output < outputs)[:, None] & (token < tokens)[None, :])


@triton.jit
def _plane(words, PLANE: tl.constexpr, FP8: tl.constexpr, dtype: tl.constexpr):
    """The low (0) or high (1) byte of every half-word, exactly -> [outputs, 2 words].

    Two at a time, and by no instruction that converts: those are slow, and not every target knows float8_e4m3fn.
    """
    if FP8:
        # Exponent and fraction are moved to where dtype has them; what is left is to multiply by the biases' distance.
        DOWN: tl.constexpr = 4 if dtype == tl.bfloat16 else 1
        UNBIAS: tl.constexpr = 2.0 ** (120 if dtype == tl.bfloat16 else 8)
        high = words << 8 if PLANE == 0 else words
        return _halves(((high & 0x7F007F00) >> DOWN) | (high & -0x7FFF8000), dtype) * UNBIAS
    else:
        # Or'ed into the bits of 128 (bfloat16) or 1024 (float16), seven bits add their value and the sign adds 128.
        BITS: tl.constexpr = 0x43004300 if dtype == tl.bfloat16 else 0x64006400
        low = words >> 8 if PLANE == 1 else words
        return _halves((low & 0x007F007F) | BITS, dtype) - _halves((low & 0x00800080) | BITS, dtype)


@triton.jit
def _halves(pairs, dtype: tl.constexpr):
    """[outputs, words] int32 -> [outputs, 2 words]: each half's bits as dtype."""
    halves = tl.join(pairs.to(tl.int16), (pairs >> 16).to(tl.int16)).reshape(pairs.shape[0], pairs.shape[1] * 2)
    if INTERPRETED and dtype == tl.bfloat16:  # which it does not extend rightly where it is as small as here
        return (halves.to(tl.uint16, bitcast=True).to(tl.uint32) << 16).to(tl.float32, bitcast=True)
    floats = halves.to(dtype, bitcast=True)
    return floats.to(tl.float32) if INTERPRETED else floats


def _variants() -> tuple[Variant, ...]:
    """One matrix of Llama 8B, 4096 x 4096."""
    n = 4096

    def variant(
        name: str, tokens: int, dtype: torch.dtype, scales: Tensor, product: str | None = None,
        tested: tuple[str, ...] = TARGETS,
    ) -> Variant:
        weight, x = W8A16(meta(n, n // 4, dtype=torch.int32), scales, dtype), meta(tokens, n)
        return Variant(f"{tokens} x {n} x {n}, {name}", partial(w8a16, x, weight),
                       n * n + scales.nbytes + 2 * x.nbytes, 2 * tokens * n * n,
                       claims={"sm_90": product} if product else {}, tested=tested)

    channel, blocks = meta(n, dtype=torch.float32), meta(n // FP8_BLOCK, n // FP8_BLOCK, dtype=torch.float32)
    return (
        variant("int8", 16, torch.int8, channel),
        variant("fp8", 16, torch.float8_e4m3fn, channel, tested=("sm_90",)),
        variant("fp8 by block", 16, torch.float8_e4m3fn, blocks),
        variant("int8", 64, torch.int8, channel, "HGMMA", tested=("sm_90",)),
        variant("int8", 2048, torch.int8, channel, "HGMMA"),
        variant("fp8 by block", 2048, torch.float8_e4m3fn, blocks, "HGMMA"),
    )


VARIANTS = _variants()
