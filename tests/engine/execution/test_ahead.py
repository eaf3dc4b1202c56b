"""A step that was foreseen is launched before the ids of the one before it are waited for, and changes no answer."""
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from recording import POISON, Recorder, load
from stepping import Answer, run, scheduler_for, sequence
from tiny_models import CONFIG

from hamdam.engine.execution.decode_graphs import Record
from hamdam.engine.execution.model_runner import ModelRunner
from hamdam.engine.execution.transfer import Fetch
from hamdam.engine.policy.batch import Batch, Row
from hamdam.engine.policy.sampling_params import SamplingParams
from hamdam.engine.policy.scheduler import Scheduler
from hamdam.engine.policy.sequence import Sequence

ENDS = frozenset(range(40, 80))


def many() -> list[Sequence]:
    """All that a draw may depend on of the ids before it, and every way to end."""
    asked: list[dict[str, Any]] = [
        {"temperature": 0.0}, {"temperature": 0.9}, {"temperature": 0.7, "repetition_penalty": 1.5},
        {"temperature": 0.0, "frequency_penalty": 1.0}, {"temperature": 1.0, "logprobs": True, "top_logprobs": 3},
        {"temperature": 1.0, "min_tokens": 6}, {"temperature": 0.0, "prompt_logprobs": 1}, {"temperature": 0.9},
    ]  # fmt: skip
    return [
        sequence(
            number, range(20 + number, 60 + 3 * number), seed=number, max_tokens=1 if number == 7 else 9 + 5 * number,
            params=SamplingParams(**params), stop_ids=ENDS if number % 2 else frozenset(),
            held_back_ids=ENDS if number % 2 else frozenset(), session_id=f"s{number}",
        )
        for number, params in enumerate(asked)
    ]


def steps(runner: ModelRunner, scheduler: Scheduler) -> list[Answer]:
    return run(scheduler, runner, *many())


def worths(answer: Answer) -> list[float]:
    """What it was told of probabilities; sums of PyTorch depend on what else a step holds."""
    told = (*answer.logprobs, *answer.prompt)
    return [worth for scored in told for worth in (scored.drawn, *dict(scored.top).values())]


@pytest.mark.parametrize("knobs", [{}, {"max_batch_tokens": 24}, {"num_blocks": 14}, {"max_running": 3}], ids=str)
@pytest.mark.parametrize("recorder", [lambda: None, Recorder], ids=["launched", "recorded"])
def test_answers_are_those_of_one_step_after_another(
    tmp_path: Path, knobs: dict[str, int], recorder: Callable[[], Record | None]
) -> None:
    plain, ahead = load(tmp_path), load(tmp_path, recorder(), ahead=True)
    of_plain = scheduler_for(plain, **{"max_running": 6} | knobs)
    of_ahead = scheduler_for(ahead, **{"max_running": 6} | knobs)
    right = steps(plain, of_plain)
    assert {answer.reason for answer in right} == {"length", "stop"}
    found = steps(ahead, of_ahead)
    for one, other in zip(found, right, strict=True):
        assert (one.ids, one.reason, one.error) == (other.ids, other.reason, other.error)
        assert worths(one) == pytest.approx(worths(other), abs=1e-5)
    assert of_ahead.stats().tokens_sampled == of_plain.stats().tokens_sampled
    assert of_ahead.stats().tokens_computed == of_plain.stats().tokens_computed or "num_blocks" in knobs


def test_the_next_step_is_launched_before_the_ids_of_this_one_are_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runner = load(tmp_path, ahead=True)
    order: list[str] = []
    compute, wait = runner._compute, Fetch.wait

    def computing(*step: Any) -> Any:
        order.append("launch")
        return compute(*step)

    def waiting(fetch: Fetch) -> list[torch.Tensor]:
        order.append("wait")
        return wait(fetch)

    monkeypatch.setattr(runner, "_compute", computing)
    monkeypatch.setattr(Fetch, "wait", waiting)
    [answer] = run(scheduler_for(runner), runner, sequence(1, range(20, 30), max_tokens=4))
    assert len(answer.ids) == 4
    assert order == ["launch", "launch", "wait", "launch", "wait", "launch", "wait", "wait"]


def test_who_ends_or_is_cancelled_after_it_was_foreseen_draws_nothing(tmp_path: Path) -> None:
    runner = load(tmp_path, ahead=True)
    scheduler = scheduler_for(runner)
    alone = run(scheduler_for(runner), runner, sequence(3, range(90, 120), max_tokens=12))
    ends, cut, stays = (sequence(id, range(id * 30, id * 30 + 30), max_tokens=12) for id in (1, 2, 3))
    for one in (ends, cut, stays):
        scheduler.add(one, 0.0)
    while stays.num_generated < 3:
        scheduler.update(batch := scheduler.schedule(0.0), runner.run(batch), 0.0)
    ends.stop_ids = frozenset(range(CONFIG["vocab_size"]))  # whatever is drawn next ends it
    scheduler.update(batch := scheduler.schedule(0.0), runner.run(batch), 0.0)
    assert ends.finish_reason == "stop"
    scheduler.cancel(cut.id, keep=1)
    foreseen = scheduler.schedule(0.0)
    drawn = runner.run(foreseen)
    assert {row.sequence.id: id is None for row, id in zip(foreseen.rows, drawn, strict=True)} == {
        ends.id: True, cut.id: True, stays.id: False,
    }
    scheduler.update(foreseen, drawn, 0.0)
    while scheduler.has_work:
        scheduler.update(batch := scheduler.schedule(0.0), runner.run(batch), 0.0)
    assert stays.ids[stays.num_prompt :] == alone[0].ids
    scheduler.check_integrity()


def test_what_was_foreseen_for_nobody_is_never_asked_for(tmp_path: Path) -> None:
    runner = load(tmp_path, ahead=True)
    scheduler = scheduler_for(runner)
    scheduler.add(first := sequence(1, range(30), max_tokens=12), 0.0)
    scheduler.update(batch := scheduler.schedule(0.0), runner.run(batch), 0.0)
    scheduler.cancel(first.id)
    assert not scheduler.has_work
    [right] = run(scheduler_for(runner), runner, sequence(2, range(60), max_tokens=12))
    [answer] = run(scheduler, runner, sequence(2, range(60), max_tokens=12))
    assert answer.ids == right.ids


def test_a_row_that_breaks_takes_nobody_with_it(tmp_path: Path) -> None:
    runner = load(tmp_path, ahead=True)
    [right] = run(scheduler_for(runner), runner, sequence(1, range(30, 60), max_tokens=8))
    only_poison = SamplingParams(temperature=0, allowed_token_ids=(POISON,))
    good = sequence(1, range(30, 60), max_tokens=8)
    bad = sequence(2, range(90, 130), max_tokens=8, params=only_poison)
    found = run(scheduler_for(runner), runner, good, bad)
    assert found[0].ids == right.ids
    assert (found[1].ids, found[1].reason) == ([POISON], "failed")


def test_a_batch_that_foresees_nothing_is_run_as_ever(tmp_path: Path) -> None:
    runner = load(tmp_path, ahead=True)
    one = sequence(1, range(20, 37))
    one.block_table = [3, 4]
    [first] = runner.run(Batch([Row(one, 0, 17, sample=True)]))
    assert runner.run(Batch([Row(one, 16, 1, sample=True)])) == [first]
    assert runner.run(Batch()) == []
