"""ModelRunner: what it takes from the configuration, what it computes of a step, and that a broken row stays alone."""
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import torch
from stepping import run, scheduler_for, sequence
from tiny_models import CONFIG, random_tensors, write_folder

from hamdam.engine.config import BLOCK_SIZE, EngineConfig
from hamdam.engine.errors import ModelError, PromptTooLong
from hamdam.engine.execution import model_runner
from hamdam.engine.execution.kv_cache import bytes_per_block
from hamdam.engine.execution.model_runner import ModelRunner, load_runner
from hamdam.engine.loading.checkpoint import open_checkpoint
from hamdam.engine.policy.batch import Batch, Broken, Row
from hamdam.kernels.reference import Reference

BLOCK_BYTES = 2 * 2 * BLOCK_SIZE * 2 * 8 * 4  # key and value, layers, tokens, KV heads, head_dim, float32
POISON = 11  # a token whose embedding is not a number


def load(folder: Path, *, poisoned: bool = False, **knobs: Any) -> ModelRunner:
    tensors = random_tensors(CONFIG)
    if poisoned:
        tensors["model.embed_tokens.weight"][POISON] = torch.nan
    path = write_folder(folder, CONFIG, tensors)
    config = EngineConfig(model=path, **{"device": "cpu", "kv_memory": 1 << 18} | knobs)
    return load_runner(open_checkpoint(path), config)


def answers(runner: ModelRunner, *prompts: Iterable[int], **knobs: Any) -> list[list[int]]:
    sequences = [sequence(id, prompt) for id, prompt in enumerate(prompts)]
    return [answer.ids for answer in run(scheduler_for(runner, **knobs), runner, *sequences)]


def test_what_the_scheduler_asks_of_a_runner_is_the_models(tmp_path: Path) -> None:
    checkpoint = open_checkpoint(write_folder(tmp_path))
    runner = load_runner(checkpoint, EngineConfig(model=tmp_path, device="cpu", kv_memory=10 * BLOCK_BYTES + 1))
    assert (runner.num_blocks, runner.vocab_size, runner.max_context) == (10, 264, 128)
    assert runner.eos_ids == checkpoint.eos_ids


def test_kv_memory_is_counted_by_the_heads_that_are_kept_and_the_dtype(tmp_path: Path) -> None:
    config = open_checkpoint(write_folder(tmp_path)).config
    assert bytes_per_block(config, "float32") == BLOCK_BYTES
    assert bytes_per_block(config, "bfloat16") == BLOCK_BYTES // 2
    assert load(tmp_path, dtype="bfloat16", kv_memory=10 * BLOCK_BYTES).num_blocks == 20


def test_a_cache_key_tells_weights_and_dtype_apart(tmp_path: Path) -> None:
    found = {load(tmp_path / "a").kv_fingerprint, load(tmp_path / "a", dtype="bfloat16").kv_fingerprint}
    found.add(load(tmp_path / "b", poisoned=True).kv_fingerprint)
    assert len(found) == 3
    assert load(tmp_path / "a").kv_fingerprint in found


@pytest.mark.parametrize(
    ("knobs", "words"),
    [
        ({"kv_memory": BLOCK_BYTES - 1}, f"one block of 16 tokens takes {BLOCK_BYTES}"),
        ({"kv_memory": 1 << 60}, "kv_memory is 1152921504.6 GB, and there are"),
        ({"max_context": 129}, "max_context is 129; the model was trained for 128"),
        ({"dtype": "int3"}, "dtype 'int3' is not known"),
        ({"device": "abacus"}, "device 'abacus' is not known"),
    ],
)
def test_what_does_not_fit_is_refused_in_one_line(tmp_path: Path, knobs: dict[str, Any], words: str) -> None:
    with pytest.raises(ModelError, match=words):
        load(tmp_path, **knobs)


def test_a_gpu_that_is_too_small_is_told_in_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Full(Reference):
        def new_kv_cache(self, *sizes: Any, **kind: Any) -> torch.Tensor:
            raise torch.OutOfMemoryError("CUDA out of memory.\nTried to allocate 98.00 GiB")

    monkeypatch.setattr(model_runner, "for_device", lambda device, **_: Full())
    with pytest.raises(ModelError, match=r"the memory of this GPU: CUDA out of memory\. Tried to allocate 98"):
        load(tmp_path)


