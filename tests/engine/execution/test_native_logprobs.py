"""Logprobs of the native path: of the logits before edits, only for rows that ask, which changes nothing for others."""
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from native_path import TINY, decoded_logits, exact_tensors, native
from stepping import Answer, run, scheduler_for, sequence
from tiny_models import write_folder

from hamdam.engine.config import EngineConfig
from hamdam.engine.execution.logprobs import logprobs
from hamdam.engine.execution.model_runner import load_runner
from hamdam.engine.loading.checkpoint import Checkpoint, open_checkpoint
from hamdam.engine.policy.batch import Batch, Broken, Row, Scored
from hamdam.engine.policy.prompt_rows import prompt_rows
from hamdam.engine.policy.sampling_params import SamplingParams
from hamdam.engine.policy.sequence import Sequence

POISON = 11  # a token whose embedding is not a number
TALKS = [list(range(5, 5 + length)) for length in (50, 33, 16, 1, 17, 40)]


def tiny(folder: Path, *, poisoned: bool = False) -> Checkpoint:
    tensors = exact_tensors(TINY)
    if poisoned:
        tensors["model.embed_tokens.weight"][POISON] = np.nan
    return open_checkpoint(write_folder(folder, TINY, tensors))


def asked(id: int, *, ask: bool = True, **params: Any) -> Sequence:
    """Of several kinds, drawn and greedy, edited and not. With `ask` two of three ask for logprobs."""
    kinds = ({"temperature": 0.8}, {"temperature": 0, "logit_bias": ((40, 5.0),)}, {"top_k": 3, "presence_penalty": 1})
    own = {"logprobs": True, "top_logprobs": id % 5} if ask and id % 3 else {}
    chosen = SamplingParams(**kinds[id % len(kinds)] | own | params)
    return sequence(id, TALKS[id], seed=id, params=chosen, max_tokens=10)


def all_of(answers: list[Answer]) -> list[tuple[Any, ...]]:
    return [(answer.ids, answer.logprobs) for answer in answers]


def test_c06_they_are_those_of_the_logits_that_nobody_edited(tmp_path: Path) -> None:
    edited: list[dict[str, Any]] = [
        {"allowed_token_ids": (3, 8, 9)}, {"top_k": 1}, {"logit_bias": ((7, -100.0), (8, 90.0))}, {"temperature": 0.01},
        {"repetition_penalty": 9.0}, {"presence_penalty": 2.0},
    ]
    with native(tiny(tmp_path)) as runner:
        plain = [sequence(id, TALKS[0]) for id in range(len(edited))]
        asking = [
            sequence(id, TALKS[0], params=SamplingParams(logprobs=True, top_logprobs=20, **own))
            for id, own in enumerate(edited)
        ]
        for id, one in enumerate((*plain, *asking)):
            one.block_table = list(range(4 * (id % len(edited)), 4 * (id % len(edited)) + 4))
            one.ids += [5, 9, 5]
        runner.run(Batch([Row(one, 0, len(one.ids), sample=True) for one in plain]))
        raw = runner.decoder.logits(len(edited)).copy()
        for one in (*asking, *plain):
            one.ids += [4]
        found = runner.run(Batch([Row(one, 0, len(one.ids) - 1, sample=True) for one in asking]))
        for row, one in zip(raw, found, strict=True):
            assert isinstance(one, Scored)
            assert one.logprobs == logprobs(row, one.id, 20)
        assert {one.id for one in found if isinstance(one, Scored)} > {8}


def test_they_are_near_those_of_float32(tmp_path: Path) -> None:
    checkpoint = tiny(tmp_path)
    slow = load_runner(checkpoint, EngineConfig(model=tmp_path, device="cpu", dtype="float32", kv_memory=1 << 20))
    rows = [sequence(1, TALKS[0], params=SamplingParams(temperature=0, logprobs=True, top_logprobs=3)) for _ in "ab"]
    with native(checkpoint, dtype="int16") as runner:
        [ours], [theirs] = (run(scheduler_for(r), r, row) for r, row in zip((runner, slow), rows, strict=True))
    assert len(ours.logprobs) == len(ours.ids)
    for id, one, other in zip(ours.ids, ours.logprobs, theirs.logprobs, strict=True):
        assert one.top[0] == (id, one.drawn)
        assert one.drawn == pytest.approx(other.drawn, abs=0.01)


