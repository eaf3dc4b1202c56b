"""Some rows of a quantised matrix: that they are the matrix's, and that nothing else is read or held for them."""
import os
import tracemalloc
from io import FileIO
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from hamdam.engine.errors import ModelError
from hamdam.engine.loading import safetensors
from hamdam.engine.loading.quantization import Scheme
from hamdam.engine.loading.safetensors import open_safetensors
from hamdam.engine.loading.stored_matrix import StoredMatrix, open_matrix

OUT, IN, GROUP = 4096, 512, 32
PIECE = 96  # rows, of which no number of pieces is the whole


def words(*shape: int) -> torch.Tensor:
    return torch.randint(-(1 << 31), 1 << 31, shape, generator=torch.Generator().manual_seed(sum(shape))).int()


def scales(*shape: int) -> torch.Tensor:
    return torch.rand(shape, generator=torch.Generator().manual_seed(1)).half()


GROUPS = IN // GROUP
STORED = {
    "awq": (Scheme("AWQ", "awq", 4, group=GROUP, symmetric=False), {
        "qweight": words(IN, OUT // 8), "qzeros": words(GROUPS, OUT // 8), "scales": scales(GROUPS, OUT),
    }),
    **{f"gptq of {bits} bits": (Scheme("GPTQ", "gptq", bits, group=GROUP, raised=1), {
        "qweight": words(IN * bits // 32, OUT), "qzeros": words(GROUPS, OUT * bits // 32),
        "scales": scales(GROUPS, OUT),
    }) for bits in (2, 3, 4, 8)},
    "packed": (Scheme("INT4", "packed", 4, group=GROUP, symmetric=False), {
        "weight_packed": words(OUT, IN // 8), "weight_scale": scales(OUT, GROUPS),
        "weight_zero_point": words(OUT // 8, GROUPS),
    }),
    "packed, zeros as bytes": (Scheme("INT4", "packed", 4, group=GROUP, symmetric=False), {
        "weight_packed": words(OUT, IN // 8), "weight_scale": scales(OUT, GROUPS),
        "weight_zero_point": words(OUT, GROUPS // 4).view(torch.int8),
    }),
    "int8": (Scheme("INT8", "bytes", 8, symmetric=False), {
        "weight": words(OUT, IN // 4).view(torch.int8), "weight_scale": scales(OUT, 1),
        "weight_zero_point": words(OUT // 4, 1).view(torch.int8).view(OUT, 1),
    }),
}  # fmt: skip


class Counting(FileIO):
    """How many bytes were read, of whatever file."""

    count = 0

    def readinto(self, room: bytearray) -> int:  # type: ignore[override]
        found = super().readinto(room)
        Counting.count += found
        return found


def opened(form: str, path: Path) -> StoredMatrix:
    scheme, tensors = STORED[form]
    if scheme.layout == "packed":
        tensors = tensors | {"weight_shape": torch.tensor([OUT, IN])}
    save_file({f"m.{part}": tensor.clone() for part, tensor in tensors.items()}, path)
    return open_matrix("m", dict.fromkeys(tensors, open_safetensors(path)), (scheme,))


@pytest.mark.parametrize("form", STORED)
def test_a_piece_is_the_matrix_s_and_is_held_alone(
    form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    matrix = opened(form, tmp_path / "m.safetensors")
    whole = matrix.read()
    monkeypatch.setattr(Path, "open", lambda path, mode, buffering=-1: Counting(path, mode))
    monkeypatch.setattr(Counting, "count", 0)
    monkeypatch.setattr(safetensors, "BAND", 1 << 14)
    tracemalloc.start()
    for start in range(0, OUT, PIECE):
        rows = range(start, min(start + PIECE, OUT))
        piece = matrix.read(rows)
        assert np.array_equal(piece.codes, whole.codes[start : rows.stop])
        assert np.array_equal(piece.scales, whole.scales[start : rows.stop])
        assert piece.zeros is not None
        assert whole.zeros is not None
        assert np.array_equal(piece.zeros, whole.zeros[start : rows.stop])
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert most < (1 << 14) + 7 * PIECE * IN  # a byte a number and the words on the way to it, of a piece in 43
    if matrix.scheme.layout in ("packed", "bytes"):  # whose outputs lie one after another
        assert Counting.count == sum(tensor.nbytes for tensor in STORED[form][1].values())


def test_a_file_that_is_cut_while_it_is_read_is_named(tmp_path: Path) -> None:
    path = tmp_path / "m.safetensors"
    matrix = opened("gptq of 4 bits", path)
    os.truncate(path, path.stat().st_size // 2)
    with pytest.raises(ModelError, match=r"m\.safetensors: the file ended while it was read"):
        matrix.read(range(PIECE))
