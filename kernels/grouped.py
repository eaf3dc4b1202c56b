"""Grouped: a matrix of whole numbers of a few bits with scales for groups of inputs, as files have it. No kernel of it.

For the CPU, whose products are of floats: some rows become those at a time, and are in the processor's cache until they
are multiplied. All lies so that this takes few operations on long rows. A file's layout is not known here.
"""
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

Change = Callable[[Tensor], Tensor]


@dataclass(frozen=True, slots=True)
class Ints:
    """Whole numbers 0 … 2^bits - 1, [rows, count].

    planes: uint8 [rows, …], for each power of two that `bits` is the sum of, the largest first: so many bits of every
    number, the lowest ones in the first plane. Where that is w bits, byte j of n holds numbers j, n + j, 2 n + j …
    """

    bits: int
    count: int
    planes: tuple[Tensor, ...]

    @staticmethod
    def widths(bits: int) -> list[int]:
        return [width for width in (8, 4, 2, 1) if bits & width]

    @classmethod
    def packed(cls, numbers: Tensor, bits: int) -> "Ints":
        """numbers: uint8 [rows, count]."""
        planes, shift = [], 0
        for width in cls.widths(bits):
            own = numbers >> shift & (1 << width) - 1
            own = torch.nn.functional.pad(own, (0, -own.shape[1] % (8 // width)))
            parts = own.chunk(8 // width, 1)
            plane = parts[0].clone()
            for number, part in enumerate(parts[1:], 1):
                plane |= part << number * width
            planes.append(plane)
            shift += width
        return cls(bits, numbers.shape[1], tuple(planes))

    def unpacked(self) -> Tensor:
        """uint8 [rows, count]."""
        found, shift = None, 0
        for width, plane in zip(self.widths(self.bits), self.planes, strict=True):
            mask, last = (1 << width) - 1, 8 - width
            parts = [(plane >> at if at else plane) & mask if at < last else plane >> at for at in range(0, 8, width)]
            own = plane if width == 8 else torch.cat(parts, 1)[:, : self.count]
            found = own if found is None else found | own << shift
            shift += width
        assert found is not None
        return found

    def changed(self, change: Change) -> "Ints":
        return replace(self, planes=tuple(map(change, self.planes)))


@dataclass(frozen=True, slots=True)
class Scales:
    """A number for each group of a row, [rows, groups]: floats, or (step - middle) times one of them.

    floats: [rows, n] of any float dtype. steps: [rows, groups], `groups / n` of them to a float; None: groups is n.
    """

    floats: Tensor
    steps: Ints | None = None
    middle: int = 0

    @property
    def groups(self) -> int:
        return self.floats.shape[1] if self.steps is None else self.steps.count

    def float32(self) -> Tensor:
        """[rows, groups]."""
        if self.steps is None:
            return self.floats.float()
        steps = self.steps.unpacked().float()
        if self.middle:
            steps -= self.middle
        return (steps.view(*self.floats.shape, -1) * self.floats[..., None].float()).flatten(1)

    def tensors(self) -> list[Tensor]:
        return [self.floats] if self.steps is None else [self.floats, *self.steps.planes]

    def changed(self, change: Change) -> "Scales":
        steps = None if self.steps is None else self.steps.changed(change)
        return replace(self, floats=change(self.floats), steps=steps)


@dataclass(frozen=True, slots=True)
class Grouped:
    """weight[o, i] = (codes[o, i] - zeros) * scales[o, g] + low[o, g], each result rounded to float32; g: i's group.

    zeros: for all, or int16 [out, groups]. low: None: none. table: float32 [2^bits], what codes stand for, instead.
    groups: int32 [in], where they are scattered or not of one size; None: they follow one another.
    """

    codes: Ints
    scales: Scales
    low: Scales | None = None
    zeros: Tensor | int = 0
    table: Tensor | None = None
    groups: Tensor | None = None

    @property
    def shape(self) -> tuple[int, int]:
        return self.codes.planes[0].shape[0], self.codes.count

    @property
    def nbytes(self) -> int:
        """That it takes, but for the table, which all matrices of a format have together."""
        return sum(own.nbytes for own in self._tensors()) + (0 if self.groups is None else self.groups.nbytes)

    def dequantise(self) -> Tensor:
        """[out, in] float32."""
        codes = self.codes.unpacked()
        if self.table is not None:
            values = self.table.index_select(0, codes.flatten().long()).view(codes.shape)
        elif isinstance(self.zeros, int):
            values = (codes - self.zeros).view(torch.int8).float() if self.zeros else codes.float()
        else:
            values = codes.float()
        parts = values if self.groups is not None else values.view(len(values), self.scales.groups, -1)
        if isinstance(self.zeros, Tensor):
            parts -= self._spread(self.zeros.float())
        parts *= self._spread(self.scales.float32())
        if self.low is not None:
            parts += self._spread(self.low.float32())
        return values

    def rows(self, first: int, end: int) -> "Grouped":
        """Some of its outputs, in the same memory."""
        return self._changed(lambda own: own[first:end])

    def take(self, outputs: Tensor) -> "Grouped":
        """outputs: int64 [n] -> those, copied."""
        return self._changed(lambda own: own.index_select(0, outputs))

    def room(self, outputs: int) -> "Grouped":
        """A matrix of the same form and so many outputs, which are anything yet."""
        return self._changed(lambda own: own.new_empty(outputs, *own.shape[1:]))

    def put(self, first: int, part: "Grouped") -> None:
        """Writes outputs from `first` on. `part`: of the same form."""
        for own, values in zip(self._tensors(), part._tensors(), strict=True):
            own[first : first + len(values)] = values

    def _spread(self, numbers: Tensor) -> Tensor:
        """[out, groups] -> what is broadcast to each group's inputs, or to all inputs."""
        return numbers[..., None] if self.groups is None else numbers.index_select(1, self.groups)

    def _tensors(self) -> list[Tensor]:
        """Those that have a row for each output."""
        scales = [self.scales] if self.low is None else [self.scales, self.low]
        zeros = [self.zeros] if isinstance(self.zeros, Tensor) else []
        return [*self.codes.planes, *(tensor for own in scales for tensor in own.tensors()), *zeros]

    def _changed(self, change: Change) -> "Grouped":
        """With what `change` makes of each of them."""
        return replace(
            self, codes=self.codes.changed(change), scales=self.scales.changed(change),
            low=None if self.low is None else self.low.changed(change),
            zeros=change(self.zeros) if isinstance(self.zeros, Tensor) else self.zeros,
        )


@dataclass(frozen=True, slots=True)
class Stacked:
    """Matrices of the same width, one above the other, each in a form of its own."""

    parts: tuple[Grouped, ...]

    @property
    def shape(self) -> tuple[int, int]:
        return sum(part.shape[0] for part in self.parts), self.parts[0].shape[1]

    @property
    def nbytes(self) -> int:
        return sum(part.nbytes for part in self.parts)

    def dequantise(self) -> Tensor:
        """[out, in] float32."""
        return torch.cat([part.dequantise() for part in self.parts])
