"""quantise: rows of numbers to int8 or fp8, each row with its own scale: alone, and as the end of another kernel."""
from functools import partial

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..quantized import FP8_BLOCK, LARGEST, QuantizedRows
from .product import INTERPRETED
from .variant import FP8_TARGETS, Variant, meta

ROUNDER = tl.constexpr(12582912.0)  # 1.5 * 2²³: added and taken away again, it leaves the nearest whole number


@triton.jit
def store_quantised(x, at, scales_at, mask, scales_mask, LARGEST: tl.constexpr):
    """x [rows, columns] float32, 0 where masked, to `at`, and scales [rows, 1], as kernels/quantized.py defines it."""
    scale = tl.maximum(tl.max(tl.abs(x), 1)[:, None], 1e-12) / LARGEST
    scale += tl.sum(x * 0.0, 1)[:, None]  # not a number where x holds something that is not finite: it stays seen
    scaled = tl.minimum(tl.maximum(x / scale, -LARGEST), LARGEST)
    if at.dtype.element_ty == tl.int8:
        scaled = (scaled + ROUNDER) - ROUNDER  # ties to even
    elif INTERPRETED:
        scaled = _of_four_bits(scaled)
    tl.store(at, scaled.to(at.dtype.element_ty), mask)
    tl.store(scales_at, scale, scales_mask)


@triton.jit
def _of_four_bits(x):
    """float32 rounded to what float8_e4m3fn holds, ties to even: the interpreter's own conversion rounds wrongly."""
    bits = x.to(tl.uint32, bitcast=True)
    normal = ((bits + 0x7FFFF + ((bits >> 20) & 1)) & 0xFFF00000).to(tl.float32, bitcast=True)
    tiny = (x + ROUNDER / 512) - ROUNDER / 512  # a multiple of 2⁻⁹, below 2⁻⁶
    return tl.where(tl.abs(x) < 0.015625, tiny, normal)


def quantise_rows(x: Tensor, dtype: torch.dtype, *, block: int | None = None) -> QuantizedRows:
    """x [T, n] to int8 or float8_e4m3fn by row, or by row and `block` of its numbers, as kernels/quantized.py says."""
    count, n = x.shape
    x = x if x.stride(1) == 1 else x.contiguous()
    values = torch.empty(count, n, dtype=dtype, device=x.device)
    parts = 1 if block is None else triton.cdiv(n, block)
    scales = torch.empty((count,) if block is None else (count, parts), dtype=torch.float32, device=x.device)
    part = n if block is None else block
    if count:
        _quantise[(count, parts)](
            x, values, scales, n, x.stride(0), part, triton.next_power_of_2(part), LARGEST[dtype],
            num_warps=max(1, min(16, part // 512)),
        )
    return QuantizedRows(values, scales)


@triton.jit
def _quantise(x, values, scales, n, stride, PART: tl.constexpr, WIDTH: tl.constexpr, LARGEST: tl.constexpr):
    row, part = tl.program_id(0).to(tl.int64), tl.program_id(1)
    inside = tl.arange(0, WIDTH)[None, :]
    column = part * PART + inside
    mask = (inside < PART) & (column < n)
    numbers = tl.load(x + row * stride + column, mask, other=0.0).to(tl.float32)
    at = tl.arange(0, 1)[:, None] + row * tl.num_programs(1) + part
    store_quantised(numbers, values + row * n + column, scales + at, mask, at >= 0, LARGEST)


def _variants() -> tuple[Variant, ...]:
    x = meta(64, 4096)
    moved = 3 * x.numel()
    return (
        Variant("64 x 4096 to int8", partial(quantise_rows, x, torch.int8), moved, 3 * x.numel()),
        Variant(
            "64 x 4096 to fp8 by block", partial(quantise_rows, x, torch.float8_e4m3fn, block=FP8_BLOCK), moved,
            3 * x.numel(), FP8_TARGETS,
        ),
    )


VARIANTS = _variants()
