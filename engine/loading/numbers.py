"""Numbers: one tensor's values in NumPy, in the dtype of its file. Not the file, and not PyTorch (torch_tensors.py)."""
from collections.abc import Iterator
from typing import Any, BinaryIO, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..errors import ModelError

Floats = NDArray[np.float32]

DTYPES = {"F16": np.float16, "BF16": np.uint16, "F32": np.float32, "F64": np.float64}


class Numbers(NamedTuple):
    """`dtype`: one of DTYPES. NumPy has no bfloat16: those are their 16 bits, as uint16."""

    dtype: str
    values: NDArray[Any]

    def float32(self) -> Floats:
        """Exact but for F64, which is rounded; the values themselves where they are float32 already."""
        if self.dtype == "BF16":  # the upper half of a float32
            wide = self.values.astype(np.uint32)
            wide <<= 16
            return wide.view(np.float32)
        with np.errstate(over="ignore"):  # to infinity, as PyTorch has it
            return self.values.astype(np.float32, copy=False)


class Quantized(NamedTuple):
    """A tensor's values as the file has them. Each row of `shape[-1]` values is a row of blocks, the last filled up.

    blocks: uint8 [rows, blocks in a row, bytes of a block], contiguous, in the layout of `format` (gguf/blocks.py).
    shape: of the values, [rows, columns].
    """

    format: str  # one of BLOCK_QUANTISED
    blocks: NDArray[np.uint8]
    shape: tuple[int, ...]


BLOCK_QUANTISED = ("Q4_0", "Q4_1", "Q8_0")  # 32 values a block, which integer arithmetic can take as they are


CHUNK = 1 << 21
"""Numbers of a tensor that are made into float32 at a time: 8 MiB, and some times as much for what comes between."""


def spans(rows: range, columns: int, numbers: int | None = None, *, unit: int = 1) -> Iterator[range]:
    """`rows` in pieces of about so many numbers (CHUNK), each but the last a multiple of `unit` rows."""
    step = max(1, (CHUNK if numbers is None else numbers) // max(1, columns * unit)) * unit
    for start in range(rows.start, rows.stop, step):
        yield range(start, min(start + step, rows.stop))


def fill(file: BinaryIO, source: str, room: NDArray[Any]) -> None:
    """Reads on until the contiguous array `room` is full. Read and not mapped: a mapped file that somebody cuts short

    would end the process, this is a ModelError.
    """
    if file.readinto(room.reshape(-1).view(np.uint8).data) != room.nbytes:  # type: ignore[attr-defined]
        raise ModelError(f"{source}: the file ended while it was read; was it changed?")
