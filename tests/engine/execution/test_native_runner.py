"""NativeRunner: a step's batch as the CPU path computes it, held to PyTorch in float32; a broken row stays alone."""
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from native_path import TINY, decoded_logits, exact_tensors, logits_of, native, placed, prefilled_logits
from stepping import Answer, run, scheduler_for, sequence
from tiny_models import write_folder
from whole_windows import WholeWindows

from hamdam.engine.config import BLOCK_SIZE, EngineConfig
from hamdam.engine.errors import ModelError
from hamdam.engine.execution import native_runner
from hamdam.engine.execution.edits import edits
from hamdam.engine.execution.model_runner import load_runner
from hamdam.engine.execution.native_runner import NativeRunner, describe
from hamdam.engine.execution.sampler import sample
from hamdam.engine.loading.checkpoint import Checkpoint, open_checkpoint
from hamdam.engine.policy.batch import Batch, Broken, Row
from hamdam.engine.policy.sampling_params import SamplingParams
from hamdam.engine.policy.sequence import Sequence
from hamdam.kernels.device import for_device

BLOCK_BYTES = 2 * 2 * BLOCK_SIZE * 2 * 16 * 2  # key and value, layers, tokens, KV heads, head_dim, bfloat16
TOO_CLOSE = 0.01  # of two logits, which are some units apart from their mean
POISON = 11  # a token whose embedding is not a number
LONG = {"rope_type": "longrope", "short_factor": [1.0] * 8, "long_factor": [2.0 + i for i in range(8)]}
LLAMA3 = {
    "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}  # fmt: skip
MODELS: dict[str, dict[str, Any]] = {
    "llama": TINY,
    "tied": TINY | {"tie_word_embeddings": True},
    "biases": TINY | {"model_type": "qwen2", "hidden_size": 64},
    "norms of heads": TINY | {"model_type": "qwen3", "head_dim": 32},
    "a window": TINY | {"model_type": "mistral", "sliding_window": 20},
    "biases on all of attention": TINY | {"attention_bias": True},
    "linear": TINY | {"rope_scaling": {"rope_type": "linear", "factor": 4}},
    "dynamic": TINY | {"rope_scaling": {"rope_type": "dynamic", "factor": 4}},
    "llama3": TINY | {"rope_scaling": LLAMA3},
    "yarn": TINY | {"rope_scaling": {"rope_type": "yarn", "factor": 4, "original_max_position_embeddings": 16}},
    "a part of a head turns": TINY | {"model_type": "phi3", "head_dim": 32, "partial_rotary_factor": 0.75},
    "longrope": TINY | {"model_type": "phi3", "original_max_position_embeddings": 16, "rope_scaling": LONG},
    "one KV head, odd sizes": TINY | {"hidden_size": 48, "num_key_value_heads": 1, "intermediate_size": 80},
}
PROMPTS = [list(range(5, 5 + length)) for length in (50, 33, 16, 1, 17)]


def tiny(folder: Path, config: dict[str, Any] = TINY, *, poisoned: bool = False, seed: int = 0) -> Checkpoint:
    tensors = exact_tensors(config, seed=seed)
    if poisoned:
        tensors["model.embed_tokens.weight"][POISON] = torch.nan
    return open_checkpoint(write_folder(folder, config, tensors))


@contextmanager
def opened(folder: Path, *, poisoned: bool = False, **more: Any) -> Iterator[NativeRunner]:
    with native(tiny(folder, poisoned=poisoned), **{"dtype": "int16"} | more) as runner:
        yield runner


def answers(runner: Any, *prompts: Iterable[int], **knobs: Any) -> list[list[int]]:
    sequences = [sequence(id, prompt) for id, prompt in enumerate(prompts)]
    return [answer.ids for answer in run(scheduler_for(runner, **knobs), runner, *sequences)]


@pytest.mark.parametrize("config", MODELS.values(), ids=MODELS)
def test_answers_of_16_bits_are_those_of_float32(tmp_path: Path, config: dict[str, Any]) -> None:
    checkpoint = tiny(tmp_path, config)
    right = load_runner(checkpoint, EngineConfig(model=tmp_path, device="cpu", dtype="float32", kv_memory=1 << 20))
    windows = WholeWindows(checkpoint, longest=128)
    same = 0
    with native(checkpoint, dtype="int16") as runner:
        for prompt, ours, theirs in zip(PROMPTS, answers(runner, *PROMPTS), answers(right, *PROMPTS), strict=True):
            parted = next((number for number in range(len(theirs)) if ours[number] != theirs[number]), None)
            if parted is None:
                same += 1
                continue
            logits = windows.logits(prompt + theirs[:parted])[-1]
            assert logits[theirs[parted]] - logits[ours[parted]] < TOO_CLOSE, f"token {parted} was no close call"
    assert same >= 3


@pytest.mark.parametrize(("dtype", "most"), [("int8", 0.02), ("int16", 0.005)])
@pytest.mark.parametrize("config", MODELS.values(), ids=MODELS)
def test_logits_are_near_those_of_float32(tmp_path: Path, config: dict[str, Any], dtype: str, most: float) -> None:
    checkpoint, ids = tiny(tmp_path, config), list(range(3, 100))
    right = WholeWindows(checkpoint, longest=len(ids)).logits(ids)
    with native(checkpoint, dtype=dtype) as runner:
        [found] = decoded_logits(runner, [ids])
        assert np.linalg.norm(found - right) < most * np.linalg.norm(right)
        assert np.array_equal(prefilled_logits(runner, ids, len(ids)), found[-1])
        assert np.array_equal(prefilled_logits(runner, ids, 30, 31, 80), found[79])


@pytest.mark.parametrize("config", MODELS.values(), ids=MODELS)
def test_a_prefix_of_anothers_blocks_and_a_mixed_step_change_no_bit(tmp_path: Path, config: dict[str, Any]) -> None:
    """What is held to float32 above is the same whatever else is computed, and whoever computed the beginning."""
    texts = [list(range(3, 80)), list(range(90, 121)), [*range(3, 51), 200, 201, 202]]
    with native(tiny(tmp_path, config), dtype="int16", kv_memory=1 << 21) as runner:
        right = {prefilled_logits(runner, text, len(text)).tobytes() for text in texts}
        first, second, third = placed(texts)
        third.block_table = first.block_table[:3] + third.block_table[3:]  # 48 tokens that the first computes
        runner.run(Batch([Row(first, 0, 60, sample=False)]))
        rows = [Row(first, 60, 17, sample=True), Row(second, 0, 31, sample=True), Row(third, 48, 3, sample=True)]
        assert {row.tobytes() for row in logits_of(runner, rows)} == right  # in an order of the runner's own
        runner.run(Batch([Row(second, 0, 30, sample=False)]))
        rows = [Row(third, 50, 1, sample=True), Row(second, 30, 1, sample=True), Row(first, 70, 7, sample=True)]
        assert {row.tobytes() for row in logits_of(runner, rows)} == right


def test_what_the_scheduler_asks_of_a_runner_is_the_models(tmp_path: Path) -> None:
    checkpoint = tiny(tmp_path)
    with native(checkpoint, kv_memory=10 * BLOCK_BYTES + 1, max_context=100) as runner:
        assert (runner.num_blocks, runner.vocab_size, runner.max_context) == (10, 264, 100)
        assert runner.eos_ids == checkpoint.eos_ids
        assert runner.description == describe("int8", 1)
    with native(checkpoint, dtype="int16", threads=3) as runner:
        assert runner.description == describe("int16", 3)


@pytest.mark.parametrize(("kind", "said"), [("", "int8 on cpu, 2 threads"), ("AVX2", "int8 on cpu (AVX2), 2 threads")])
def test_a_processor_that_computes_slower_is_told_of(monkeypatch: pytest.MonkeyPatch, kind: str, said: str) -> None:
    monkeypatch.setattr(native_runner, "KIND", kind)
    assert describe("int8", 2) == said


@pytest.mark.parametrize("knobs", [{"kv_memory": BLOCK_BYTES - 1}, {"max_context": 129}], ids=["memory", "context"])
def test_what_does_not_fit_is_refused(tmp_path: Path, knobs: dict[str, int]) -> None:
    with pytest.raises(ModelError), opened(tmp_path, **knobs):
        pass


def test_a_cache_key_tells_models_and_bits_apart_and_says_nothing_of_threads(tmp_path: Path) -> None:
    found = []
    for seed, dtype, threads in ((0, "int8", 1), (0, "int16", 1), (1, "int8", 1), (0, "int8", 2)):
        with native(tiny(tmp_path / f"{seed}", seed=seed), dtype=dtype, threads=threads) as runner:
            found.append(runner.kv_fingerprint)
    assert len(set(found)) == 3
    assert found[3] == found[0]


def test_only_rows_that_sample_get_an_id_in_the_order_of_the_batch(tmp_path: Path) -> None:
    with opened(tmp_path) as runner:
        first, second, third = placed([list(range(3, 30)), list(range(40, 45)), [7]])
        alone = [runner.run(Batch([Row(one, 0, len(one.ids), sample=True)]))[0] for one in (second, third)]
        rows = [Row(first, 0, 20, sample=False), Row(second, 0, 5, sample=True), Row(third, 0, 1, sample=True)]
        assert runner.run(Batch(rows)) == [None, *alone]
        assert runner.run(Batch(rows[::-1])) == [*alone[::-1], None]
        assert runner.run(Batch([Row(first, 20, 1, sample=False)])) == [None]


def test_copied_blocks_hold_what_they_were_copied_from(tmp_path: Path) -> None:
    with opened(tmp_path) as runner:
        [whole] = placed([list(range(3, 24))])
        right = logits_of(runner, [Row(whole, 0, 21, sample=True)]).copy()
        whole.block_table = [3, 4]
        runner.run(Batch([Row(whole, 20, 1, sample=True)], copies=[(0, 5), (5, 3), (1, 4)]))
        assert np.array_equal(runner.decoder.logits(1), right)


def test_a_batch_without_rows_does_its_copies_and_no_more(tmp_path: Path) -> None:
    with opened(tmp_path) as runner:
        [one] = placed([list(range(3, 20))])
        right = runner.run(Batch([Row(one, 0, 17, sample=True)]))
        assert runner.run(Batch(copies=[(0, 6), (1, 7)])) == []
        one.block_table = [6, 7]
        assert runner.run(Batch([Row(one, 16, 1, sample=True)])) == right


def test_a_broken_sequence_ends_alone_and_leaves_nothing_in_its_blocks(tmp_path: Path) -> None:
    good = [list(range(20, 50)), list(range(60, 110))]
    with opened(tmp_path / "whole") as runner:
        right = answers(runner, *good)
    assert not any(POISON in ids for ids in right)
    with opened(tmp_path / "poisoned", poisoned=True) as runner:
        scheduler = scheduler_for(runner, num_blocks=12)
        bad = sequence(9, [*range(100, 130), POISON, 101])
        found = run(scheduler, runner, bad, *(sequence(id, prompt) for id, prompt in enumerate(good)))
        assert (found[0].reason, found[0].ids) == ("failed", [])
        assert "not finite" in (found[0].error or "")
        assert [answer.ids for answer in found[1:]] == right
        for id in range(10, 14):  # until every block was used again
            assert run(scheduler, runner, sequence(id, good[id % 2]))[0].ids == right[id % 2]


def test_a_chunk_that_is_not_finite_breaks_before_its_blocks_are_shared(tmp_path: Path) -> None:
    with opened(tmp_path, poisoned=True) as runner:
        [bad] = placed([[*range(12, 29), POISON, *range(29, 49)]])
        assert isinstance(runner.run(Batch([Row(bad, 0, 32, sample=False)]))[0], Broken)
        assert runner.run(Batch([Row(bad, 0, 17, sample=False)])) == [None]  # up to the poison


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_a_small_pool_small_steps_and_more_threads_change_no_answer(tmp_path: Path, threads: int) -> None:
    with opened(tmp_path) as runner:
        right = [answers(runner, prompt)[0] for prompt in PROMPTS]
    with opened(tmp_path, threads=threads) as runner:
        for knobs in ({}, {"max_batch_tokens": 7}, {"num_blocks": 6}, {"max_batch_tokens": 17, "num_blocks": 7}):
            assert answers(runner, *PROMPTS, **knobs) == right


def test_a_step_may_be_larger_than_the_runner_was_told(tmp_path: Path) -> None:
    with opened(tmp_path) as runner:
        right = answers(runner, *PROMPTS)
    with opened(tmp_path, max_batch_tokens=2) as runner:
        assert answers(runner, *PROMPTS) == right


def test_ends_are_held_back_until_an_answer_is_long_enough(tmp_path: Path) -> None:
    with opened(tmp_path) as runner:
        [free] = answers(runner, PROMPTS[0])
        ends = frozenset(free[:2]) | {10**6}  # what is beyond the vocabulary cannot be drawn anyway

        def answer(**params: Any) -> Answer:
            chosen = SamplingParams(temperature=0, **params)
            one = sequence(1, PROMPTS[0], params=chosen, stop_ids=ends, held_back_ids=ends)
            return run(scheduler_for(runner), runner, one)[0]

        stopped, held = answer(), answer(min_tokens=3)
        assert (stopped.reason, stopped.ids) == ("stop", [])
        assert len(held.ids) >= 3
        assert not ends & set(held.ids)
        last = frozenset({free[3]})
        [cut] = run(scheduler_for(runner), runner, sequence(1, PROMPTS[0], stop_ids=last))
        assert (cut.reason, cut.ids) == ("stop", free[: free.index(free[3])])


def sampling(id: int) -> Sequence:
    """A sequence with parameters of its own, of all kinds."""
    params = SamplingParams(
        temperature=(0.7, 1.0, 2.0, 0.0)[id % 4], top_p=(1.0, 0.9, 0.5)[id % 3], top_k=(0, 5, 40, 1)[id // 4 % 4],
        min_p=(0, 0.05)[id // 2 % 2], min_tokens=id % 5,
    )
    return sequence(id, [20 + id, *range(3, 12)], seed=1000 + id, params=params, held_back_ids=frozenset({0, id}))


def test_an_id_is_drawn_as_pytorch_draws_it_from_the_same_logits(tmp_path: Path) -> None:
    ops = for_device(torch.device("cpu"))
    with opened(tmp_path, kv_memory=1 << 22) as runner:
        sequences = [sampling(id) for id in range(96)]
        for id, one in enumerate(sequences):
            one.block_table = [id]
        first = runner.run(Batch([Row(one, 0, 10, sample=True) for one in sequences]))
        logits = runner.decoder.logits(96)
        assert sample(ops, torch.from_numpy(np.maximum(logits, -1e30)), sequences) == first
        for one, row in zip(sequences, logits, strict=True):
            held = one.held_back_ids if one.params.min_tokens else frozenset()
            assert set(np.flatnonzero(row == -np.inf)) == held
    assert len(set(first)) > 15


def test_logits_are_edited_as_is_asked_and_only_by_whom(tmp_path: Path) -> None:
    chosen = [
        SamplingParams(temperature=0, repetition_penalty=1.7, logit_bias=((3, 2.5), (40, -100.0))),
        SamplingParams(temperature=0, presence_penalty=1.5, frequency_penalty=0.5, allowed_token_ids=tuple(range(30))),
        SamplingParams(temperature=0),
    ]
    with opened(tmp_path) as runner:
        asking, plain = ([sequence(id, PROMPTS[0], params=params) for id, params in enumerate(chosen)] for _ in "ab")
        for one in plain:
            one.params = SamplingParams(temperature=0)
        for one in (*asking, *plain):
            one.ids += [5, 9, 5]
        steps = []
        for several in (asking, plain):
            for block, one in enumerate(several):
                one.block_table = list(range(4 * block, 4 * block + 4))
            drawn = runner.run(Batch([Row(one, 0, len(one.ids), sample=True) for one in several]))
            steps.append((drawn, runner.decoder.logits(3).copy()))
        (drawn, found), (_, raw) = steps
        for one, own, before, id in zip(asking, found, raw, drawn, strict=True):
            asked = edits(one, runner.vocab_size)
            right, at = before.copy(), before[asked.ids]
            right[asked.ids] = np.where(at > 0, at / asked.divisors, at * asked.divisors) + asked.added
            np.testing.assert_array_equal(own, right)
            assert id == right.argmax()


def test_a_seeded_answer_is_the_same_alone_and_in_company(tmp_path: Path) -> None:
    with opened(tmp_path, kv_memory=1 << 22) as runner:
        alone = [run(scheduler_for(runner), runner, sampling(id))[0].ids for id in range(20)]
        together = run(scheduler_for(runner), runner, *(sampling(id) for id in range(20)))
        assert [answer.ids for answer in together] == alone


def test_c07_a_prompt_may_fill_the_context_but_for_one_token(tmp_path: Path) -> None:
    with opened(tmp_path, max_context=64) as runner:
        scheduler = scheduler_for(runner)
        [answer] = run(scheduler, runner, sequence(1, range(3, 66), max_tokens=10**9))
        assert (len(answer.ids), answer.reason) == (1, "length")
        [answer] = run(scheduler, runner, sequence(2, range(3, 13), max_tokens=10**9))
        assert (len(answer.ids), answer.reason) == (54, "length")


def test_close_ends_its_threads_and_may_be_called_twice(tmp_path: Path) -> None:
    before = set(threading.enumerate())
    with opened(tmp_path, threads=3) as runner:
        assert answers(runner, PROMPTS[1])
        assert len(set(threading.enumerate()) - before) == 2
        runner.close()
        assert set(threading.enumerate()) <= before
    with opened(tmp_path, threads=3):
        pass  # closed before its first step
    assert set(threading.enumerate()) <= before
