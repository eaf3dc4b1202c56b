"""--kv-dtype with PyTorch: what a block takes, what a cache is known by, and that cuts and hits change no answer."""
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from stepping import run, scheduler_for, sequence
from tiny_models import CONFIG, random_tensors, write_folder

from hamdam.engine.config import BLOCK_SIZE, EngineConfig
from hamdam.engine.errors import ModelError
from hamdam.engine.execution.kv_cache import NUMBER, bytes_per_block, kv_dtype
from hamdam.engine.execution.model_runner import ModelRunner, load_runner
from hamdam.engine.loading.checkpoint import open_checkpoint
from hamdam.engine.policy.batch import Batch, Row

VECTORS = 2 * 2 * BLOCK_SIZE * 2  # of a block: key and value, layers, tokens, KV heads
BYTES = {"float32": 32, "float16": 16, "bfloat16": 16, "int8": 12, "fp8": 12}  # of a vector of 8 numbers
PROMPTS = [list(range(5, 5 + length)) for length in (50, 33, 16, 1)]
OFF = {"float32": 0.0, "float16": 2.0**-11, "bfloat16": 2.0**-8, "int8": 1 / 254, "fp8": 1 / 16}  # of the largest


@pytest.fixture(params=NUMBER)
def kept(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def load(folder: Path, **knobs: Any) -> ModelRunner:
    path = write_folder(folder, CONFIG, random_tensors(CONFIG))
    config = EngineConfig(model=path, **{"device": "cpu", "dtype": "float32", "kv_memory": 1 << 18} | knobs)
    return load_runner(open_checkpoint(path), config)


def answers(runner: ModelRunner, prompts: Iterable[list[int]] = PROMPTS, **knobs: Any) -> list[list[int]]:
    sequences = [sequence(id, prompt, max_tokens=8) for id, prompt in enumerate(prompts)]
    return [answer.ids for answer in run(scheduler_for(runner, **knobs), runner, *sequences)]


def test_a_block_takes_what_its_numbers_and_scales_take(tmp_path: Path, kept: str) -> None:
    size = VECTORS * BYTES[kept]
    runner = load(tmp_path, kv_dtype=kept, kv_memory=10 * size + size - 1)
    assert runner.num_blocks == 10
    assert bytes_per_block(open_checkpoint(tmp_path).config, kept) == size
    assert runner._cache.nbytes == 11 * size  # one is padding's
    with pytest.raises(ModelError, match=f"one block of 16 tokens takes {size}"):
        load(tmp_path, kv_dtype=kept, kv_memory=size - 1)


def test_what_computes_says_in_what_kv_is_kept_where_nobody_asked(tmp_path: Path) -> None:
    auto = EngineConfig(model=tmp_path)
    found = [kv_dtype(auto, dtype) for dtype in ("float32", "bfloat16", "int8", "int16")]
    assert found == ["float32", "bfloat16", "bfloat16", "bfloat16"]
    with pytest.raises(ModelError, match="kv_dtype 'int3' is not known; auto, float32, float16, bfloat16, int8, fp8"):
        load(tmp_path, kv_dtype="int3")


def test_a_cache_key_tells_the_dtypes_apart_and_the_runner_says_it(tmp_path: Path) -> None:
    runners = [load(tmp_path, kv_dtype=name) for name in ("auto", *NUMBER)]
    assert len({runner.kv_fingerprint for runner in runners}) == len(NUMBER)  # auto is float32 here
    assert [runner.description for runner in runners][:3] == ["float32 on cpu"] * 2 + ["float32 on cpu, KV in float16"]


def test_steps_pools_and_neighbours_change_no_answer(tmp_path: Path, kept: str) -> None:
    runner = load(tmp_path, kv_dtype=kept)
    right = answers(runner)
    assert len({tuple(ids) for ids in right}) == len(PROMPTS)
    for knobs in ({"max_batch_tokens": 5}, {"max_batch_tokens": 1}, {"num_blocks": 5}):
        assert answers(runner, **knobs) == right
    assert [ids for prompt in PROMPTS for ids in answers(runner, [prompt])] == right


def test_a_prompt_found_in_the_cache_is_answered_alike(tmp_path: Path, kept: str) -> None:
    runner = load(tmp_path, kv_dtype=kept)
    scheduler = scheduler_for(runner)
    first, again = (run(scheduler, runner, sequence(id, PROMPTS[0], max_tokens=8))[0] for id in range(2))
    assert (first.cached, again.cached) == (0, 3 * BLOCK_SIZE)
    assert again.ids == first.ids


def test_copied_blocks_answer_alike(tmp_path: Path, kept: str) -> None:
    runner = load(tmp_path, kv_dtype=kept)
    whole = sequence(1, range(3, 24))
    whole.block_table = [0, 1]
    right = runner.run(Batch([Row(whole, 0, 21, sample=True)]))
    whole.block_table = [3, 4]
    assert runner.run(Batch([Row(whole, 20, 1, sample=True)], copies=[(0, 3), (1, 4)])) == right


def test_what_is_handed_on_of_a_cache_are_the_numbers_that_it_stands_for(tmp_path: Path, kept: str) -> None:
    found = []
    for name in ("float32", kept):
        runner = load(tmp_path, kv_dtype=name)
        one = sequence(1, range(3, 35))
        one.block_table = [2, 0]
        runner.run(Batch([Row(one, 0, 32, sample=False)]))
        found.append(np.stack(runner.kv([2, 0], 0)))  # of the first layer, which reads no cache before
    right, rounded = found
    assert right.shape == (2, 2, BLOCK_SIZE, 2, 8)
    largest = np.abs(right).max(-1, keepdims=True)
    assert (np.abs(rounded - right) <= largest * OFF[kept] * 1.001).all()
