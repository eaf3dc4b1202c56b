"""quantize, and quantised folders with PyTorch: what is rounded, what is kept as it is, and what is refused."""
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from quantised_folders import awq, write_quantised
from stepping import run, scheduler_for, sequence
from tiny_models import CONFIG, random_tensors, write_folder

from hamdam.engine.config import EngineConfig
from hamdam.engine.errors import ModelError
from hamdam.engine.execution.model_runner import ModelRunner, load_runner
from hamdam.engine.execution.tensors import forms_of, tensors_for
from hamdam.engine.loading.checkpoint import Checkpoint, open_checkpoint
from hamdam.kernels.quantized import W4A16, W8A16
from hamdam.kernels.quantized_whole import KINDS, rounded
from hamdam.kernels.reference import Reference

CPU = torch.device("cpu")
AWQ = {"quant_method": "awq", "bits": 4, "group_size": 32}


class Fast(Reference):
    """A device whose kernels multiply quantised matrices at their best."""

    quantised = True


def plain(folder: Path) -> tuple[Checkpoint, dict[str, torch.Tensor]]:
    tensors = {name: values if "norm" in name else values * 0.2 for name, values in random_tensors(CONFIG).items()}
    return open_checkpoint(write_folder(folder, CONFIG, tensors)), tensors


def quantised(folder: Path) -> Checkpoint:
    write_quantised(folder, CONFIG, AWQ, partial(awq, np.random.default_rng(2), group=32))
    return open_checkpoint(folder)


def opened(checkpoint: Checkpoint, **knobs: Any) -> ModelRunner:
    settings = {"device": "cpu", "dtype": "float32", "kv_memory": 1 << 20} | knobs
    return load_runner(checkpoint, EngineConfig(model=Path(), **settings))


def answers(runner: ModelRunner) -> list[list[int]]:
    sequences = [sequence(number, range(5, 5 + length), max_tokens=8) for number, length in enumerate((1, 20, 33))]
    return [answer.ids for answer in run(scheduler_for(runner), runner, *sequences)]


@pytest.mark.parametrize("kind", KINDS)
def test_plain_weights_are_rounded_but_for_embedding_head_and_norms(tmp_path: Path, kind: str) -> None:
    checkpoint, tensors = plain(tmp_path)
    found = dict(tensors_for(checkpoint, kind, Reference(), torch.float32, CPU, "experts"))
    assert found.keys() == tensors.keys()
    for name, one in found.items():
        if name.endswith("_proj.weight"):
            right = rounded(tensors[name], kind)
            assert right is not None and isinstance(one.values, W4A16 if kind == "int4" else W8A16)
            assert torch.equal(one.values.dequantise(), right.dequantise())
        else:
            assert torch.equal(one.values, tensors[name])


@pytest.mark.parametrize("kind", KINDS)
def test_a_rounded_model_answers_as_a_plain_one_with_its_rounded_weights(tmp_path: Path, kind: str) -> None:
    checkpoint, tensors = plain(tmp_path / "plain")
    twin = dict(tensors)
    for name, values in tensors.items():
        if name.endswith("_proj.weight"):
            one = rounded(values, kind)
            assert one is not None
            twin[name] = one.dequantise()
    runner = opened(checkpoint, quantize=kind)
    assert runner.description == f"float32 on cpu, weights in {kind}"
    right = opened(open_checkpoint(write_folder(tmp_path / "twin", CONFIG, twin)))
    assert answers(runner) == answers(right)
    assert opened(checkpoint).kv_fingerprint != runner.kv_fingerprint


def test_quantised_matrices_are_kept_where_the_device_multiplies_them_well_and_else_are_floats(tmp_path: Path) -> None:
    checkpoint = quantised(tmp_path)
    kept = {type(one.values) for _, one in tensors_for(checkpoint, None, Fast(), torch.bfloat16, CPU, "experts")}
    assert kept == {torch.Tensor, W4A16}
    for ops, dtype in ((Reference(), torch.bfloat16), (Fast(), torch.float32)):
        floats = tensors_for(checkpoint, None, ops, dtype, CPU, "experts")
        assert {type(one.values) for _, one in floats} == {torch.Tensor}
    assert forms_of(checkpoint, None, Fast(), torch.bfloat16) == KINDS
    assert forms_of(plain(tmp_path / "plain")[0], None, Fast(), torch.bfloat16) == ()


def test_a_kept_model_answers_as_one_of_floats(tmp_path: Path) -> None:
    checkpoint = quantised(tmp_path)
    config = EngineConfig(model=tmp_path, dtype="float32", kv_memory=1 << 20)
    kept, floats = (
        ModelRunner(checkpoint, config, ops, device=CPU, dtype=dtype)
        for ops, dtype in ((Fast(), torch.bfloat16), (Reference(), torch.float32))
    )
    layer = kept._model.layers[0]
    assert all(isinstance(matrix, W4A16) for matrix in (layer.qkv, layer.output, layer.mlp.gate_up, layer.mlp.down))
    prompt = torch.randint(3, 260, (30,), generator=torch.Generator().manual_seed(0)).tolist()
    found = [run(scheduler_for(runner), runner, sequence(0, prompt, max_tokens=1)) for runner in (kept, floats)]
    assert [answer.ids for answer in found[0]] == [answer.ids for answer in found[1]]


def test_what_cannot_be_rounded_is_refused_in_a_line(tmp_path: Path) -> None:
    checkpoint, _ = plain(tmp_path / "plain")
    with pytest.raises(ModelError, match="quantize 'int3' is not known; int8, int4, fp8 are"):
        opened(checkpoint, quantize="int3")
    with pytest.raises(ModelError, match="quantize int8 is for plain weights, and these are AWQ"):
        opened(quantised(tmp_path / "awq"), quantize="int8")
    with pytest.raises(ModelError, match="needs the dtype bfloat16"):
        forms_of(checkpoint, "fp8", Fast(), torch.float32)
