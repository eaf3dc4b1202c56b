"""prompt_logprobs in PyTorch: each token of a prompt has what the whole text's logits say of it."""
from pathlib import Path

import numpy as np
import pytest
from stepping import run, scheduler_for, sequence
from tiny_models import CONFIG, random_tensors, write_folder
from whole_windows import WholeWindows

from hamdam.engine.config import EngineConfig
from hamdam.engine.execution.logprobs import logprobs
from hamdam.engine.execution.model_runner import load_runner
from hamdam.engine.loading.checkpoint import Checkpoint, open_checkpoint
from hamdam.engine.policy.sampling_params import SamplingParams

TALKS = [list(range(5, 5 + length)) for length in (50, 33, 16, 1, 2)]


@pytest.fixture
def checkpoint(tmp_path: Path) -> Checkpoint:
    tensors = random_tensors(CONFIG)
    for name, tensor in tensors.items():
        if tensor.ndim == 2 and "embed" not in name:
            tensor *= tensor.shape[1] ** -0.5
    return open_checkpoint(write_folder(tmp_path, CONFIG, tensors))


@pytest.mark.parametrize("knobs", [{}, {"max_batch_tokens": 6}, {"max_running": 2}])
def test_they_are_those_of_the_whole_text(checkpoint: Checkpoint, knobs: dict[str, int]) -> None:
    windows = WholeWindows(checkpoint, longest=64)
    config = EngineConfig(model=Path(), device="cpu", dtype="float32", kv_memory=1 << 20, **knobs)
    runner = load_runner(checkpoint, config)
    params = SamplingParams(temperature=0, prompt_logprobs=4)
    asking = [sequence(id, ids, params=params, max_tokens=6) for id, ids in enumerate(TALKS)]
    plain = [sequence(10 + id, ids, max_tokens=6) for id, ids in enumerate(TALKS)]
    right = run(scheduler_for(runner, **knobs), runner, *plain)
    found = run(scheduler_for(runner, **knobs), runner, *asking)
    assert [answer.ids for answer in found] == [answer.ids for answer in right]
    for ids, answer in zip(TALKS, found, strict=True):
        assert len(answer.prompt) == len(ids) - 1
        for logits, id, own in zip(windows.logits(ids), ids[1:], answer.prompt, strict=False):
            expected = logprobs(logits, id, 4)
            assert own.drawn == pytest.approx(expected.drawn, abs=1e-4)
            np.testing.assert_allclose([x for _, x in own.top], [x for _, x in expected.top], atol=1e-4)
