"""DecodeGraphs: a recorded step gives what a launched one gives."""
import logging
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest
from recording import POISON, Recorder, load
from stepping import Answer, run, scheduler_for, sequence

from hamdam.engine.execution.decode_graphs import Scores, sizes
from hamdam.engine.execution.model_runner import ModelRunner
from hamdam.engine.policy.batch import Batch, Broken, Row
from hamdam.engine.policy.sampling_params import SamplingParams
from hamdam.engine.policy.sequence import Sequence


def many(lengths: Iterable[int] = (50, 33, 16, 1, 20, 7, 9)) -> list[Sequence]:
    """Some greedy, some not."""
    return [
        sequence(
            number, range(20 + number, 20 + number + length), seed=number, max_tokens=5 + 3 * number,
            params=SamplingParams(temperature=number % 3 * 0.7, top_p=0.9),
        )
        for number, length in enumerate(lengths)
    ]


def answers(runner: ModelRunner, *sequences: Sequence, **knobs: int) -> list[Answer]:
    return run(scheduler_for(runner, max_running=6, **knobs), runner, *sequences)


@pytest.mark.parametrize("knobs", [{}, {"max_batch_tokens": 7}, {"num_blocks": 9}], ids=str)
def test_recorded_steps_answer_as_launched_ones_do(tmp_path: Path, knobs: dict[str, int]) -> None:
    right = answers(load(tmp_path), *many())
    recorder = Recorder()
    assert answers(load(tmp_path, recorder), *many(), **knobs) == right
    assert recorder.replayed > 10


def test_every_size_is_recorded_at_the_start_and_a_decode_step_replays_the_next_larger(tmp_path: Path) -> None:
    recorder = Recorder()
    runner = load(tmp_path, recorder)
    assert recorder.recorded == len(sizes(1, 6, times=2)) == 4  # of 1, 2, 4 and 6 rows
    answers(runner, *many([20, 30, 40]))
    assert recorder.recorded == 4
    assert recorder.replayed > 0


def test_a_piece_of_a_prompt_is_launched_and_not_replayed(tmp_path: Path) -> None:
    recorder = Recorder()
    runner = load(tmp_path, recorder)
    first, second = many([20, 30])
    first.block_table, second.block_table = [5, 2], [0, 1]
    runner.run(Batch([Row(first, 0, 20, sample=True), Row(second, 0, 1, sample=False)]))
    assert recorder.replayed == 0
    found = runner.run(Batch([Row(first, 19, 1, sample=True), Row(second, 1, 1, sample=False)]))
    assert recorder.replayed == 1
    assert isinstance(found[0], int)
    assert found[1] is None


def test_longer_tables_are_recorded_when_they_are_met(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hamdam.engine.execution.decode_graphs.NARROWEST", 2)
    right = answers(load(tmp_path), *many())
    recorder = Recorder()
    runner = load(tmp_path, recorder)
    before = recorder.recorded
    assert answers(runner, *many()) == right
    met = recorder.recorded
    assert met > before
    assert answers(runner, *many()) == right
    assert recorder.recorded == met


def test_a_broken_row_in_a_recorded_step_is_alone(tmp_path: Path) -> None:
    runner = load(tmp_path, Recorder())
    first, bad, last = many([5, 5, 5])
    bad.ids[-1] = POISON
    for number, each in enumerate((first, bad, last)):
        each.block_table = [number]
        runner.run(Batch([Row(each, 0, 4, sample=False)]))
    found = runner.run(Batch([Row(each, 4, 1, sample=True) for each in (first, bad, last)]))
    assert [type(one) for one in found] == [int, Broken, int]
    waiting = runner.run(Batch([Row(each, 4, 1, sample=False) for each in (first, bad, last)]))
    assert [type(one) for one in waiting] == [type(None), Broken, type(None)]


@pytest.mark.parametrize("fails_at", [1, 3, 5])
def test_what_cannot_be_recorded_is_launched_and_said_in_one_line(
    tmp_path: Path, fails_at: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("hamdam.engine.execution.decode_graphs.NARROWEST", 2)  # so that some are recorded later
    right = answers(load(tmp_path), *many())
    recorder = Recorder()

    def fails(work: Callable[[], Scores]) -> tuple[Callable[[], None], Scores]:
        if recorder.recorded == fails_at - 1:
            raise RuntimeError("operation not permitted\nwhen stream is capturing")
        return recorder(work)

    runner = load(tmp_path, fails)
    assert answers(runner, *many()) == right
    [warning] = caplog.records
    assert (warning.levelno, "\n" in warning.message) == (logging.WARNING, False)
    assert "operation not permitted when stream is capturing" in warning.message


def test_sizes_grow_by_a_factor_and_end_where_they_have_to() -> None:
    assert sizes(1, 64, times=2) == [1, 2, 4, 8, 16, 32, 64]
    assert sizes(1, 70, times=2) == [1, 2, 4, 8, 16, 32, 64, 70]
    assert sizes(64, 8, times=4) == [8]
