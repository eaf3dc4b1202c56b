"""GGUFHeader: the key-value pairs and the table of tensors at the head of a GGUF file, read within bounds.

Not the tensors' data (blocks.py) and not what the keys mean (checkpoint.py). The file is input: every
length is a Python integer, compared with the bytes that are really there before anything of that size is made.
Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""
import hashlib
import math
import mmap
import struct
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ...errors import ModelError
from ..values import T, Values
from .blocks import block_format

Scalar = int | float | bool | str

MAX_HEADER_BYTES = 256 << 20
MAX_STRING_BYTES = 16 << 20
MAX_KEYS = 1 << 16
MAX_TENSORS = 1 << 16
MAX_ELEMENTS = 1 << 22  # of all arrays together; the largest vocabularies have 2^18 tokens
MAX_ALIGNMENT = 1 << 16

_SOME, _MANY = 256, 2048  # strings that are read one by one, and at once

_STRING, _ARRAY, _BOOL = 8, 9, 7
_NUMBERS = {0: "<u1", 1: "<i1", 2: "<u2", 3: "<i2", 4: "<u4", 5: "<i4", 6: "<f4", 10: "<u8", 11: "<i8", 12: "<f8"}


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """Where a tensor lies: `shape` in PyTorch's order, contiguous dimension last, `offset` from the file's start."""

    name: str
    type: int
    shape: tuple[int, ...]
    offset: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class GGUFHeader(Values):
    tensors: dict[str, TensorInfo]
    digest: str  # sha256 of the header's bytes, in hexadecimal

    def find_list(self, key: str, kind: type[T]) -> list[T] | None:
        value = self.values.get(key)
        if value is None:
            return None
        if not isinstance(value, list) or (value and type(value[0]) is not kind):  # the elements are all of one type
            raise ModelError(f"{self.source}: {key} is not a list of {kind.__name__}")
        return value

    def need_list(self, key: str, kind: type[T]) -> list[T]:
        value = self.find_list(key, kind)
        if value is None:
            raise ModelError(f"{self.source}: {key} is missing")
        return value


def read_header(path: Path) -> GGUFHeader:
    try:
        with path.open("rb") as file:
            size = file.seek(0, 2)
            if size < 24:
                raise ModelError(f"{path.name}: not a GGUF file")
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
                return _Reader(path.name, data, size).header()
    except OSError as error:
        raise ModelError(f"{path}: {error.strerror or error}") from error


class _Reader:
    """One pass over the mapped bytes. Arrays in arrays are refused, so nothing here recurses."""

    def __init__(self, source: str, data: mmap.mmap, size: int) -> None:
        self._source, self._data, self._size = source, data, size
        self._end = min(size, MAX_HEADER_BYTES)
        self._position = 0
        self._elements = 0

    def header(self) -> GGUFHeader:
        if self._take(4) != b"GGUF":
            raise self._refuse("not a GGUF file")
        version = self._integer("<I")
        if version not in (2, 3):
            hint = " (big-endian?)" if version & 0xFFFF == 0 else ""
            raise self._refuse(f"GGUF version {version} is not supported{hint}")
        num_tensors, num_keys = self._integer("<Q"), self._integer("<Q")
        if num_tensors > MAX_TENSORS or num_keys > MAX_KEYS:
            raise self._refuse(f"{num_tensors} tensors and {num_keys} keys are more than a model has")
        values: dict[str, Scalar | list[Scalar]] = {}
        for _ in range(num_keys):
            key = self._string()
            if key in values:
                raise self._refuse(f"the key {key[:80]!r} is there twice")
            values[key] = self._value(key)
        alignment = values.get("general.alignment", 32)
        if type(alignment) is not int or not 8 <= alignment <= MAX_ALIGNMENT or alignment & (alignment - 1):
            raise self._refuse(f"alignment {str(alignment)[:40]} is not a power of two from 8 to {MAX_ALIGNMENT}")
        table = [self._tensor() for _ in range(num_tensors)]
        start = -(-self._position // alignment) * alignment
        digest = hashlib.sha256(self._data[: self._position]).hexdigest()
        return GGUFHeader(self._source, values, self._placed(table, start, alignment), digest)

    def _tensor(self) -> TensorInfo:
        name = self._string()
        num_dims = self._integer("<I")
        if not 1 <= num_dims <= 4:
            raise self._refuse(f"tensor {name[:80]!r} has {num_dims} dimensions")
        dims = [self._integer("<Q") for _ in range(num_dims)]  # the contiguous one first
        kind = self._integer("<I")
        offset = self._integer("<Q")
        try:
            block = block_format(kind)
        except ModelError as error:
            raise self._refuse(f"tensor {name[:80]!r}: {error}") from error
        if 0 in dims or dims[0] % block.elements:
            raise self._refuse(f"tensor {name[:80]!r} of shape {dims} does not divide into blocks of {block.elements}")
        return TensorInfo(name, kind, tuple(reversed(dims)), offset, math.prod(dims) // block.elements * block.nbytes)

    def _placed(self, table: list[TensorInfo], start: int, alignment: int) -> dict[str, TensorInfo]:
        """By name, with offsets from the file's start. Refuses what lies outside the file or over another tensor."""
        tensors: dict[str, TensorInfo] = {}
        reached = start
        for info in sorted(table, key=lambda info: info.offset):
            offset = start + info.offset
            if info.name in tensors:
                raise self._refuse(f"tensor {info.name[:80]!r} is there twice")
            if offset % alignment:
                raise self._refuse(f"tensor {info.name[:80]!r} is not aligned to {alignment} bytes")
            if offset + info.nbytes > self._size:
                raise self._refuse(f"tensor {info.name[:80]!r} ends beyond the file; was the download incomplete?")
            if offset < reached:
                raise self._refuse(f"tensor {info.name[:80]!r} overlaps another")
            reached = offset + info.nbytes
            tensors[info.name] = TensorInfo(info.name, info.type, info.shape, offset, info.nbytes)
        return tensors

    def _value(self, key: str) -> Scalar | list[Scalar]:
        kind = self._integer("<I")
        if kind != _ARRAY:
            return self._scalars(key, kind, 1)[0]
        kind, count = self._integer("<I"), self._integer("<Q")
        self._elements += count
        if self._elements > MAX_ELEMENTS:
            raise self._refuse(f"{key[:80]!r} has {count} elements, more than a model needs")
        return self._scalars(key, kind, count)

    def _scalars(self, key: str, kind: int, count: int) -> list[Scalar]:
        if kind == _STRING:
            return self._strings(count)
        if kind == _BOOL:
            return [byte != 0 for byte in self._take(count)]
        if kind in _NUMBERS:
            dtype = np.dtype(_NUMBERS[kind])
            numbers: list[Scalar] = np.frombuffer(self._take(count * dtype.itemsize), dtype).tolist()
            return numbers
        what = "nested arrays" if kind == _ARRAY else f"values of unknown type {kind}"
        raise self._refuse(f"{key[:80]!r} has {what}")

    def _strings(self, count: int) -> list[Scalar]:
        """Vocabularies are here, of a hundred thousand strings: read many at once wherever they are short."""
        if count * 8 > self._end - self._position:
            raise self._cut()
        strings: list[Scalar] = []
        while count - len(strings) > _SOME:
            found = self._short_strings(min(count - len(strings), _MANY))
            strings += found
            if len(found) < _SOME:
                strings += self._next_strings(min(count - len(strings), _SOME))
        return strings + self._next_strings(count - len(strings))

    def _short_strings(self, most: int) -> list[str]:
        """The next strings as far as each has 1 to 255 bytes and none of them zero. At most so many, and maybe none.

        A byte that just seven zeros follow is taken for a length; they are lengths for certain where each leads to the
        next. With one zero in place of each length, a single call decodes all of them and a single one cuts them.
        """
        data = np.frombuffer(self._data[self._position : min(self._position + most * 24, self._end)], np.uint8)
        zero = data == 0
        two = zero[:-1] & zero[1:]
        four = two[:-2] & two[2:]
        at = np.flatnonzero(four[1:-3] & four[4:] & ~zero[:-7])[:most]
        ends = at + 8 + data[at]
        leads = (at == np.concatenate(([0], ends[:-1]))[: len(at)]) & (ends <= len(data))
        count = int(np.append(leads, False).argmin())
        size = int(ends[count - 1]) if count else 0
        text = data[:size][~zero[:size]]
        if len(text) != size - 7 * count:
            return []
        text[at[:count] - 7 * np.arange(count)] = 0
        try:
            strings: list[str] = text.tobytes().decode().split("\0")[1:]
        except UnicodeDecodeError as error:
            raise self._refuse("a string in the header is not UTF-8") from error
        self._position += size
        return strings

    def _next_strings(self, count: int) -> list[Scalar]:
        """One by one, whatever they are."""
        data, end, position = self._data, self._end, self._position
        length_at = struct.Struct("<Q").unpack_from
        strings: list[Scalar] = []
        for _ in range(count):
            start = position + 8
            if start > end:
                raise self._cut()
            (length,) = length_at(data, position)
            position = start + length
            if position > end or length > MAX_STRING_BYTES:
                raise self._cut()
            try:
                strings.append(data[start:position].decode())
            except UnicodeDecodeError as error:
                raise self._refuse("a string in the header is not UTF-8") from error
        self._position = position
        return strings

    def _string(self) -> str:
        return str(self._next_strings(1)[0])

    def _integer(self, form: str) -> int:
        number: int = struct.unpack(form, self._take(struct.calcsize(form)))[0]
        return number

    def _take(self, count: int) -> bytes:
        start = self._position
        if count > self._end - start:
            raise self._cut()
        self._position = start + count
        return self._data[start : start + count]

    def _cut(self) -> ModelError:
        if self._end < self._size:
            return self._refuse(f"the header is longer than {MAX_HEADER_BYTES >> 20} MiB")
        return self._refuse("the header is cut short or damaged; was the download incomplete?")

    def _refuse(self, why: str) -> ModelError:
        return ModelError(f"{self._source}: {why}")
