"""SafetensorsFile: the table at the head of a .safetensors file, read within bounds, and one tensor at a time after it.

Not which files make a model (safetensors_checkpoint.py). Written here rather than imported so that what is wrong with
a file is one line of ours.
Format: https://github.com/huggingface/safetensors#format
"""
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from ..errors import ModelError
from .json_object import parse_object
from .numbers import DTYPES, Numbers, fill

MAX_HEADER_BYTES = 32 << 20
BAND = 256 << 10  # bytes of a matrix of which only some columns are wanted, and which stay in the processor's cache

_NUMPY = DTYPES | {"I8": np.int8, "U8": np.uint8, "I32": np.int32, "I64": np.int64, "F8_E4M3": np.uint8}

_BYTES = {
    "BOOL": 1, "U8": 1, "I8": 1, "F8_E4M3": 1, "F8_E5M2": 1, "F8_E8M0": 1, "I16": 2, "U16": 2, "F16": 2, "BF16": 2,
    "I32": 4, "U32": 4, "F32": 4, "I64": 8, "U64": 8, "F64": 8,
}  # fmt: skip
TYPES = frozenset(_BYTES)
"""What the format calls the types of numbers, those too in which nothing is computed here."""


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """`offset` counts from the file's start. `dtype` is the format's name, maybe of one we cannot compute in."""

    dtype: str
    shape: tuple[int, ...]
    offset: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class SafetensorsFile:
    path: Path
    tensors: dict[str, StoredTensor]

    def read(self, name: str, rows: range | None = None) -> Numbers:
        """rows: those of dimension 0 that are wanted, one after another; None: all."""
        dtype = self.tensors[name].dtype
        if dtype not in DTYPES:
            raise ModelError(f"{self.path.name}: {name} has the type {dtype}, which is not supported")
        return Numbers(dtype, self.array(name, rows))

    def array(self, name: str, rows: range | None = None, columns: range | None = None) -> NDArray[Any]:
        """As `read`, of whole numbers too; bfloat16 and float8_e4m3fn as their bits. columns: those of a matrix that
        are wanted, one after another; None: all."""
        stored = self.tensors[name]
        if stored.dtype not in _NUMPY:
            raise ModelError(f"{self.path.name}: {name} has the type {stored.dtype}, which is not supported")
        shape, place = stored.shape, stored.offset
        if rows is not None:
            place += rows.start * (stored.nbytes // shape[0])
            shape = (len(rows), *shape[1:])
        with self.path.open("rb") as file:
            file.seek(place)
            if columns is not None:
                return self._columns(file, np.dtype(_NUMPY[stored.dtype]), shape, columns)
            values = np.empty(shape, _NUMPY[stored.dtype])
            fill(file, self.path.name, values)
        return values

    def _columns(self, file: BinaryIO, dtype: np.dtype[Any], shape: tuple[int, ...], columns: range) -> NDArray[Any]:
        """Of a matrix of this shape that begins here. It is read whole, a band of rows at a time: a disk that is asked
        for a few bytes of each row would be asked for page after page, where it could read on."""
        values = np.empty((shape[0], len(columns)), dtype)
        band = np.empty((max(1, BAND // (shape[1] * dtype.itemsize)), shape[1]), dtype)
        for start in range(0, shape[0], len(band)):
            rows = band[: shape[0] - start]
            fill(file, self.path.name, rows)
            values[start : start + len(rows)] = rows[:, columns.start : columns.stop]
        return values


def open_safetensors(path: Path) -> SafetensorsFile:
    source = path.name
    try:
        with path.open("rb") as file:
            size = file.seek(0, 2)
            file.seek(0)
            length = int.from_bytes(file.read(8), "little")
            if size < 8 or length > min(size - 8, MAX_HEADER_BYTES):
                raise ModelError(f"{source}: the header is cut short or damaged; was the download incomplete?")
            header = parse_object(source, file.read(length))
    except FileNotFoundError as error:
        raise ModelError(f"{path.parent}: {source} is missing; was the download incomplete?") from error
    except OSError as error:
        raise ModelError(f"{path}: {error.strerror or error}") from error
    start = 8 + length
    tensors = {
        name: _stored(source, name, entry, start) for name, entry in header.values.items() if name != "__metadata__"
    }
    reached = start
    for name, stored in sorted(tensors.items(), key=lambda item: (item[1].offset, item[1].nbytes)):
        if stored.offset != reached:
            raise ModelError(f"{source}: tensor {name[:80]!r} overlaps another, or leaves a gap")
        reached += stored.nbytes
    if reached > size:
        raise ModelError(f"{source}: the file ends before its last tensor; was the download incomplete?")
    if reached < size:
        raise ModelError(f"{source}: {size - reached} bytes follow the last tensor")
    return SafetensorsFile(path, tensors)


def _stored(source: str, name: str, entry: Any, start: int) -> StoredTensor:
    try:
        dtype, shape, (begin, end) = entry["dtype"], entry["shape"], entry["data_offsets"]
        sound = all(type(number) is int and number >= 0 for number in (*shape, begin, end)) and dtype in _BYTES
    except (TypeError, KeyError, ValueError):
        sound = False
    if not sound or len(shape) > 8 or end - begin != math.prod(shape) * _BYTES[dtype]:
        raise ModelError(f"{source}: the entry of tensor {name[:80]!r} makes no sense")
    return StoredTensor(dtype, tuple(shape), start + begin, end - begin)