def test_threads_are_set_where_they_are_given(tmp_path: Path) -> None:
    load(tmp_path, threads=None)
    assert torch.get_num_threads() == 1
    load(tmp_path, threads=2)
    assert torch.get_num_threads() == 2
    torch.set_num_threads(1)


def test_only_rows_that_sample_get_an_id(tmp_path: Path) -> None:
    runner = load(tmp_path)
    first, second = sequence(1, range(3, 30)), sequence(2, range(40, 45))
    first.block_table, second.block_table = [5, 2], [0]
    found = runner.run(Batch([Row(first, 0, 20, sample=False), Row(second, 0, 5, sample=True)]))
    assert found[0] is None
    assert isinstance(found[1], int)
    assert runner.run(Batch([Row(first, 20, 1, sample=False)])) == [None]


def test_copied_blocks_hold_what_they_were_copied_from(tmp_path: Path) -> None:
    runner = load(tmp_path)
    whole = sequence(1, range(3, 24))
    whole.block_table = [0, 1]
    right = runner.run(Batch([Row(whole, 0, 21, sample=True)]))
    whole.block_table = [3, 4]
    assert runner.run(Batch([Row(whole, 20, 1, sample=True)], copies=[(0, 3), (1, 4)])) == right


def test_a_batch_without_rows_does_its_copies_and_no_more(tmp_path: Path) -> None:
    assert load(tmp_path).run(Batch(copies=[(0, 1)])) == []


def test_a_broken_sequence_ends_alone_and_leaves_nothing_in_its_blocks(tmp_path: Path) -> None:
    good = [list(range(20, 50)), list(range(60, 110))]
    right = answers(load(tmp_path), *good)
    assert not any(POISON in ids for ids in right)
    runner = load(tmp_path, poisoned=True)
    scheduler = scheduler_for(runner, num_blocks=12)
    bad = sequence(9, [*range(100, 130), POISON, 101])
    found = run(scheduler, runner, bad, *(sequence(id, prompt) for id, prompt in enumerate(good)))
    assert (found[0].reason, found[0].ids) == ("failed", [])
    assert found[0].error is not None
    assert "not finite" in found[0].error
    assert [answer.ids for answer in found[1:]] == right
    for id in range(10, 14):  # until every block was used again
        assert run(scheduler, runner, sequence(id, good[id % 2]))[0].ids == right[id % 2]


def test_a_chunk_that_is_not_finite_breaks_before_its_blocks_are_shared(tmp_path: Path) -> None:
    runner = load(tmp_path, poisoned=True)
    bad = sequence(1, [*range(3, 20), POISON, *range(20, 40)])
    bad.block_table = [0, 1, 2]
    found = runner.run(Batch([Row(bad, 0, 32, sample=False)]))
    assert isinstance(found[0], Broken)


def test_a_small_pool_and_small_steps_change_no_answer(tmp_path: Path) -> None:
    prompts = [list(range(5, 5 + length)) for length in (50, 33, 16, 1)]
    right = answers(load(tmp_path), *prompts)
    runner = load(tmp_path)
    for knobs in ({"max_batch_tokens": 5}, {"num_blocks": 5}, {"max_batch_tokens": 17, "num_blocks": 6}):
        assert answers(runner, *prompts, **knobs) == right


def test_c07_a_prompt_may_fill_the_context_but_for_one_token(tmp_path: Path) -> None:
    runner = load(tmp_path, max_context=64)
    scheduler = scheduler_for(runner)
    [answer] = run(scheduler, runner, sequence(1, range(3, 66), max_tokens=10**9))
    assert (len(answer.ids), answer.reason) == (1, "length")
    [answer] = run(scheduler, runner, sequence(2, range(3, 13), max_tokens=10**9))
    assert (len(answer.ids), answer.reason) == (54, "length")
    for length in (64, 65):
        with pytest.raises(PromptTooLong):
            scheduler.add(sequence(3, range(3, 3 + length)), 0.0)
