"""Quantised weights and rows: their forms, how they are made and read back, and the products they define.

Plain PyTorch, on any device: what kernels/triton/ is measured against. Nothing here is fast, and how the files of
AWQ, GPTQ and GGUF are laid out is in quantized_files.py.
"""
from dataclasses import dataclass

import torch
from torch import Tensor

RUN = 32
"""Inputs packed together: byte j of a run's 16 holds input j in its low nibble and input 16 + j in its high one.

It is the order of GGUF's Q4_0 and Q4_1. A kernel takes low and high nibbles as two tiles that it never interleaves.
"""

FP8_BLOCK = 128
"""Outputs and inputs that share a scale in a block-quantised FP8 weight, and inputs that share one of its rows'."""

LARGEST = {torch.int8: 127, torch.float8_e4m3fn: 448}


@dataclass(frozen=True, slots=True)
class QuantizedRows:
    """x ≈ values * scales: values [T, n] int8 or float8_e4m3fn; scales float32 [T], or [T, n / FP8_BLOCK] by block."""

    values: Tensor
    scales: Tensor

    def dequantise(self) -> Tensor:
        """[T, n] float32."""
        values, scales = self.values.float(), self.scales
        if scales.dim() == 1:
            return values * scales[:, None]
        return values * scales.repeat_interleave(FP8_BLOCK, 1)[:, : values.shape[1]]


@dataclass(frozen=True, slots=True)
class Int4Weight:
    """A matrix [out, in] of 4-bit numbers 0 … 15 with a scale for each group of 32, 64 or 128 inputs, or more.

    packed: [out, in / 2] uint8, in the order that RUN says; in is a multiple of the group, the group of RUN.
    scales: [out, groups], float16 or float32.
    zeros: None: the weight is (q - 8) * scale. uint8 [out, groups]: (q - zero) * scale. Of the scales' dtype:
      q * scale + zero, which is how GGUF stores it.
    permutation: [in] int64 or None. Column i of the matrix multiplies x[:, permutation[i]]: GPTQ's act-order, with
      the columns sorted by group.
    """

    packed: Tensor
    scales: Tensor
    zeros: Tensor | None = None
    permutation: Tensor | None = None

    @property
    def shape(self) -> tuple[int, int]:
        return self.packed.shape[0], self.packed.shape[1] * 2

    @property
    def group(self) -> int:
        return self.shape[1] // self.scales.shape[1]

    def dequantise(self) -> Tensor:
        """[out, in] float32, the columns in the order of x."""
        q = unpack_int4(self.packed).view(*self.scales.shape, self.group).float()
        scales = self.scales.float()[..., None]
        if self.zeros is None:
            weight = (q - 8) * scales
        elif self.zeros.dtype == torch.uint8:
            weight = (q - self.zeros[..., None].float()) * scales
        else:
            weight = q * scales + self.zeros[..., None].float()
        weight = weight.view(self.shape)
        if self.permutation is None:
            return weight
        return torch.empty_like(weight).index_copy_(1, self.permutation, weight)


@dataclass(frozen=True, slots=True)
class ByteWeight:
    """A matrix [out, in] of 8-bit numbers with scales.

    values: [out, in], int8 or float8_e4m3fn. scales: float32: [] for the whole, [out], or for float8_e4m3fn one for
    each FP8_BLOCK x FP8_BLOCK outputs and inputs, [⌈out / FP8_BLOCK⌉, ⌈in / FP8_BLOCK⌉]; at the edges blocks are cut.
    quantised_rows: x is quantised too, to the dtype of `values`: by row, or where the scales are by block by row and
    FP8_BLOCK inputs. Else x stays as it is.
    """

    values: Tensor
    scales: Tensor
    quantised_rows: bool = False

    @property
    def shape(self) -> tuple[int, int]:
        return self.values.shape[0], self.values.shape[1]

    @property
    def by_block(self) -> bool:
        return self.scales.dim() == 2

    def dequantise(self) -> Tensor:
        """[out, in] float32."""
        values, scales = self.values.float(), self.scales
        if self.by_block:
            wide = scales.repeat_interleave(FP8_BLOCK, 0).repeat_interleave(FP8_BLOCK, 1)
            return values * wide[: values.shape[0], : values.shape[1]]
        return values * (scales[:, None] if scales.dim() else scales)


QuantizedWeight = Int4Weight | ByteWeight


