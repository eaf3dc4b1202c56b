"""Quantised weights and rows: their forms, how they are made and read back, and the products they define.

Plain PyTorch, on any device: what kernels/triton/ is measured against. Nothing here is fast, and no file's
layout is known: GGUF's is quantized_gguf.py's, and those of AWQ and GPTQ are engine/loading's.
"""
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

RUN = 32
"""Inputs packed together, in 16 bytes: nibble i (from the lowest) of half-word j of 8 holds input 8 i + j.

So nibble i of every half-word makes a tile of its own, plane i, whose inputs lie in pieces of 8: a kernel makes two
numbers at a time of a word, with one shift and one mask, and never puts nibbles in another order.
"""

BYTE_RUN = 16
"""The same of 8-bit numbers: half-word j of 8 holds input j in its low byte and input 8 + j in its high one."""

FP8_BLOCK = 128
"""Outputs and inputs that share a scale in a block-quantised FP8 weight, and inputs that share one of its rows'."""

ROWS_AT_ONCE = 1 << 22
"""Numbers of a matrix that are rounded, or made floats again, at a time."""

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
class W4A16:
    """A matrix [out, in] of 4-bit numbers 0 … 15 with a scale for each group of 32, 64 or a multiple of 128 inputs.

    packed: [out, in / 8] int32, little-endian, in the order that RUN says; in is a multiple of the group.
    scales: [groups, out], float16 or float32.
    zeros: None: the weight is (q - 8) * scale. uint8 [groups, out]: (q - zero) * scale. Of the scales' dtype:
      q * scale + zero, as GGUF has it.
    permutation: [in] int64 or None. Column i of the matrix multiplies x[:, permutation[i]]: GPTQ's act-order, with
      the columns sorted by group.
    """

    packed: Tensor
    scales: Tensor
    zeros: Tensor | None = None
    permutation: Tensor | None = None

    @property
    def shape(self) -> tuple[int, int]:
        return self.packed.shape[0], self.packed.shape[1] * 8

    @property
    def group(self) -> int:
        return self.shape[1] // self.scales.shape[0]

    def dequantise(self) -> Tensor:
        """[out, in] float32, the columns in the order of x."""
        q: Tensor = unpack_int4(self.packed).float().view(self.shape[0], -1, self.group)
        scales = self.scales.float().T[..., None]
        if self.zeros is None:
            weight = (q - 8) * scales
        else:
            zeros = self.zeros.float().T[..., None]
            weight = (q - zeros) * scales if self.zeros.dtype == torch.uint8 else q * scales + zeros
        weight = weight.view(self.shape)
        if self.permutation is None:
            return weight
        return torch.empty_like(weight).index_copy_(1, self.permutation, weight)

    def rows(self, first: int, end: int) -> "W4A16":
        """Some of its outputs, in the same memory."""
        zeros = None if self.zeros is None else self.zeros[:, first:end]
        return W4A16(self.packed[first:end], self.scales[:, first:end], zeros, self.permutation)

    def to(self, device: torch.device) -> "W4A16":
        zeros, permutation = (None if x is None else x.to(device) for x in (self.zeros, self.permutation))
        return W4A16(self.packed.to(device), self.scales.to(device), zeros, permutation)


@dataclass(frozen=True, slots=True)
class W8A16:
    """A matrix [out, in] of 8-bit numbers with scales, for rows that stay floats.

    packed: [out, in / 4] int32, little-endian, in the order that BYTE_RUN says; in is a multiple of it.
    scales: float32: [] for the whole, [out], or one for each FP8_BLOCK x FP8_BLOCK outputs and inputs,
      [⌈out / FP8_BLOCK⌉, ⌈in / FP8_BLOCK⌉]; at the edges blocks are cut.
    dtype: of the numbers, int8 or float8_e4m3fn.
    """

    packed: Tensor
    scales: Tensor
    dtype: torch.dtype

    @property
    def shape(self) -> tuple[int, int]:
        return self.packed.shape[0], self.packed.shape[1] * 4

    def dequantise(self) -> Tensor:
        """[out, in] float32."""
        return _scaled(unpack_bytes(self.packed, self.dtype), self.scales)

    def rows(self, first: int, end: int) -> "W8A16":
        """Some of its outputs, in the same memory; where scales are by block, from the beginning of one."""
        return W8A16(self.packed[first:end], _scales_of(self.scales, first, end), self.dtype)

    def to(self, device: torch.device) -> "W8A16":
        return W8A16(self.packed.to(device), self.scales.to(device), self.dtype)


