"""Held: a matrix in memory as its file has it, whose rows become floats when they are asked for. It opens no file."""
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from .gguf import BlockFormat
from .numbers import Floats, spans
from .safetensors import SafetensorsFile

SOME = 1 << 18  # numbers of blocks that are made at a time: what comes between stays in the processor's cache


class Held(Protocol):
    """shape: [out, in]. nbytes: that it takes."""

    @property
    def shape(self) -> tuple[int, int]: ...

    @property
    def nbytes(self) -> int: ...

    def float32(self, rows: range) -> Floats:
        """[rows, in], exactly what the file stands for."""


@dataclass(frozen=True, slots=True)
class HeldBlocks:
    """blocks: uint8 [out, blocks in a row, bytes of a block], of a quantised GGUF type. Implements Held."""

    format: BlockFormat
    blocks: NDArray[np.uint8]

    @property
    def shape(self) -> tuple[int, int]:
        return self.blocks.shape[0], self.blocks.shape[1] * self.format.elements

    @property
    def nbytes(self) -> int:
        return self.blocks.nbytes

    def float32(self, rows: range) -> Floats:
        assert self.format.dequantise is not None
        columns = self.shape[1]
        floats = np.empty((len(rows), columns), np.float32)
        for part in spans(rows, columns, SOME):
            blocks = self.blocks[part.start : part.stop].reshape(-1, self.format.nbytes)
            with np.errstate(all="ignore"):  # a scale that is no number shows in the logits
                made = self.format.dequantise(blocks)
            floats[part.start - rows.start : part.stop - rows.start] = made.reshape(len(part), columns)
        return floats


@dataclass(frozen=True, slots=True)
class HeldTensors(SafetensorsFile):
    """Some tensors of a file, by their names, that are in memory."""

    arrays: Mapping[str, NDArray[Any]]

    def array(self, name: str, rows: range | None = None, columns: range | None = None) -> NDArray[Any]:
        values = self.arrays[name]
        if rows is not None:
            values = values[rows.start : rows.stop]
        return values if columns is None else values[:, columns.start : columns.stop]
