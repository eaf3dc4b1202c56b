"""FolderWeights: the tensors of a folder's safetensors files, plain and quantised. Not which file holds which."""
from collections.abc import Mapping
from itertools import accumulate

from ..errors import ModelError
from .coded import Coded
from .numbers import Numbers, Quantized
from .quantization import Quantization
from .safetensors import SafetensorsFile
from .stored_matrix import MatrixRows, StoredMatrix, open_matrix

_PARTS = frozenset(
    ("qweight", "qzeros", "scales", "g_idx", "weight_packed", "weight_shape", "weight_scale", "weight_scale_inv",
     "weight_zero_point", "weight_g_idx")
)  # fmt: skip
_FUSED = {"qkv_proj": ("q_proj", "k_proj", "v_proj"), "gate_up_proj": ("gate_proj", "up_proj")}  # one above the other
Matrix = StoredMatrix | MatrixRows


class FolderWeights:
    """Implements contents.Weights. A quantised matrix has the name that it would have as a plain one."""

    def __init__(self, holders: Mapping[str, SafetensorsFile], matrices: Mapping[str, Matrix]) -> None:
        """holders: of the plain tensors. matrices: by the names of the tensors that they stand for."""
        self._holders, self._matrices = holders, matrices
        places = {name: (shard.path, shard.tensors[name].offset) for name, shard in holders.items()}
        for name, matrix in matrices.items():
            places[name] = matrix.place()
        order = sorted(places, key=places.__getitem__)
        self.formats = {
            name: matrices[name].format if name in matrices else holders[name].tensors[name].dtype for name in order
        }
        self.shapes = {
            name: matrices[name].shape if name in matrices else holders[name].tensors[name].shape for name in order
        }

    def read(self, name: str, rows: range | None = None) -> Numbers:
        matrix = self._matrices.get(name)
        if matrix is None:
            return self._holders[name].read(name, rows)
        return Numbers("F32", matrix.float32(range(matrix.shape[0]) if rows is None else rows))

    def bits(self, name: str) -> int | None:
        return self._matrices[name].bits if name in self._matrices else None

    def quantized(self, name: str, rows: range | None = None) -> Quantized | None:
        return None if self.bits(name) is None else self._matrices[name].read(rows).blocks()

    def blocks(self, name: str, rows: range | None = None) -> Quantized | None:
        return None

    def kept_bytes(self, name: str) -> int | None:
        return self._matrices[name].kept_bytes() if name in self._matrices else None

    def coded(self, name: str, rows: range | None = None) -> Coded | None:
        return self._matrices[name].read(rows) if name in self._matrices else None


def open_weights(
    holders: Mapping[str, SafetensorsFile], quantised: Quantization | None, expected: Mapping[str, tuple[int, ...]]
) -> FolderWeights:
    """expected: the shapes of the model's tensors; what stands beside them may be left out where it says nothing."""
    if quantised is None:
        return FolderWeights(holders, {})
    parts: dict[str, dict[str, SafetensorsFile]] = {}
    for name, shard in holders.items():
        module, _, part = name.rpartition(".")
        if part in _PARTS:
            parts.setdefault(module, {})[part] = shard
    plain = {name: shard for name, shard in holders.items() if name.rpartition(".")[2] not in _PARTS}
    matrices: dict[str, Matrix] = {}
    for module, its in parts.items():
        if quantised.says_plain(module):
            shown = repr(module[:80])[1:-1]
            raise ModelError(f"{quantised.source}: {shown} is said to be as it was, and is stored quantised")
        if f"{module}.weight" in plain:
            its["weight"] = plain.pop(f"{module}.weight")
        for name, matrix in _taken_apart(open_matrix(module, its, quantised.schemes), expected).items():
            if name in plain or name in matrices:
                raise ModelError(f"{quantised.source}: {module[:80]!r} gives {name[:80]!r}, which is there already")
            matrices[name] = matrix
        bias = f"{module}.bias"
        if bias in plain and bias not in expected and not plain[bias].read(bias).values.any():
            del plain[bias]  # GPTQ's older programs give every matrix one, of zeros
    return FolderWeights(plain, matrices)


def _taken_apart(matrix: StoredMatrix, expected: Mapping[str, tuple[int, ...]]) -> dict[str, Matrix]:
    """By name. A fused matrix that is not what the model asks for stays whole, and so is named in the error."""
    layer, _, module = matrix.module.rpartition(".")
    names = [f"{layer}.{part}.weight" for part in _FUSED.get(module, ())]
    counts = [expected[name][0] for name in names if name in expected]
    if not names or len(counts) < len(names) or sum(counts) != matrix.shape[0]:
        return {f"{matrix.module}.weight": matrix}
    firsts = accumulate(counts, initial=0)
    return {
        name: MatrixRows(matrix, first, (count, matrix.shape[1]))
        for name, first, count in zip(names, firsts, counts, strict=False)
    }
