"""What loading takes beside what it leaves: tensors that are alive at once, counted byte by byte, whatever the way."""
import weakref
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from quantised_folders import awq, write_quantised
from tiny_models import CONFIG, random_tensors, write_folder
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from hamdam.engine.execution.tensors import tensors_for
from hamdam.engine.loading import numbers
from hamdam.engine.loading.checkpoint import open_checkpoint
from hamdam.engine.models import weights
from hamdam.engine.models.transformer import Transformer
from hamdam.engine.models.weights import Piece, Source
from hamdam.kernels.device import for_device
from hamdam.kernels.quantized import FP8_BLOCK
from hamdam.kernels.reference import Reference

LARGE = CONFIG | {"hidden_size": 256, "intermediate_size": 2048, "num_hidden_layers": 2, "vocab_size": 1024}
PIECE = FP8_BLOCK * LARGE["intermediate_size"]  # numbers: no piece is larger, the smallest being a block of rows
FUSED = 2 * LARGE["intermediate_size"] * LARGE["hidden_size"]  # numbers of gate over up, four pieces
CPU = torch.device("cpu")


class Fast(Reference):
    """A device whose kernels multiply quantised matrices at their best."""

    quantised = True


class Counted(TorchDispatchMode):
    """Knows every tensor that an operation gave, as long as somebody holds it."""

    def __init__(self) -> None:
        super().__init__()
        self._known: list[weakref.ref[torch.Tensor]] = []
        self.most = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        self._known += [weakref.ref(one) for one in tree_leaves(out) if isinstance(one, torch.Tensor)]
        self.most = max(self.most, self.alive())
        return out

    def alive(self) -> int:
        """Bytes; memory that several tensors lie in counts once."""
        found = [(known, one) for known in self._known if (one := known()) is not None]
        self._known = [known for known, _ in found]
        held: dict[object, int] = {}
        for _, one in found:
            if one.is_mkldnn:
                held[id(one)] = one.numel() * one.element_size()
            else:
                held[one.untyped_storage()._cdata] = one.untyped_storage().nbytes()
        return sum(held.values())


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(numbers, "CHUNK", 1 << 14)
    monkeypatch.setattr(weights, "MADE_PLAIN", 1 << 14)


def plain(folder: Path) -> Path:
    return write_folder(folder, LARGE, {name: values.bfloat16() for name, values in random_tensors(LARGE).items()})


def four_bits(folder: Path) -> Path:
    said = {"quant_method": "awq", "bits": 4, "group_size": 64}
    write_quantised(folder, LARGE, said, partial(awq, np.random.default_rng(2), group=64))
    return folder


def beside(path: Path, tensors: Iterable[tuple[str, Source]] | None = None, **said: Any) -> tuple[int, int]:
    """Bytes that were alive at most beside those that stayed, and those."""
    ops, dtype, kind = (said.get(name) for name in ("ops", "dtype", "kind"))
    checkpoint = open_checkpoint(path)
    with torch.inference_mode(), Counted() as counted:
        model = Transformer(checkpoint.config, ops, dtype=dtype, device=CPU)
        counted.most = 0
        model.load(tensors_for(checkpoint, kind, ops, dtype, CPU, "experts") if tensors is None else tensors)
        kept = counted.alive()
    return counted.most - kept, kept


@pytest.mark.parametrize("kind", [None, "int8", "int4", "fp8"])
def test_rounding_takes_some_rows_beside_what_stays(tmp_path: Path, kind: str | None) -> None:
    """Some copies of a piece in float32: much less than a matrix, which is never there twice."""
    most, kept = beside(plain(tmp_path), ops=Reference(), dtype=torch.bfloat16, kind=kind)
    share = {None: 2.0, "int8": 1.02, "int4": 0.63, "fp8": 1.02}[kind]
    matrices = LARGE["num_hidden_layers"] * (3 * FUSED // 2 + 3 * 256 * 256)
    assert kept < share * matrices + 2 * 2 * 1024 * 256 + (128 << 10)
    assert most < 8 * 4 * (1 << 14)


def test_what_is_kept_as_it_is_stored_takes_some_rows_beside_it(tmp_path: Path) -> None:
    most, kept = beside(four_bits(tmp_path), ops=Fast(), dtype=torch.bfloat16)
    assert kept < 3.1e6
    assert most < 3 * 4 * PIECE


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
def test_packing_has_a_matrix_twice_while_the_embedding_is_not_there_yet(tmp_path: Path, dtype: torch.dtype) -> None:
    most, _ = beside(plain(tmp_path), ops=for_device(CPU), dtype=dtype)
    assert most < (FUSED - 1024 * 256) * dtype.itemsize + 4 * (1 << 14)


def test_parts_that_turn_out_to_differ_become_plain_some_rows_at_a_time(tmp_path: Path) -> None:
    checkpoint = open_checkpoint(four_bits(tmp_path))
    pieces = list(checkpoint.pieces(keep=True))
    for index, (name, piece) in enumerate(pieces):
        if ".up_proj." in name:
            pieces[index] = name, Piece(piece.first, piece.values.dequantise(), piece.whole)
    most, kept = beside(tmp_path, pieces, ops=Fast(), dtype=torch.float32)
    assert kept > 2 * 4 * FUSED
    assert most < 4 * PIECE
