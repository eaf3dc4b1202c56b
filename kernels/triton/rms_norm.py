"""rms_norm: a row's norm, with the residual added before and int8 or fp8 made of it after. No head's norm: store_kv."""
from functools import partial

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..quantized import LARGEST, QuantizedRows
from .product import converted
from .quantise import store_quantised
from .variant import FP8_TARGETS, TARGETS, Variant, meta

TILE = 4096  # numbers a program has in its registers: so many rows as fit, at least one


def rms_norm(
    x: Tensor, weight: Tensor, eps: float, *, residual: Tensor | None = None, out_dtype: torch.dtype | None = None
) -> Tensor | QuantizedRows:
    """As Ops.rms_norm. With out_dtype int8 or float8_e4m3fn the norm, not rounded before, as quantise_rows of it."""
    n = x.shape[-1]
    rows = x.reshape(-1, n)
    count = rows.shape[0]
    quantised = out_dtype is not None
    out = torch.empty(rows.shape, dtype=out_dtype or x.dtype, device=x.device)
    scales = torch.empty(count if quantised else 0, dtype=torch.float32, device=x.device)
    summed = rows if residual is None else residual.view(-1, n)
    width = triton.next_power_of_2(n)
    height = max(1, min(TILE // width, 16))
    if count:
        _rms_norm[(triton.cdiv(count, height),)](
            rows, summed, weight, out, scales, count, rows.stride(0), eps, 1 / n, n, height, width,
            residual is not None, LARGEST[out_dtype] if out_dtype else 0,
            num_warps=max(4, min(16, height * width // 1024)),
        )
    return QuantizedRows(out, scales) if quantised else out.view(x.shape)


@triton.jit
def _rms_norm(
    x, residual, weight, out, scales, count, stride, eps, inverse, n: tl.constexpr, HEIGHT: tl.constexpr,
    WIDTH: tl.constexpr, ADDED: tl.constexpr, LARGEST: tl.constexpr,
):
    row = tl.program_id(0) * HEIGHT + tl.arange(0, HEIGHT)[:, None]
    column = tl.arange(0, WIDTH)[None, :]
    mask = (row < count) & (column < n)
    at = row.to(tl.int64) * n + column
    numbers = tl.load(x + row.to(tl.int64) * stride + column, mask, other=0.0)
    if ADDED:
        numbers = numbers.to(tl.float32) + tl.load(residual + at, mask, other=0.0).to(tl.float32)
        numbers = converted(numbers, residual.dtype.element_ty)  # the norm is taken of what the residual holds
        tl.store(residual + at, numbers, mask)
    wide = numbers.to(tl.float32)
    mean = tl.sum(wide * (wide * inverse), 1)[:, None]  # divided first: the sum of large squares is no infinity
    normed = wide * tl.rsqrt(mean + eps) * tl.load(weight + column, column < n, other=0.0).to(tl.float32)
    if LARGEST:
        store_quantised(normed, out + at, scales + row, mask, row < count, LARGEST)
    else:
        tl.store(out + at, converted(normed, out.dtype.element_ty), mask)


def _variants() -> tuple[Variant, ...]:
    tokens, n = 64, 4096
    x, weight = meta(tokens, n), meta(n)
    read = x.nbytes + weight.nbytes
    norm = partial(rms_norm, x, weight, 1e-5)
    whole = (
        Variant("64 x 4096", norm, read + x.nbytes, 4 * x.numel()),
        Variant("64 x 4096, residual", partial(norm, residual=x), read + 3 * x.nbytes, 5 * x.numel()),
    )
    made = read + 2 * x.nbytes + x.numel() + 4 * tokens
    return *whole, *(
        Variant(f"64 x 4096, residual, to {name}", partial(norm, residual=x, out_dtype=dtype), made, 8 * x.numel(), on)
        for name, dtype, on in (("int8", torch.int8, TARGETS), ("fp8", torch.float8_e4m3fn, FP8_TARGETS))
    )


VARIANTS = _variants()
