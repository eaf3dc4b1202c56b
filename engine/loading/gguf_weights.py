"""GGUFWeights: the tensors of a GGUF file, as numbers or as the blocks they are stored in. Not the header (gguf.py)."""
import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from .gguf import TensorInfo
from .gguf_blocks import block_format
from .numbers import BLOCK_QUANTISED, DTYPES, Numbers, Quantized, fill

Values = TypeVar("Values", bound=np.generic)

_CHUNK_BYTES = 256 << 10  # of quantised blocks, made into float32 at a time


class GGUFWeights:
    """infos: by Hugging Face name. pairs: the heads of each tensor whose rows the file has as rotary pairs."""

    def __init__(self, path: Path, infos: Mapping[str, TensorInfo], pairs: Mapping[str, int]) -> None:
        self._path, self._pairs = path, pairs
        self._infos = dict(sorted(infos.items(), key=lambda item: item[1].offset))
        self.formats = {name: block_format(info.type).name for name, info in self._infos.items()}

    def read(self, name: str) -> Numbers:
        dtype, values = read_numbers(self._path, self._infos[name])
        return Numbers(dtype, self._in_halves(name, values))

    def quantized(self, name: str) -> Quantized | None:
        info, block = self._infos[name], block_format(self._infos[name].type)
        if block.name not in BLOCK_QUANTISED or len(info.shape) != 2:
            return None
        rows, columns = info.shape
        blocks = np.empty((rows, columns // block.elements, block.nbytes), np.uint8)
        with self._path.open("rb") as file:
            file.seek(info.offset)
            fill(file, self._path.name, blocks)
        return Quantized(block.name, self._in_halves(name, blocks), info.shape)

    def _in_halves(self, name: str, rows: NDArray[Values]) -> NDArray[Values]:
        """From rotary pairs, a head's rows being 0, d/2, 1, d/2 + 1 …, to the two halves one after the other."""
        heads = self._pairs.get(name)
        if heads is None:
            return rows
        return rows.reshape(heads, -1, 2, *rows.shape[1:]).swapaxes(1, 2).reshape(rows.shape)


def read_numbers(path: Path, info: TensorInfo) -> Numbers:
    """As they lie in the file; quantised ones as float32, with no more than a chunk of blocks in memory beside them."""
    block = block_format(info.type)
    with path.open("rb") as file:
        file.seek(info.offset)
        if block.dequantise is None:
            values = np.empty(info.shape, DTYPES[block.name])
            fill(file, path.name, values)
            return Numbers(block.name, values)
        floats = np.empty(info.shape, np.float32)
        rows = floats.reshape(-1, block.elements)
        step = max(1, _CHUNK_BYTES // block.nbytes)
        blocks = np.empty((min(step, len(rows)), block.nbytes), np.uint8)
        for start in range(0, len(rows), step):
            part = blocks[: len(rows) - start]
            fill(file, path.name, part)
            with np.errstate(all="ignore"):  # a scale that is no number shows in the logits, where a row can fail alone
                rows[start : start + len(part)] = block.dequantise(part)
    return Numbers("F32", floats)


def sample_digest(path: Path, infos: Mapping[str, TensorInfo], header: str) -> str:
    """Two fine-tunes can have the same header, so the first bytes of every tensor count too. In hexadecimal."""
    digest = hashlib.sha256(header.encode())
    with path.open("rb") as file:
        for name, info in sorted(infos.items()):
            file.seek(info.offset)
            digest.update(name.encode() + file.read(min(info.nbytes, 4096)))
    return digest.hexdigest()
