"""A folder's tensors for PyTorch: large ones in pieces, quantised ones in a form of the kernels, bit for bit."""
import tracemalloc
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from quantised_folders import Made, awq, compressed, fp8, gptq, int8, packed, write_quantised
from tiny_models import CONFIG, random_tensors, write_folder

from hamdam.engine.loading import numbers
from hamdam.engine.loading.checkpoint import open_checkpoint
from hamdam.kernels.quantized import W4A16, W8A16
from hamdam.kernels.quantized_whole import Stack

WIDE = CONFIG | {"hidden_size": 256, "intermediate_size": 384, "num_hidden_layers": 1}
AWQ = {"quant_method": "awq", "bits": 4, "group_size": 64}
GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 128, "desc_act": True, "sym": True}
FP8 = {"quant_method": "fp8", "weight_block_size": [128, 128]}
FORMS: dict[str, tuple[dict[str, Any], Any, type | None]] = {
    "awq": (AWQ, partial(awq, group=64), W4A16),
    "awq, groups of 16": (AWQ | {"group_size": 16}, partial(awq, group=16), None),
    "gptq": (GPTQ, partial(gptq, group=128, symmetric=True), W4A16),
    "gptq, act-order": (GPTQ, partial(gptq, group=128, scattered=True), W4A16),
    "gptq, 3 bits": (GPTQ | {"bits": 3}, partial(gptq, group=128, bits=3), W4A16),
    "gptq, 8 bits": (GPTQ | {"bits": 8}, partial(gptq, group=128, symmetric=True, bits=8), None),
    "gptq, 8 bits, a scale a row": (
        GPTQ | {"bits": 8, "group_size": -1}, partial(gptq, group=1 << 20, symmetric=True, bits=8), W8A16),
    "packed, a scale a row": (compressed("pack-quantized", num_bits=4), partial(packed, group=None), W4A16),
    "int8": (compressed("int-quantized"), int8, W8A16),
    "int8, zeros": (compressed("int-quantized", symmetric=False), partial(int8, symmetric=False), None),
    "fp8 whole": (compressed("float-quantized", type="float", strategy="tensor"), partial(fp8, by="tensor"), W8A16),
    "fp8 by row": (compressed("float-quantized", type="float"), fp8, W8A16),
    "fp8 by block": (FP8, partial(fp8, by="block", name="weight_scale_inv"), W8A16),
    "fp8 by another block": (FP8 | {"weight_block_size": [64, 64]},
                             partial(fp8, by="block", block=(64, 64), name="weight_scale_inv"), None),
}  # fmt: skip


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(numbers, "CHUNK", 1 << 15)  # 128 rows of 256


@pytest.mark.parametrize("form", FORMS)
def test_a_quantised_matrix_is_kept_to_the_bit_where_there_is_a_form_for_it(form: str, tmp_path: Path) -> None:
    said, make, kind = FORMS[form]
    random = np.random.default_rng(1)

    def made(out: int, width: int) -> Made:
        made: Made = make(random, out, width)
        return made

    write_quantised(tmp_path, WIDE, said, made)
    checkpoint = open_checkpoint(tmp_path)
    kept = {name: Stack(shape[0]) for name, shape in checkpoint.weights.shapes.items()}
    for name, piece in checkpoint.pieces(keep=True):
        assert kind is None or isinstance(piece.values, kind) == name.endswith("_proj.weight")
        if isinstance(piece.values, torch.Tensor) or not kept[name].put(piece.first, piece.values):
            kept.pop(name, None)
    matrices = {name for name in checkpoint.weights.shapes if name.endswith("_proj.weight")}
    assert kept.keys() == (set() if kind is None else matrices)
    for name, stack in kept.items():
        assert stack.matrix is not None
        assert np.array_equal(stack.matrix.dequantise().numpy(), checkpoint.array(name)), name
    assert all(isinstance(piece.values, torch.Tensor) for _, piece in checkpoint.pieces(keep=False))


def test_pieces_are_the_tensors_row_by_row_in_the_files_dtype(tmp_path: Path) -> None:
    tensors = {name: values.bfloat16() for name, values in random_tensors(WIDE).items()}
    checkpoint = open_checkpoint(write_folder(tmp_path, WIDE, tensors))
    found: dict[str, list[torch.Tensor]] = {}
    for name, piece in checkpoint.pieces(keep=True):
        assert piece.whole == tensors[name].shape and piece.values.numel() <= 1 << 15
        assert piece.first == sum(map(len, found.get(name, [])))
        found.setdefault(name, []).append(piece.values)
    assert found.keys() == tensors.keys()
    assert all(torch.equal(torch.cat(found[name]), values) for name, values in tensors.items())
    assert len(found["model.embed_tokens.weight"]) == 3


@pytest.mark.parametrize("form", [None, "awq", "fp8 by row"])
def test_of_a_tensor_only_a_piece_is_read_at_a_time(form: str | None, tmp_path: Path) -> None:
    """A piece as float32 and what it is made of: 20 bytes a number. AWQ's words, of half a byte, are read whole."""
    if form is None:
        tensors = {name: values.bfloat16() for name, values in random_tensors(WIDE).items()}
        write_folder(tmp_path, WIDE, tensors)
    else:
        said, make, _ = FORMS[form]
        write_quantised(tmp_path, WIDE, said, partial(make, np.random.default_rng(1)))
    checkpoint = open_checkpoint(tmp_path)
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        for _, piece in checkpoint.pieces(keep=False):
            del piece
        most = tracemalloc.get_traced_memory()[1] - before
    finally:
        tracemalloc.stop()
    words = 384 * 256 // 2 if form == "awq" else 0
    assert most < 20 * numbers.CHUNK + 2 * words + (64 << 10)