@dataclass(frozen=True, slots=True)
class W8A8:
    """A matrix [out, in] of 8-bit numbers with scales, for rows of the same dtype.

    values: [out, in], int8 or float8_e4m3fn. scales: as W8A16's. Where they are by block, so are the rows'.
    """

    values: Tensor
    scales: Tensor

    @property
    def shape(self) -> tuple[int, int]:
        return self.values.shape[0], self.values.shape[1]

    @property
    def block(self) -> int | None:
        """Inputs that share a scale of the rows; None: all of them."""
        return FP8_BLOCK if self.scales.dim() == 2 else None

    def dequantise(self) -> Tensor:
        """[out, in] float32."""
        return _scaled(self.values, self.scales)

    def rows(self, first: int, end: int) -> "W8A8":
        """As W8A16's."""
        return W8A8(self.values[first:end], _scales_of(self.scales, first, end))

    def for_floats(self) -> W8A16:
        """The same matrix for rows that stay floats; in is a multiple of BYTE_RUN."""
        return W8A16(pack_bytes(self.values), self.scales, self.values.dtype)


QuantizedWeight = W4A16 | W8A16 | W8A8


def pack_int4(q: Tensor) -> Tensor:
    """[out, in] of 0 … 15 -> [out, in / 8] int32 as RUN says; in is a multiple of RUN."""
    planes = q.to(torch.int32).reshape(q.shape[0], -1, 4, 4, 2)  # [out, runs, plane, word, half of it]
    shifts = torch.arange(0, 16, 4, device=q.device)[:, None, None] + torch.tensor([0, 16], device=q.device)
    return (planes << shifts).sum((2, 4), dtype=torch.int32).flatten(1)


def unpack_int4(packed: Tensor) -> Tensor:
    """[out, in / 8] int32 -> [out, in] uint8, each 0 … 15."""
    words = packed.view(packed.shape[0], -1, 1, 4, 1)
    shifts = torch.arange(0, 16, 4, device=packed.device)[:, None, None] + torch.tensor([0, 16], device=packed.device)
    return (words >> shifts & 15).to(torch.uint8).flatten(1)


def quantise_int4(weight: Tensor, group: int, *, symmetric: bool = True) -> W4A16:
    """[out, in] rounded to the nearest of 16 numbers by group: for tests and benches, no calibration."""
    groups = weight.float().reshape(weight.shape[0], -1, group)
    low, high = groups.aminmax(dim=2)
    if symmetric:
        scales = (torch.maximum(-low / 8, high / 7)).clamp_min(2.0**-14).half()
        zeros = torch.full_like(scales, 8)
    else:
        scales = ((high - low) / 15).clamp_min(2.0**-14).half()
        zeros = (-low / scales.float()).round().clamp(0, 15)
    q = (groups / scales[..., None].float() + zeros[..., None]).round().clamp(0, 15).flatten(1)
    kept = None if symmetric else zeros.to(torch.uint8).T.contiguous()
    return W4A16(pack_int4(q), scales.T.contiguous(), kept)