def pack_int4(q: Tensor) -> Tensor:
    """[out, in] of 0 … 15 -> [out, in / 2] uint8 as RUN says; in is a multiple of RUN."""
    low, high = q.to(torch.uint8).unflatten(1, (-1, 2, RUN // 2)).unbind(2)
    return (low | high << 4).flatten(1)


def unpack_int4(packed: Tensor) -> Tensor:
    """[out, in / 2] uint8 -> [out, in] uint8, each 0 … 15."""
    runs = packed.unflatten(1, (-1, 1, RUN // 2))
    return torch.cat((runs & 15, runs >> 4), 2).flatten(1)


def quantise_int4(weight: Tensor, group: int, *, symmetric: bool = True) -> Int4Weight:
    """[out, in] rounded to the nearest of 16 numbers by group: for tests and benches, no calibration."""
    groups = weight.float().unflatten(1, (-1, group))
    if symmetric:
        scales = (groups.abs().amax(2) / 7).clamp_min(2.0**-14).half()
        zeros = None
        q = groups / scales[..., None].float() + 8
    else:
        low, high = groups.aminmax(dim=2)
        scales = ((high - low) / 15).clamp_min(2.0**-14).half()
        zeros = (-low / scales.float()).round().clamp(0, 15).to(torch.uint8)
        q = groups / scales[..., None].float() + zeros[..., None]
    return Int4Weight(pack_int4(q.round().clamp(0, 15).flatten(1)), scales, zeros)


def quantise_bytes(weight: Tensor, dtype: torch.dtype, *, by: str = "channel", quantised_rows: bool = False) -> ByteWeight:
    """[out, in] rounded to int8 or float8_e4m3fn with a scale by "tensor", "channel" or "block"."""
    weight = weight.float()
    if by == "block":
        out, width = (-(-n // FP8_BLOCK) * FP8_BLOCK for n in weight.shape)
        padded = weight.new_zeros(out, width)
        padded[: weight.shape[0], : weight.shape[1]] = weight
        largest = padded.unflatten(1, (-1, FP8_BLOCK)).unflatten(0, (-1, FP8_BLOCK)).abs().amax((1, 3))
    else:
        largest = weight.abs().amax(1) if by == "channel" else weight.abs().amax()
    scales = _scale_of(largest, dtype)
    unit = ByteWeight(torch.ones_like(weight), scales).dequantise()
    return ByteWeight(_rounded(weight / unit, dtype), scales, quantised_rows)


def quantise_rows(x: Tensor, dtype: torch.dtype, *, block: int | None = None) -> QuantizedRows:
    """x [T, n] to int8 or float8_e4m3fn: a row's (or a block's of it) largest number becomes the largest there is."""
    wide = x.float()
    parts = wide.unflatten(1, (1, -1)) if block is None else torch.nn.functional.pad(
        wide, (0, -wide.shape[1] % block)
    ).unflatten(1, (-1, block))
    scales = _scale_of(parts.abs().amax(2), dtype)
    values = _rounded(parts / scales[..., None], dtype).flatten(1)[:, : wide.shape[1]].contiguous()
    return QuantizedRows(values, scales.flatten() if block is None else scales)


def linear(x: Tensor | QuantizedRows, weight: QuantizedWeight, bias: Tensor | None = None) -> Tensor:
    """x [T, in] times the matrix transposed, plus bias [out] -> [T, out] float32, in float32 throughout."""
    if isinstance(x, Tensor) and isinstance(weight, ByteWeight) and weight.quantised_rows:
        x = quantise_rows(x, weight.values.dtype, block=FP8_BLOCK if weight.by_block else None)
    wide = x.dequantise() if isinstance(x, QuantizedRows) else x.float()
    return torch.nn.functional.linear(wide, weight.dequantise(), None if bias is None else bias.float())


def _scale_of(largest: Tensor, dtype: torch.dtype) -> Tensor:
    """A row of zeros gets a scale that is not zero, so that nothing is divided by it."""
    return largest.clamp_min(1e-12) / LARGEST[dtype]


def _rounded(x: Tensor, dtype: torch.dtype) -> Tensor:
    """To the nearest, ties to even; nothing is beyond the largest, however the division rounded."""
    limit = LARGEST[dtype]
    x = x.clamp(-limit, limit)
    return x.round().to(dtype) if dtype == torch.int8 else x.to(dtype)
