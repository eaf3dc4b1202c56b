"""What is computed in which, and that fewer bits lose digits and nothing else. Native code has its own tests."""
from pathlib import Path
from typing import Any

import pytest
import torch
from stepping import Answer, run, scheduler_for, sequence
from tiny_models import CONFIG, Tensors, random_tensors, write_folder

from hamdam.engine.config import EngineConfig
from hamdam.engine.errors import ModelError
from hamdam.engine.execution import runners
from hamdam.engine.execution.model_runner import load_runner
from hamdam.engine.execution.runners import choose
from hamdam.engine.execution.sampler import sample
from hamdam.engine.loading.checkpoint import open_checkpoint
from hamdam.engine.policy.sampling_params import SamplingParams
from hamdam.kernels.device import for_device

PROMPTS = [list(range(5, 5 + length)) for length in (40, 17, 1)]


def spread(largest: float = 1.0) -> Tensors:
    """A tiny model's tensors under which activations stay about as large from layer to layer."""
    tensors = random_tensors(CONFIG)
    for name, tensor in tensors.items():
        if tensor.ndim == 1:
            tensor.copy_(1 + tensor / 5)
        elif "embed" in name:
            tensor *= largest
        else:
            tensor *= tensor.shape[1] ** -0.5
    return tensors


def answers(folder: Path, tensors: Tensors, dtype: str) -> list[Answer]:
    checkpoint = open_checkpoint(write_folder(folder, CONFIG, tensors))
    runner = load_runner(checkpoint, EngineConfig(model=folder, device="cpu", dtype=dtype, kv_memory=1 << 20))
    params = SamplingParams(temperature=0, logprobs=True, top_logprobs=2)
    return run(
        scheduler_for(runner), runner, *(sequence(id, prompt, params=params) for id, prompt in enumerate(PROMPTS))
    )


def test_f14_the_first_ids_in_bfloat16_are_those_of_float32_wherever_that_is_no_close_call(tmp_path: Path) -> None:
    narrow, wide = (answers(tmp_path / dtype, spread(), dtype) for dtype in ("bfloat16", "float32"))
    compared = 0
    for one, other in zip(narrow, wide, strict=True):
        for id, right, scores in zip(one.ids, other.ids, other.logprobs, strict=True):
            (_, first), (_, second) = scores.top
            if first - second < 0.1:
                break
            assert id == right
            compared += 1
    assert compared >= 3


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_f14_activations_beyond_what_float16_holds_are_numbers(tmp_path: Path, dtype: str) -> None:
    for answer in answers(tmp_path, spread(1e6), dtype):
        assert answer.reason == "length"
        assert len(answer.ids) == 16


def test_f14_float16_which_late_layers_of_some_models_overflow_is_not_offered(tmp_path: Path) -> None:
    checkpoint = open_checkpoint(write_folder(tmp_path))
    with pytest.raises(ModelError, match="float16"):
        load_runner(checkpoint, EngineConfig(model=tmp_path, device="cpu", dtype="float16"))


@pytest.mark.parametrize(
    ("gpu", "knobs", "dtype"),
    [(False, {}, "float32"), (True, {}, "bfloat16"), (False, {"dtype": "bfloat16"}, "bfloat16"),
     (True, {"dtype": "float32"}, "float32")],
)
def test_f14_auto_is_float32_for_pytorch_on_the_cpu_and_bfloat16_on_a_gpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gpu: bool, knobs: dict[str, Any], dtype: str
) -> None:
    monkeypatch.setattr(runners, "_on_gpu", lambda config: gpu)
    model = open_checkpoint(write_folder(tmp_path)).config
    assert choose(model, EngineConfig(model=tmp_path, **knobs)).dtype == dtype


def test_f14_a_draw_from_bfloat16_logits_of_a_wide_vocabulary_is_float32s() -> None:
    """In bfloat16 a sum of 150,000 small numbers stops growing long before its end."""
    ops = for_device(torch.device("cpu"))
    logits = torch.randn(4, 151_936, generator=torch.Generator().manual_seed(0)).bfloat16()
    rows = [sequence(id, [1], seed=id, params=SamplingParams(temperature=1, top_p=0.99)) for id in range(4)]
    assert sample(ops, logits.clone(), rows) == sample(ops, logits.float(), rows)