def pack_bytes(values: Tensor) -> Tensor:
    """[out, in] of 8-bit numbers -> [out, in / 4] int32 as BYTE_RUN says; in is a multiple of it."""
    planes = values.view(torch.uint8).reshape(values.shape[0], -1, 2, 8)  # [out, runs, plane, half-word]
    return planes.transpose(2, 3).contiguous().flatten(1).view(torch.int32)


def unpack_bytes(packed: Tensor, dtype: torch.dtype) -> Tensor:
    """[out, in / 4] int32 -> [out, in] of dtype."""
    return packed.view(torch.uint8).view(packed.shape[0], -1, 8, 2).transpose(2, 3).flatten(1).view(dtype)


def quantise_bytes(weight: Tensor, dtype: torch.dtype, *, by: str = "channel") -> W8A8:
    """[out, in] rounded to int8 or float8_e4m3fn with a scale by "tensor", "channel" or "block"."""
    weight = weight.float()
    if by == "block":
        padded = F.pad(weight, (0, -weight.shape[1] % FP8_BLOCK, 0, -weight.shape[0] % FP8_BLOCK))
        down, across = (n // FP8_BLOCK for n in padded.shape)
        largest = padded.view(down, FP8_BLOCK, across, FP8_BLOCK).abs().amax((1, 3))
    else:
        largest = weight.abs().amax(1) if by == "channel" else weight.abs().amax()
    scales = _scale_of(largest, dtype)
    return W8A8(_rounded(weight / _scaled(torch.ones_like(weight), scales), dtype), scales)


def quantise_rows(x: Tensor, dtype: torch.dtype, *, block: int | None = None) -> QuantizedRows:
    """x [T, n] to int8 or float8_e4m3fn: a row's (or a block's of it) largest number becomes the largest there is."""
    wide = x.float()
    parts = wide[:, None]
    if block is not None:
        blocks = -(-wide.shape[1] // block)
        parts = F.pad(wide, (0, blocks * block - wide.shape[1])).view(len(wide), blocks, block)
    scales = _scale_of(parts.abs().amax(2), dtype)
    values = _rounded(parts / scales[..., None], dtype).flatten(1)[:, : wide.shape[1]].contiguous()
    return QuantizedRows(values, scales.flatten() if block is None else scales)


def linear(x: Tensor | QuantizedRows, weight: QuantizedWeight, bias: Tensor | None = None) -> Tensor:
    """x [T, in] times the matrix transposed, plus bias [out] -> [T, out] float32, in float32 throughout."""
    if isinstance(x, Tensor) and isinstance(weight, W8A8):
        x = quantise_rows(x, weight.values.dtype, block=weight.block)
    wide = x.dequantise() if isinstance(x, QuantizedRows) else x.float()
    return F.linear(wide, weight.dequantise(), None if bias is None else bias.float())


def _scales_of(scales: Tensor, first: int, end: int) -> Tensor:
    if scales.dim() == 2:
        return scales[first // FP8_BLOCK : -(-end // FP8_BLOCK)]
    return scales[first:end] if scales.dim() else scales


def _scaled(values: Tensor, scales: Tensor) -> Tensor:
    """[out, in] times scales for the whole, by output or by block, float32."""
    if scales.dim() < 2:
        return values.float() * (scales[:, None] if scales.dim() else scales)
    wide = scales.repeat_interleave(FP8_BLOCK, 0).repeat_interleave(FP8_BLOCK, 1)
    return values.float() * wide[: values.shape[0], : values.shape[1]]


def _scale_of(largest: Tensor, dtype: torch.dtype) -> Tensor:
    """A row of zeros gets a scale that is not zero, so that nothing is divided by it."""
    return largest.clamp_min(1e-12) / LARGEST[dtype]


def _rounded(x: Tensor, dtype: torch.dtype) -> Tensor:
    """To the nearest, ties to even; nothing is beyond the largest, however the division rounded."""
    limit = LARGEST[dtype]
    x = x.clamp(-limit, limit)
    return x.round().to(dtype) if dtype == torch.int8 else x.to(dtype)
