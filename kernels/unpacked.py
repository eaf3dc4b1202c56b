"""Mxfp4 and KeptRows: matrices in forms that no kernel multiplies, some rows of which become floats for each product.

Not those of quantized.py, which kernels/triton/ reads itself. For experts: a step needs few of them.
"""
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

BLOCK = 32
"""Inputs of an Mxfp4 matrix that share a scale."""

_E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)


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
        table = torch.tensor((*_E2M1, *(-number for number in _E2M1)), device=self.codes.device)
        halves = torch.stack((self.codes & 15, self.codes >> 4), -2)  # [out, blocks, half, 16]
        values = table[halves.int()].flatten(2)
        return torch.ldexp(values, self.scales.int()[..., None] - 127).flatten(1)

    def rows(self, first: int, end: int) -> "Mxfp4":
        """Some of its outputs, in the same memory."""
        return Mxfp4(self.codes[first:end], self.scales[first:end])

    def to(self, device: torch.device) -> "Mxfp4":
        return Mxfp4(self.codes.to(device), self.scales.to(device))


@dataclass(frozen=True, slots=True)
class KeptRows:
    """A matrix [out, in] on the CPU in a form that only its maker knows.

    make: (first, end) -> rows `first` up to `end` as float32 [end - first, in]. nbytes: that the matrix takes.
    """

    shape: tuple[int, int]
    make: Callable[[int, int], Tensor]
    nbytes: int

    def dequantise(self) -> Tensor:
        """[out, in] float32."""
        return self.make(0, self.shape[0])

    def rows(self, first: int, end: int) -> "KeptRows":
        """Some of its outputs, in the same memory."""
        end = min(end, self.shape[0])
        share = self.nbytes * (end - first) // max(1, self.shape[0])
        return KeptRows((end - first, self.shape[1]), lambda start, stop: self.make(first + start, first + stop), share)


def above(parts: Sequence[KeptRows]) -> KeptRows:
    """One matrix of several of the same width, one above the other."""

    def make(first: int, end: int) -> Tensor:
        made, start = [], 0
        for part in parts:
            own = max(first - start, 0), min(end - start, part.shape[0])
            if own[0] < own[1]:
                made.append(part.make(*own))
            start += part.shape[0]
        return made[0] if len(made) == 1 else torch.cat(made)

    rows, width = sum(part.shape[0] for part in parts), parts[0].shape[1]
    return KeptRows((rows, width), make, sum(part.nbytes for part in parts))