def test_who_asks_changes_no_answer_and_gets_the_same_in_any_company(tmp_path: Path) -> None:
    checkpoint = tiny(tmp_path)
    ids = range(len(TALKS))
    with native(checkpoint) as runner:
        without = run(scheduler_for(runner), runner, *(asked(id, ask=False) for id in ids))
        alone = [run(scheduler_for(runner), runner, asked(id))[0] for id in ids]
        assert [answer.ids for answer in alone] == [answer.ids for answer in without]
        assert [len(answer.logprobs) for answer in alone] == [len(alone[id].ids) if id % 3 else 0 for id in ids]
        assert not any(answer.logprobs for answer in without)
    for threads in (1, 3):
        with native(checkpoint, threads=threads) as runner:
            for knobs in ({}, {"max_batch_tokens": 7}, {"num_blocks": 6}):
                found = run(scheduler_for(runner, **knobs), runner, *(asked(id) for id in ids))
                assert all_of(found) == all_of(alone)
            scheduler = scheduler_for(runner)
            for _ in range(2):
                again = run(scheduler, runner, *(asked(id) for id in ids))
                assert all_of(again) == all_of(alone)
            assert again[0].cached == 48


def test_a_broken_row_that_asks_ends_alone(tmp_path: Path) -> None:
    params = SamplingParams(temperature=0, logprobs=True, top_logprobs=2)
    with native(tiny(tmp_path, poisoned=True)) as runner:
        good, bad, other = (
            sequence(id, ids, params=params) for id, ids in enumerate(([20, 21], [20, POISON], [30, 31, 32]))
        )
        for block, one in enumerate((good, bad, other)):
            one.block_table = [block]
        first, broken, last = runner.run(Batch([Row(one, 0, len(one.ids), sample=True) for one in (good, bad, other)]))
        assert isinstance(broken, Broken)
        for one in (first, last):
            assert isinstance(one, Scored)
            assert one.logprobs.top[0] == (one.id, one.logprobs.drawn)


def scoring(id: int, ids: list[int], **fields: Any) -> Sequence:
    return sequence(id, ids, params=SamplingParams(temperature=0, prompt_logprobs=3), max_tokens=6, **fields)


def test_of_a_prompt_each_token_has_what_the_logits_before_it_say(tmp_path: Path) -> None:
    with native(tiny(tmp_path)) as runner:
        logits = decoded_logits(runner, TALKS)
    right = [[logprobs(row, id, 3) for row, id in zip(own, ids[1:], strict=False)]
             for own, ids in zip(logits, TALKS, strict=True)]
    for threads in (1, 3):
        with native(tiny(tmp_path), threads=threads) as runner:
            unscored = (sequence(id, ids, max_tokens=6) for id, ids in enumerate(TALKS))
            plain = run(scheduler_for(runner), runner, *unscored)
            for knobs in ({}, {"max_batch_tokens": 7}, {"num_blocks": 6}):
                scheduler = scheduler_for(runner, **knobs)
                found = run(scheduler, runner, *(scoring(id, ids) for id, ids in enumerate(TALKS)))
                assert [answer.prompt for answer in found] == right
                assert [answer.ids for answer in found] == [answer.ids for answer in plain]
                after = run(scheduler, runner, *(sequence(id + 10, ids, max_tokens=6) for id, ids in enumerate(TALKS)))
                assert [answer.ids for answer in after] == [answer.ids for answer in plain], "from blocks that it left"


@pytest.mark.parametrize("scored", [1, 2, 3, 16, 17, 34])
def test_what_a_preemption_left_scored_is_computed_again_in_the_step_that_scores_the_rest(
    tmp_path: Path, scored: int
) -> None:
    """Keys and values of both are then written in one step, some into the same words."""
    ids = TALKS[0][:36]
    with native(tiny(tmp_path)) as runner:
        whole, again = scoring(1, ids), scoring(2, ids, num_scored=scored)
        whole.block_table, again.block_table = [0, 1, 2], [3, 4, 5]
        right = runner.run(Batch(prompt_rows(whole, 0, len(ids))))
        rows = prompt_rows(again, 0, len(ids))
        other = sequence(3, TALKS[1], block_table=[6, 7, 8])  # its rows belong between those, by their blocks alone
        found = runner.run(Batch([Row(other, 0, 20, sample=False), *rows]))[1:]
        assert rows[0].count == scored
        assert found == [None, *right[scored:]]


def test_who_asks_for_its_prompt_changes_no_answer_of_others(tmp_path: Path) -> None:
    with native(tiny(tmp_path), threads=2) as runner:
        alone = [run(scheduler_for(runner), runner, asked(id))[0] for id in range(len(TALKS))]
        beside = [scoring(10 + id, ids[::-1]) for id, ids in enumerate(TALKS)]
        found = run(scheduler_for(runner), runner, *(asked(id) for id in range(len(TALKS))), *beside)
        assert all_of(found[: len(TALKS)]) == all_of(alone)


def test_a_prompt_that_breaks_where_it_is_scored_ends_alone(tmp_path: Path) -> None:
    with native(tiny(tmp_path, poisoned=True)) as runner:
        [right] = run(scheduler_for(runner), runner, scoring(1, TALKS[1][20:]))
        bad, good = run(scheduler_for(runner), runner, scoring(1, [20, 21, POISON, 22]), scoring(2, TALKS[1][20:]))
        assert (bad.reason, len(bad.prompt)) == ("failed", 2)
        assert (good.ids, good.prompt) == (right.ids, right.prompt)
