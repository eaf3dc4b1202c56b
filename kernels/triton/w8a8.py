"""w8a8: rows times a matrix, both int8 or both float8_e4m3fn, decode and prefill. Who makes the rows: quantise.py.

int8 is summed in integers, exactly. Products of fp8 are summed by some matrix units with few bits: each 128 inputs
are therefore added to a sum of float32.
"""
from functools import partial

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..quantized import FP8_BLOCK, W8A8, QuantizedRows
from .chip import chip_of
from .product import converted, product
from .split_k import Sums
from .tile import Tile, tile_for
from .variant import FP8_TARGETS, TARGETS, Variant, meta

TILES = (
    Tile(tokens=16, outputs=128, inputs=128, warps=4, stages=4, fill=2),
    Tile(tokens=64, outputs=128, inputs=128, warps=4, stages=3, fill=1),
    Tile(tokens=128, outputs=128, inputs=128, warps=8, stages=3),
)
BLOCK_TILES = (*TILES[:2], Tile(tokens=64, outputs=128, inputs=128, warps=8, stages=4))  # two sums are kept, not one


def w8a8(
    x: QuantizedRows, weight: W8A8, bias: Tensor | None = None, *, dtype: torch.dtype, invariant: bool = False
) -> Tensor:
    """x [T, in] and the matrix [out, in] of the same dtype, bias [out] -> [T, out] of `dtype`.

    The scales of both are by block, or neither's. invariant: a row's sum is the same in any company.
    """
    assert (weight.block is None) == (x.scales.dim() == 1) and x.values.dtype == weight.values.dtype
    tokens, (outputs, inputs) = x.values.shape[0], weight.shape
    tile = tile_for(BLOCK_TILES if weight.block else TILES, tokens, invariant=invariant)
    sums = Sums.of(x.values, tile, outputs, inputs, dtype)
    if tokens:
        _w8a8[sums.grid](
            x.values, weight.values, x.scales, weight.scales, bias if sums.whole else None, sums.parts, tokens,
            outputs, inputs, weight.scales.shape[1] if weight.block else weight.scales.dim(), sums.steps,
            weight.block is not None, inputs % tile.inputs == 0 and outputs % tile.outputs == 0,
            tile.tokens, tile.outputs, tile.inputs, FP8_BLOCK, num_warps=tile.warps,
            num_stages=tile.stages_on(chip_of(x.values), tile.inputs * (tile.tokens + tile.outputs)),
        )
    return sums.added(bias)


@triton.jit
def _w8a8(
    x, values, x_scales, scales, bias, out, tokens, outputs, inputs, scale_stride, steps, BY_BLOCK: tl.constexpr,
    EVEN: tl.constexpr, TOKENS: tl.constexpr, OUTPUTS: tl.constexpr, INPUTS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    output = tl.program_id(0) * OUTPUTS + tl.arange(0, OUTPUTS)
    token = tl.program_id(1) * TOKENS + tl.arange(0, TOKENS)
    split = tl.program_id(2)
    row = output if EVEN else tl.minimum(output, outputs - 1)  # what is read twice is not stored
    x_row = tl.minimum(token, tokens - 1)
    column = tl.arange(0, INPUTS)
    values += row.to(tl.int64)[:, None] * inputs + column[None, :]
    x += x_row.to(tl.int64)[None, :] * inputs + column[:, None]
    WHOLE: tl.constexpr = x.dtype.element_ty == tl.int8
    total = tl.zeros((OUTPUTS, TOKENS), tl.int32 if WHOLE else tl.float32)
    first, last = split * steps, tl.minimum((split + 1) * steps, tl.cdiv(inputs, INPUTS))
    if BY_BLOCK:
        scales += tl.program_id(0) * OUTPUTS // BLOCK * scale_stride
        x_scales += x_row * scale_stride
        scale = tl.load(x_scales + first * INPUTS // BLOCK) * tl.load(scales + first * INPUTS // BLOCK)
    for step in range(first, last):
        if EVEN:
            weights = tl.load(values + step * INPUTS)
            x_tile = tl.load(x + step * INPUTS)
        else:
            inside = step * INPUTS + column < inputs
            weights = tl.load(values + step * INPUTS, inside[None, :], other=0.0)
            x_tile = tl.load(x + step * INPUTS, inside[:, None], other=0.0)
        if WHOLE:
            total = tl.dot(weights, x_tile, total, out_dtype=tl.int32)
        elif BY_BLOCK:
            block = tl.minimum(step + 1, last - 1) * INPUTS // BLOCK
            following = tl.load(x_scales + block) * tl.load(scales + block)
            total += product(weights, x_tile) * scale[None, :]
            scale = following
        else:
            total += product(weights, x_tile)
    total = total.to(tl.float32)
    if not BY_BLOCK:
        total = total * tl.load(scales + row * scale_stride)[:, None] * tl.load(x_scales + x_row)[None, :]
    if bias is not None:
        total += tl.load(bias + row).to(tl.float32)[:, None]
    at = (split * tokens + token.to(tl.int64)[None, :]) * outputs + output[:, None]
    tl.store(out + at, converted(total, out.dtype.element_ty), (output < outputs)[:, None] & (token < tokens)[None, :])


def _variants() -> tuple[Variant, ...]:
    """One matrix of Llama 8B, 4096 x 4096."""
    n = 4096

    def variant(tokens: int, dtype: torch.dtype, product: str, *, by_block: bool = False) -> Variant:
        blocks = n // FP8_BLOCK
        scales = meta(blocks, blocks, dtype=torch.float32) if by_block else meta(n, dtype=torch.float32)
        x_scales = meta(tokens, blocks, dtype=torch.float32) if by_block else meta(tokens, dtype=torch.float32)
        x = QuantizedRows(meta(tokens, n, dtype=dtype), x_scales)
        weight = W8A8(meta(n, n, dtype=dtype), scales)
        name = "int8" if dtype == torch.int8 else "fp8 by block" if by_block else "fp8"
        return Variant(f"{tokens} x {n} x {n}, {name}", partial(w8a8, x, weight, dtype=torch.bfloat16),
                       n * n + 3 * tokens * n + scales.nbytes + x_scales.nbytes, 2 * tokens * n * n,
                       TARGETS if dtype == torch.int8 else FP8_TARGETS, {"sm_90": product})

    return (
        variant(16, torch.int8, "IGMMA"),
        variant(16, torch.float8_e4m3fn, "QGMMA"),
        variant(2048, torch.int8, "IGMMA"),
        variant(2048, torch.float8_e4m3fn, "QGMMA"),
        variant(2048, torch.float8_e4m3fn, "QGMMA", by_block=True),
    )


VARIANTS = _variants()
