"""Quantised folders on both paths: natively in the bits that they have, with PyTorch as their dequantised twins."""
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from native_path import TINY, decoded_logits, native
from numpy.typing import NDArray
from packed_numbers import address
from quantised_folders import awq, compressed, fp8, gptq, int8, packed, write_quantised
from tiny_models import write_folder
from whole_windows import WholeWindows

from hamdam.engine.execution.native_runner import describe
from hamdam.engine.execution.packed_weights import open_packed
from hamdam.engine.loading.checkpoint import Checkpoint, open_checkpoint
from hamdam.kernels.cpu.packing import Packed
from hamdam.kernels.cpu.product import read_row

WIDE = TINY | {"hidden_size": 64}  # two groups an input, so that act-order is one
GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 32, "desc_act": True, "sym": True}
# What the config says, how a matrix is made, in how many bits it is kept, and what is said of it.
KINDS: dict[str, tuple[dict[str, Any], Any, int, tuple[str, ...]]] = {
    "awq": ({"quant_method": "awq", "bits": 4, "group_size": 32}, partial(awq, group=32), 4, ()),
    "gptq": (GPTQ, partial(gptq, group=32, symmetric=True), 4, ()),
    "gptq of 8 bits": (GPTQ | {"bits": 8}, partial(gptq, group=32, symmetric=True, bits=8), 8, ()),
    "act-order": (GPTQ, partial(gptq, group=32, symmetric=True, scattered=True), 8, ("GPTQ of 4 bits, act-order",)),
    "packed": (compressed("pack-quantized", num_bits=4), partial(packed, group=None), 4, ()),
    "int8": (compressed("int-quantized"), int8, 8, ()),
    "fp8": (compressed("float-quantized", type="float"), fp8, 8, ("FP8",)),
}


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def both(folder: Path, kind: str) -> tuple[Checkpoint, Checkpoint]:
    """A quantised folder and a plain one with its weights in float32."""
    random = np.random.default_rng(5)
    said, make, *_ = KINDS[kind]

    def small(out: int, width: int) -> Any:
        """Scales so small that logits stay in the range of a model's."""
        tensors, right = make(random, out, width)
        name = next(name for name in ("scales", "weight_scale") if name in tensors)
        return tensors | {name: tensors[name] / 16}, right / 16

    right = write_quantised(folder / "quantised", WIDE, said, small)
    twin = {name: torch.from_numpy(np.ascontiguousarray(values, np.float32)) for name, values in right.items()}
    return open_checkpoint(folder / "quantised"), open_checkpoint(write_folder(folder / "twin", WIDE, twin))


def rows_of(matrix: Packed) -> NDArray[np.float32]:
    found = np.full((matrix.outputs, -(-matrix.inputs // 32) * 32), np.nan, np.float32)
    for row, target in enumerate(found):
        read_row(address(matrix.data), matrix.bits, matrix.inputs, row, address(target))
    return found[:, : matrix.inputs]


def test_matrices_are_kept_in_the_bits_that_they_have(tmp_path: Path, kind: str) -> None:
    quantised, twin = both(tmp_path, kind)
    _, _, bits, rounded = KINDS[kind]
    layer = open_packed(quantised, None).layers[1]
    assert {layer.qkv.bits, layer.output.bits, layer.gate_up.bits, layer.down.bits} == {bits}
    for matrix, name in ((layer.output, "self_attn.o_proj"), (layer.down, "mlp.down_proj")):
        right = twin.array(f"model.layers.1.{name}.weight")
        largest = np.abs(right).max(1, keepdims=True)
        # Rounded again: to half a step of 127. Else to float16, where a scale or a minimum, of 15 steps, is not one.
        assert np.all(np.abs(rows_of(matrix) - right) <= largest * (1 / 250 if rounded else 2**-9))
    assert quantised.rounded() == list(rounded)


def test_native_logits_are_near_the_twins_in_float32(tmp_path: Path, kind: str) -> None:
    quantised, twin = both(tmp_path, kind)
    ids = list(range(3, 60))
    right = WholeWindows(twin, longest=len(ids)).logits(ids)
    assert right.std() > 0.1
    with native(quantised, dtype="int16") as runner:
        [found] = decoded_logits(runner, [ids])
        assert np.linalg.norm(found - right) < 0.02 * np.linalg.norm(right)
        assert runner.description == describe("int16", 1, KINDS[kind][3])


def test_pytorch_has_the_twins_logits(tmp_path: Path, kind: str) -> None:
    quantised, twin = both(tmp_path, kind)
    ids = list(range(3, 60))
    found, right = (WholeWindows(one, longest=len(ids)).logits(ids) for one in (quantised, twin))
    np.testing.assert_allclose(found, right, rtol=0, atol=1e-5)


def test_what_is_rounded_is_said_in_a_word() -> None:
    assert describe("int8", 1, ["FP8", "Q6_K"]).endswith("1 thread, FP8 and Q6_K rounded to 8 bits")
