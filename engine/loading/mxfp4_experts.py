"""ExpertWeights: the tensors of some files, experts' matrices among them that are stored in MXFP4, as gpt-oss' are.

Blocks of 32 inputs with the exponent of a power of two (OCP Microscaling Formats 1.0). gate and up lie row by row in
turns. It says where they lie and reads them; other formats are stored_matrix.py's.
"""
import re
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from ..errors import ModelError
from ..models.config import ModelConfig
from .coded import Coded
from .contents import Weights
from .gguf import block_named
from .numbers import Numbers, Quantized
from .safetensors import SafetensorsFile, StoredTensor

BLOCK = 32  # inputs
MXFP4 = block_named("MXFP4")
_STORED = re.compile(r"^(.*\.mlp\.experts)\.(gate_up|down)_proj_(blocks|scales)$")


@dataclass(frozen=True, slots=True)
class Mxfp4Matrix:
    """blocks, scales: files whose tables have tensors of these names, [out, in / 32, 16] and [out, in / 32], of which
    every `step`-th row from `first` on is this matrix's."""

    blocks: SafetensorsFile
    scales: SafetensorsFile
    shape: tuple[int, int]  # [out, in]
    first: int
    step: int

    @property
    def nbytes(self) -> int:
        return self.shape[0] * self.shape[1] // BLOCK * MXFP4.nbytes

    def read(self, rows: range) -> Quantized:
        """As GGUF has such blocks: the scale first, and input i with input 16 + i in a byte, not with its neighbour."""
        stored = range(self.first + self.step * rows.start, self.first + self.step * (rows.stop - 1) + 1)
        pairs = self.blocks.array("blocks", stored)[:: self.step]
        blocks = np.empty((*pairs.shape[:2], MXFP4.nbytes), np.uint8)
        blocks[..., 0] = self.scales.array("scales", stored)[:: self.step]
        first, second = pairs[..., :8], pairs[..., 8:]
        blocks[..., 1::2] = first & 0x0F | second << 4
        blocks[..., 2::2] = first >> 4 | second & 0xF0
        return Quantized(MXFP4.name, blocks, (len(rows), self.shape[1]))


class ExpertWeights:
    """Implements contents.Weights."""

    def __init__(self, weights: Weights, matrices: Mapping[str, Mxfp4Matrix]) -> None:
        """matrices: by name; all other tensors are those of `weights`."""
        self._weights, self._matrices = weights, matrices
        self.formats = {**weights.formats, **dict.fromkeys(matrices, "MXFP4")}
        self.shapes = {**weights.shapes, **{name: matrix.shape for name, matrix in matrices.items()}}

    def read(self, name: str, rows: range | None = None) -> Numbers:
        matrix = self._matrices.get(name)
        if matrix is None:
            return self._weights.read(name, rows)
        blocks, shape = matrix.read(_all(matrix, rows))[1:]
        return Numbers("F32", MXFP4.dequantise(blocks.reshape(-1, MXFP4.nbytes)).reshape(shape))

    def bits(self, name: str) -> int | None:
        return None if name in self._matrices else self._weights.bits(name)

    def quantized(self, name: str, rows: range | None = None) -> Quantized | None:
        return None if name in self._matrices else self._weights.quantized(name, rows)

    def coded(self, name: str, rows: range | None = None) -> Coded | None:
        return None if name in self._matrices else self._weights.coded(name, rows)

    def blocks(self, name: str, rows: range | None = None) -> Quantized | None:
        matrix = self._matrices.get(name)
        return self._weights.blocks(name, rows) if matrix is None else matrix.read(_all(matrix, rows))

    def kept_bytes(self, name: str) -> int | None:
        matrix = self._matrices.get(name)
        return self._weights.kept_bytes(name) if matrix is None else matrix.nbytes


def _all(matrix: Mxfp4Matrix, rows: range | None) -> range:
    return range(matrix.shape[0]) if rows is None else rows


def mxfp4_experts(
    config: ModelConfig, holders: Mapping[str, SafetensorsFile]
) -> tuple[dict[str, SafetensorsFile], dict[str, Mxfp4Matrix]]:
    """holders: the file that holds each tensor of the folder. Returns those that are no experts in MXFP4, and the
    experts' matrices by the decoder's names. ModelError where blocks and scales do not fit."""
    known = config.architecture == "gpt_oss"
    stored = {name: match for name in holders if known and (match := _STORED.match(name))}
    matrices: dict[str, Mxfp4Matrix] = {}
    for name, match in stored.items():
        experts, part, kind = match.groups()
        scales = f"{experts}.{part}_proj_scales"
        if kind == "scales":
            if f"{experts}.{part}_proj_blocks" not in holders:
                raise ModelError(f"{holders[name].path.name}: {name} is there without its blocks")
        elif scales not in holders:
            raise ModelError(f"{holders[name].path.name}: {scales} is missing")
        else:
            matrices |= _taken_apart(config, experts, part, (name, holders[name]), (scales, holders[scales]))
    return {name: file for name, file in holders.items() if name not in stored}, matrices


Stored = tuple[str, SafetensorsFile]


def _taken_apart(
    config: ModelConfig, experts: str, part: str, blocks: Stored, scales: Stored
) -> dict[str, Mxfp4Matrix]:
    assert config.experts is not None
    count, hidden, wide = config.experts.count, config.hidden_size, config.experts.intermediate_size
    outputs, inputs = (2 * wide, hidden) if part == "gate_up" else (hidden, wide)
    shape = (count, outputs, inputs // BLOCK)
    for (name, file), right in ((blocks, (*shape, BLOCK // 2)), (scales, shape)):
        own = file.tensors[name]
        if own.dtype != "U8" or own.shape != right or inputs % BLOCK:
            raise ModelError(f"{file.path.name}: {name} is {own.dtype} {list(own.shape)} and not U8 {list(right)}")
    found: dict[str, Mxfp4Matrix] = {}
    for number in range(count):
        own_blocks, own_scales = _expert(blocks, "blocks", number), _expert(scales, "scales", number)
        if part == "down":
            name = f"{experts}.{number}.down_proj.weight"
            found[name] = Mxfp4Matrix(own_blocks, own_scales, (outputs, inputs), 0, 1)
        else:
            for first, half in enumerate(("gate", "up")):
                name = f"{experts}.{number}.{half}_proj.weight"
                found[name] = Mxfp4Matrix(own_blocks, own_scales, (wide, inputs), first, 2)
    return found


def _expert(held: Stored, kind: str, number: int) -> SafetensorsFile:
    """A file whose table has one expert's rows."""
    name, file = held
    whole = file.tensors[name]
    size = whole.nbytes // whole.shape[0]
    part = StoredTensor(whole.dtype, whole.shape[1:], whole.offset + number * size, size)
    return SafetensorsFile(file.path, {kind: part})
