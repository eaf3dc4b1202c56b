"""kv_codes: what keys and values are rounded to in a cache's dtype, and what they are read as. Not where they lie.

In 8 bits (int8, or float8_e4m3fn: 4 bits of exponent, 3 of mantissa) every token's key and value has a scale of its
own in every head: the largest magnitude over 127 or 448. No calibration, no range that a prompt can leave, and a
block's scales never change once it is full. They are float32: head_dim + 4 bytes a token and head.
"""
import torch
from torch import Tensor

LARGEST = {torch.int8: 127.0, torch.float8_e4m3fn: 448.0}
SMALLEST = 1e-30  # a vector whose largest magnitude is below is zero: the reciprocal of its scale would be infinite
SCALE_BYTES = 4


def quantise(x: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """[..., n] -> codes [..., n] and scales [...] float32, with x close to codes * scales.

    Of a vector that holds what is not a finite number the scale is not-a-number and the codes are 0: what is broken
    stays visible, and stays where it is.
    """
    wide = x.float()
    finite = wide.isfinite().all(-1)
    wide = wide.where(finite[..., None], 0)
    largest = wide.abs().amax(-1)
    whole = torch.full_like(largest, LARGEST[dtype])  # a number by a tensor would be multiplied by the reciprocal
    factor = torch.where(largest > SMALLEST, whole / largest, 0)
    codes = wide * factor[..., None]
    scales = (largest * (1 / LARGEST[dtype])).where(finite, torch.nan)
    return (codes.round() if dtype == torch.int8 else codes).to(dtype), scales


def dequantise(codes: Tensor, scales: Tensor) -> Tensor:
    """The float32 numbers that codes [..., n] and scales [...] stand for."""
    return codes.float() * scales[..., None]


def as_moved(cache: Tensor) -> Tensor:
    """The same memory in a dtype that can be gathered and scattered on every device: of 8 bits, bytes."""
    return cache.view(torch.uint8) if cache.dtype in LARGEST else cache


def stored(x: Tensor, dtype: torch.dtype) -> Tensor:
    """[..., n] as a cache of this dtype keeps it: [..., n], or of 8 bits [..., n + 4] bytes, codes and their scale."""
    if dtype not in LARGEST:
        return x.to(dtype)
    codes, scales = quantise(x, dtype)
    return torch.cat((codes.view(torch.uint8), scales[..., None].view(torch.uint8)), -1)


def read(kept: Tensor, dtype: torch.dtype, wanted: torch.dtype) -> Tensor:
    """What `stored` made for a cache of `dtype` as numbers [..., n] of the dtype that is wanted."""
    if dtype not in LARGEST:
        return kept.to(wanted)
    codes, scales = kept[..., :-SCALE_BYTES], kept[..., -SCALE_BYTES:].contiguous()
    return dequantise(codes.view(dtype), scales.view(torch.float32).squeeze(-1)).to(wanted)
