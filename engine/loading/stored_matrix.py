"""StoredMatrix: one quantised matrix of a Hugging Face folder: which tensors it is made of, and its rows as Coded.

Not what its config may say (quantization.py). Every shape is checked when it is opened, before anything is read.
Layouts: https://github.com/casper-hansen/AutoAWQ (awq), https://github.com/AutoGPTQ/AutoGPTQ (gptq),
https://github.com/neuralmagic/compressed-tensors (packed, bytes; the last is that of FP8 models, too).
"""
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import ModelError
from .coded import Coded, in_runs, unpacked, words_of
from .numbers import DTYPES, Floats, Numbers, spans
from .quantization import Scheme
from .safetensors import SafetensorsFile, StoredTensor

AWQ_PLACES = (0, 4, 1, 5, 2, 6, 3, 7)  # of 8 outputs one after another, in a word, from its lowest bits on
Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class StoredMatrix:
    """parts: the file of each tensor by the last part of its name. groups: of the inputs, where they are scattered."""

    module: str
    scheme: Scheme
    shape: tuple[int, int]  # [out, in]
    parts: Mapping[str, SafetensorsFile]
    groups: NDArray[np.int64] | None = None

    @property
    def format(self) -> str:
        """In a word or two, for people."""
        bits = f" of {self.scheme.bits} bits" if self.scheme.name == "GPTQ" else ""
        return f"{self.scheme.name}{bits}{', act-order' if self.groups is not None else ''}"

    @property
    def bits(self) -> int | None:
        """4 or 8, where its numbers can be had as blocks of 32 with a scale (Coded.blocks)."""
        scheme, inputs = self.scheme, self.shape[1]
        if scheme.floating or not in_runs(self.groups, scheme.group or inputs, inputs):
            return None
        return 4 if scheme.bits <= 4 else 8 if scheme.symmetric else None

    @property
    def scales_dtype(self) -> str:
        kind = self.stored("scales" if "scales" in self.parts else _scale_name(self.parts)).dtype
        return kind if kind in ("F16", "BF16") else "F32"

    @property
    def has_zeros(self) -> bool:
        return not self.parts.keys().isdisjoint(("qzeros", "weight_zero_point"))

    def kept_bytes(self, outputs: int | None = None) -> int:
        """See contents.Weights. outputs: that many of them; None: all."""
        inputs, bits = self.shape[1], self.scheme.bits
        size = min(inputs, self.size() if self.scheme.block is None else self.scheme.block[1])
        groups = -(-inputs // size)
        codes = sum(-(-inputs * width // 8) for width in (8, 4, 2, 1) if bits & width)
        each = np.dtype(DTYPES[self.scales_dtype]).itemsize + 2 * self.has_zeros
        scattered = self.groups is not None or inputs != groups * size
        return (self.shape[0] if outputs is None else outputs) * (codes + groups * each) + 4 * inputs * scattered

    def float32(self, rows: range) -> Floats:
        """[rows, in]."""
        inputs = self.shape[1]
        floats = np.empty((len(rows), inputs), np.float32)
        for part in spans(rows, inputs):
            floats[part.start - rows.start : part.stop - rows.start] = self.read(part).float32()
        return floats

    def read(self, rows: range | None = None) -> Coded:
        coded = _READ[self.scheme.layout](self, range(self.shape[0]) if rows is None else rows)
        centred = not (self.has_zeros or self.scheme.floating)
        return replace(coded, scales_dtype=self.scales_dtype, centred=centred)

    def array(self, part: str, rows: range | None = None, columns: range | None = None) -> NDArray[Any]:
        return self.parts[part].array(f"{self.module}.{part}", rows, columns)

    def floats(self, part: str, rows: range | None = None, columns: range | None = None) -> Floats:
        return Numbers(self.stored(part).dtype, self.array(part, rows, columns)).float32()

    def stored(self, part: str) -> StoredTensor:
        return self.parts[part].tensors[f"{self.module}.{part}"]

    def size(self) -> int:
        return self.scheme.group or self.shape[1]

    def place(self) -> tuple[Path, int]:
        """Where it begins, for reading in the order of the files."""
        return min((file.path, self.stored(part).offset) for part, file in self.parts.items())


@dataclass(frozen=True, slots=True)
class MatrixRows:
    """A part of a fused matrix: `shape[0]` of its rows from `first` on."""

    whole: StoredMatrix
    first: int
    shape: tuple[int, int]

    @property
    def format(self) -> str:
        return self.whole.format

    @property
    def bits(self) -> int | None:
        return self.whole.bits

    def read(self, rows: range | None = None) -> Coded:
        rows = range(self.shape[0]) if rows is None else rows
        coded = self.whole.read(range(self.first + rows.start, self.first + rows.stop))
        return replace(coded, block=1) if (self.first + rows.start) % coded.block else coded  # blocks that are cut

    def float32(self, rows: range) -> Floats:
        return self.whole.float32(range(self.first + rows.start, self.first + rows.stop))

    def kept_bytes(self) -> int:
        return self.whole.kept_bytes(self.shape[0])

    def place(self) -> tuple[Path, int]:
        return self.whole.place()


def open_matrix(module: str, parts: Mapping[str, SafetensorsFile], schemes: tuple[Scheme, ...]) -> StoredMatrix:
    """In the first of the schemes that its tensors fit. ModelError where they fit none."""
    why = "what it is stored in is not what quantization_config says"
    for scheme in schemes:
        try:
            return _CHECK[scheme.layout](_Module(module, parts, scheme))
        except _Misfit as misfit:
            why = str(misfit)
    source = next(iter(parts.values())).path.name
    shown = repr(module[:80])[1:-1]  # it comes from the file: no line breaks
    raise ModelError(f"{source}: {shown} cannot be read: {why}")


class _Misfit(Exception):
    """The tensors are not those of this scheme."""


@dataclass(frozen=True, slots=True)
class _Module:
    name: str
    parts: Mapping[str, SafetensorsFile]
    scheme: Scheme

    def shape(self, part: str, dtypes: tuple[str, ...]) -> Shape:
        if part not in self.parts:
            raise _Misfit(f"{part} is missing")
        stored = self.parts[part].tensors[f"{self.name}.{part}"]
        if stored.dtype not in dtypes:
            raise _Misfit(f"{part} has the type {stored.dtype}")
        return stored.shape

    def matrix(self, part: str, dtypes: tuple[str, ...]) -> tuple[int, int]:
        shape = self.shape(part, dtypes)
        if len(shape) != 2:
            raise _Misfit(f"{part} has the shape {list(shape)}")
        return shape[0], shape[1]

    def expect(self, part: str, dtypes: tuple[str, ...], *shapes: Shape) -> None:
        shape = self.shape(part, dtypes)
        if shape not in shapes:
            raise _Misfit(f"{part} has the shape {list(shape)} and not {list(shapes[0])}")

    def only(self, *parts: str) -> None:
        if others := sorted(self.parts.keys() - set(parts)):
            raise _Misfit(f"{others[0]} is not expected")

    def number_of_groups(self, inputs: int) -> int:
        if inputs < 1:
            raise _Misfit("it has no inputs")
        return -(-inputs // (self.scheme.group or inputs))

    def opened(self, outputs: int, inputs: int, groups: NDArray[np.int64] | None = None) -> StoredMatrix:
        return StoredMatrix(self.name, self.scheme, (outputs, inputs), self.parts, groups)

    def scattered(self, part: str, inputs: int, groups: int) -> NDArray[np.int64] | None:
        """The group of each input, where there is such a tensor; None where they follow one another after all."""
        if part not in self.parts:
            return None
        self.expect(part, ("I32", "I64"), (inputs,))
        found = self.parts[part].array(f"{self.name}.{part}").astype(np.int64)
        size = self.scheme.group or inputs
        if (found == np.arange(inputs) // size).all() or (found == -1).all():  # -1: never set, so not used
            return None
        if found.min() < 0 or found.max() >= groups:
            raise _Misfit(f"{part} names a group that is not there")
        return found


def _check_awq(module: _Module) -> StoredMatrix:
    """qweight [in, out / 8], qzeros [groups, out / 8], scales [groups, out]."""
    module.only("qweight", "qzeros", "scales")
    inputs, words = module.matrix("qweight", ("I32",))
    groups = module.number_of_groups(inputs)
    module.expect("qzeros", ("I32",), (groups, words))
    module.expect("scales", tuple(DTYPES), (groups, words * 8))
    return module.opened(words * 8, inputs)


def _read_awq(matrix: StoredMatrix, rows: range) -> Coded:
    words, inside = words_of(rows, 4)

    def numbers(part: str) -> NDArray[np.uint8]:
        """[rows, inputs or groups]. The words are turned, of which there are fewer."""
        turned = np.ascontiguousarray(matrix.array(part, columns=words).T).view(np.uint32)
        found = np.empty((len(turned), 8, turned.shape[1]), np.uint8)
        for output, place in enumerate(AWQ_PLACES):
            found[:, output] = turned >> np.uint32(4 * place) & np.uint32(15)
        return found.reshape(-1, turned.shape[1])[inside]

    scales = matrix.floats("scales", columns=rows).T
    return Coded(4, numbers("qweight"), scales, numbers("qzeros").astype(np.float32), matrix.size())


def _check_gptq(module: _Module) -> StoredMatrix:
    """qweight [in * bits / 32, out], qzeros [groups, out * bits / 32], scales [groups, out], g_idx [in]."""
    module.only("qweight", "qzeros", "scales", "g_idx")
    words, outputs = module.matrix("qweight", ("I32",))
    bits = module.scheme.bits
    if words * 32 % bits or outputs * bits % 32:
        raise _Misfit(f"qweight has the shape {[words, outputs]}, which {bits} bits do not fill")
    inputs = words * 32 // bits
    groups = module.number_of_groups(inputs)
    module.expect("qzeros", ("I32",), (groups, outputs * bits // 32))
    module.expect("scales", tuple(DTYPES), (groups, outputs))
    return module.opened(outputs, inputs, module.scattered("g_idx", inputs, groups))


def _read_gptq(matrix: StoredMatrix, rows: range) -> Coded:
    bits = matrix.scheme.bits
    words, inside = words_of(rows, bits)
    codes = unpacked(matrix.array("qweight", columns=rows).T, bits)
    zeros = unpacked(matrix.array("qzeros", columns=words), bits)[:, inside].T.astype(np.float32)
    scales = matrix.floats("scales", columns=rows).T
    return Coded(bits, codes, scales, zeros + matrix.scheme.raised, matrix.size(), matrix.groups)


def _check_packed(module: _Module) -> StoredMatrix:
    """weight_packed [out, in / numbers of a word], weight_scale [out, groups], weight_shape [2], and maybe more."""
    module.only("weight_packed", "weight_scale", "weight_shape", "weight_zero_point", "weight_g_idx")
    scheme, name = module.scheme, f"{module.name}.weight_shape"
    outputs, words = module.matrix("weight_packed", ("I32",))
    module.expect("weight_shape", ("I32", "I64"), (2,))
    shape = module.parts["weight_shape"].array(name).tolist()
    if shape[0] != outputs or -(-shape[1] // (32 // scheme.bits)) != words or shape[1] < 1:
        raise _Misfit(f"weight_shape is {shape}, weight_packed has the shape {[outputs, words]} for {scheme.bits} bits")
    groups = module.number_of_groups(shape[1])
    _expect_scales(module, outputs, groups)
    if not scheme.symmetric or "weight_zero_point" in module.parts:
        packed = -(-outputs // (32 // scheme.bits))
        module.expect("weight_zero_point", ("I32", "I8"), (packed, groups), (outputs, groups))
    return module.opened(outputs, shape[1], module.scattered("weight_g_idx", shape[1], groups))


def _read_packed(matrix: StoredMatrix, rows: range) -> Coded:
    scheme, middle = matrix.scheme, float(1 << matrix.scheme.bits - 1)
    codes = unpacked(matrix.array("weight_packed", rows), scheme.bits)[:, : matrix.shape[1]]
    scales = _by_row(matrix, "weight_scale", rows)
    zeros = np.full_like(scales, middle)
    if "weight_zero_point" in matrix.parts:
        if matrix.stored("weight_zero_point").dtype == "I8":
            zeros = _by_row(matrix, "weight_zero_point", rows) + middle
        else:  # packed along the outputs
            words, inside = words_of(rows, scheme.bits)
            stored = matrix.array("weight_zero_point", words)
            zeros = unpacked(stored.T, scheme.bits)[:, inside].T.astype(np.float32)
    return Coded(scheme.bits, np.ascontiguousarray(codes), scales, zeros, matrix.size(), matrix.groups)


def _check_bytes(module: _Module) -> StoredMatrix:
    """weight [out, in] int8 or float8_e4m3fn, weight_scale or weight_scale_inv: both are what it is multiplied by."""
    module.only("weight", "weight_scale", "weight_scale_inv", "weight_zero_point")
    scheme = module.scheme
    outputs, inputs = module.matrix("weight", ("F8_E4M3",) if scheme.floating else ("I8",))
    if scheme.block is not None:
        down, across = scheme.block
        module.expect(_scale_name(module.parts), tuple(DTYPES), (-(-outputs // down), -(-inputs // across)))
    else:
        _expect_scales(module, outputs, module.number_of_groups(inputs))
    if scheme.floating:
        module.only("weight", "weight_scale", "weight_scale_inv")
    elif not scheme.symmetric or "weight_zero_point" in module.parts:
        shape = module.shape(_scale_name(module.parts), tuple(DTYPES))
        module.expect("weight_zero_point", ("I8",), shape)
    return module.opened(outputs, inputs)


def _read_bytes(matrix: StoredMatrix, rows: range) -> Coded:
    scheme, name = matrix.scheme, _scale_name(matrix.parts)
    codes = matrix.array("weight", rows).view(np.uint8)
    if scheme.block is not None:
        down, across = scheme.block
        scales = matrix.floats(name)[np.arange(rows.start, rows.stop) // down]
        return Coded(8, codes, scales, None, across, block=down)
    scales = _by_row(matrix, name, rows)
    if scheme.floating:
        return Coded(8, codes, scales, None, matrix.size())
    zeros = np.full_like(scales, 128)
    if "weight_zero_point" in matrix.parts:
        zeros = zeros + _by_row(matrix, "weight_zero_point", rows)
    return Coded(8, codes ^ np.uint8(128), scales, zeros, matrix.size())


def _expect_scales(module: _Module, outputs: int, groups: int) -> None:
    name = _scale_name(module.parts)
    whole: tuple[Shape, ...] = ((outputs,), (), (1,), (1, 1)) if groups == 1 else ()
    module.expect(name, tuple(DTYPES), (outputs, groups), *whole)


def _scale_name(parts: Mapping[str, SafetensorsFile]) -> str:
    return "weight_scale_inv" if "weight_scale_inv" in parts else "weight_scale"


def _by_row(matrix: StoredMatrix, part: str, rows: range) -> Floats:
    """[out, groups], [out] or a single one -> [rows, groups]."""
    if matrix.stored(part).shape[:1] != matrix.shape[:1]:  # a single one
        return np.full((len(rows), 1), matrix.floats(part).reshape(()), np.float32)
    return matrix.floats(part, rows).reshape(len(rows), -1)


_CHECK: Mapping[str, Callable[[_Module], StoredMatrix]] = {
    "awq": _check_awq, "gptq": _check_gptq, "packed": _check_packed, "bytes": _check_bytes,
}  # fmt: skip
_READ: Mapping[str, Callable[[StoredMatrix, range], Coded]] = {
    "awq": _read_awq, "gptq": _read_gptq, "packed": _read_packed, "bytes": _read_bytes,
}  # fmt: skip
