"""GGUFWeights: the tensors of a GGUF file, as numbers or as the blocks that they are stored in. Not their table."""
import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from ..coded import Coded
from ..numbers import DTYPES, Numbers, Quantized, fill
from .blocks import block_format
from .header import TensorInfo
from .moved import BITS, moved

Values = TypeVar("Values", bound=np.generic)

_CHUNK_BYTES = 256 << 10  # of quantised blocks, made into float32 at a time


class GGUFWeights:
    """infos: by Hugging Face name. pairs: the heads of each tensor whose rows the file has as rotary pairs."""

    def __init__(self, path: Path, infos: Mapping[str, TensorInfo], pairs: Mapping[str, int]) -> None:
        self._path, self._pairs = path, pairs
        self._infos = dict(sorted(infos.items(), key=lambda item: item[1].offset))
        self.formats = {name: block_format(info.type).name for name, info in self._infos.items()}
        self.shapes = {name: info.shape for name, info in self._infos.items()}

    def read(self, name: str, rows: range | None = None) -> Numbers:
        whole, inside = self._heads(name, rows)
        dtype, values = read_numbers(self._path, self._infos[name], whole)
        return Numbers(dtype, self._in_halves(name, values)[inside])

    def bits(self, name: str) -> int | None:
        return BITS.get(self.formats[name]) if len(self.shapes[name]) == 2 else None

    def quantized(self, name: str, rows: range | None = None) -> Quantized | None:
        if self.bits(name) is None:
            return None
        kind, blocks = moved(self.formats[name], self._blocks(name, rows))
        return Quantized(kind, blocks, (len(blocks), self.shapes[name][1]))

    def blocks(self, name: str, rows: range | None = None) -> Quantized | None:
        if self.kept_bytes(name) is None:
            return None
        blocks = self._blocks(name, rows)
        return Quantized(self.formats[name], blocks, (len(blocks), self.shapes[name][1]))

    def kept_bytes(self, name: str) -> int | None:
        plain = self.formats[name] in DTYPES or len(self.shapes[name]) != 2
        return None if plain else self._infos[name].nbytes

    def _blocks(self, name: str, rows: range | None = None) -> NDArray[np.uint8]:
        """A quantised matrix as it lies in the file, [rows, blocks in a row, bytes of a block]."""
        info, block = self._infos[name], block_format(self._infos[name].type)
        columns = info.shape[1]
        whole, inside = self._heads(name, rows)
        blocks = np.empty((len(whole), columns // block.elements, block.nbytes), np.uint8)
        with self._path.open("rb") as file:
            file.seek(info.offset + whole.start * (info.nbytes // info.shape[0]))
            fill(file, self._path.name, blocks)
        return self._in_halves(name, blocks)[inside]

    def coded(self, name: str, rows: range | None = None) -> Coded | None:
        return None

    def _heads(self, name: str, rows: range | None) -> tuple[range, slice]:
        """The rows to read so that there are whole heads where those are in pairs, and which of them are wanted."""
        count = self.shapes[name][0]
        if rows is None:
            return range(count), slice(None)
        unit = count // self._pairs[name] if name in self._pairs else 1
        first = rows.start // unit * unit
        return range(first, -(-rows.stop // unit) * unit), slice(rows.start - first, rows.stop - first)

    def _in_halves(self, name: str, rows: NDArray[Values]) -> NDArray[Values]:
        """From rotary pairs, a head's rows being 0, d/2, 1, d/2 + 1 …, to the two halves one after the other."""
        if name not in self._pairs:
            return rows
        dim = self.shapes[name][0] // self._pairs[name]
        return rows.reshape(-1, dim // 2, 2, *rows.shape[1:]).swapaxes(1, 2).reshape(rows.shape)


def read_numbers(path: Path, info: TensorInfo, rows: range | None = None) -> Numbers:
    """As they lie in the file; quantised ones as float32, with no more than a chunk of blocks in memory beside them.

    rows: those of dimension 0 that are wanted, one after another; None: all.
    """
    block = block_format(info.type)
    rows = range(info.shape[0]) if rows is None else rows
    shape = (len(rows), *info.shape[1:])
    with path.open("rb") as file:
        file.seek(info.offset + rows.start * (info.nbytes // info.shape[0]))
        if block.parts is None:
            values = np.empty(shape, DTYPES[block.name])
            fill(file, path.name, values)
            return Numbers(block.name, values)
        floats = np.empty(shape, np.float32)
        parts = floats.reshape(-1, block.elements)
        step = max(1, _CHUNK_BYTES // block.nbytes)
        blocks = np.empty((min(step, len(parts)), block.nbytes), np.uint8)
        for start in range(0, len(parts), step):
            part = blocks[: len(parts) - start]
            fill(file, path.name, part)
            with np.errstate(all="ignore"):  # a scale that is no number shows in the logits, where a row can fail alone
                parts[start : start + len(part)] = block.dequantise(part)
    return Numbers("F32", floats)


def sample_digest(path: Path, infos: Mapping[str, TensorInfo], header: str) -> str:
    """Two fine-tunes can have the same header, so the first bytes of every tensor count too. In hexadecimal."""
    digest = hashlib.sha256(header.encode())
    with path.open("rb") as file:
        for name, info in sorted(infos.items()):
            file.seek(info.offset)
            digest.update(name.encode() + file.read(min(info.nbytes, 4096)))
    return digest.hexdigest()
