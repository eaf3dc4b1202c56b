"""Mxfp4: matrices in a form that no kernel multiplies, some rows of which become floats for each product.

Not those of quantized.py, which kernels/triton/ reads itself. For experts: a step needs few of them.
"""
from dataclasses import dataclass

import torch
from torch import Tensor

BLOCK = 32
"""Inputs of an Mxfp4 matrix that share a scale."""

_TWICE = (0.0, 1.0, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0)  # the numbers of E2M1, so that no power of two is beyond float32


@dataclass(frozen=True, slots=True)
class Mxfp4:
    """A matrix [out, in] of E2M1 numbers, a power of two for each BLOCK inputs (OCP Microscaling Formats 1.0).

    codes: uint8 [out, in / 32, 16]: byte j of a block holds input j in its low half and input 16 + j in its high one.
    scales: uint8 [out, in / 32]: the exponent, and 127. in is a multiple of BLOCK.
    """

    codes: Tensor
    scales: Tensor

    @property
    def shape(self) -> tuple[int, int]:
        return self.codes.shape[0], self.codes.shape[1] * BLOCK

    @property
    def nbytes(self) -> int:
        return self.codes.nbytes + self.scales.nbytes

    def dequantise(self) -> Tensor:
        """[out, in] float32; exact, and so in bfloat16 too."""
        table = torch.tensor((*_TWICE, *(-number for number in _TWICE)), device=self.codes.device)
        halves = torch.stack((self.codes & 15, self.codes >> 4), -2)  # [out, blocks, half, 16]
        values = table.index_select(0, halves.flatten().long()).view(*self.scales.shape, BLOCK)
        powers = torch.ldexp(torch.ones_like(self.scales, dtype=torch.float32), self.scales.int() - 128)
        return values.mul_(powers[..., None]).flatten(1)

    def rows(self, first: int, end: int) -> "Mxfp4":
        """Some of its outputs, in the same memory."""
        return Mxfp4(self.codes[first:end], self.scales[first:end])

    def take(self, outputs: Tensor) -> "Mxfp4":
        """outputs: int64 [n] -> those, copied."""
        return Mxfp4(self.codes[outputs], self.scales[outputs])

    def to(self, device: torch.device) -> "Mxfp4":
        return Mxfp4(self.codes.to(device), self.scales.to(device))
