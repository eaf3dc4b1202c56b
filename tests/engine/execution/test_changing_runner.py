"""ChangingRunner: a conversation begun in PyTorch goes on in native code, and nothing of it is computed twice."""
import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from native_path import TINY, exact_tensors, native
from stepping import run, scheduler_for, sequence
from tiny_decoder import Row as Written
from tiny_decoder import kv_of
from tiny_models import write_folder

from hamdam.engine.config import EngineConfig
from hamdam.engine.execution.changing_runner import ChangingRunner, Faster
from hamdam.engine.execution.model_runner import ModelRunner, load_runner
from hamdam.engine.execution.native_runner import NativeRunner, describe, fingerprint
from hamdam.engine.loading.checkpoint import Checkpoint, open_checkpoint
from hamdam.engine.policy.batch import Batch, Broken

KV = 1 << 20  # bytes for native code; PyTorch's numbers are twice as large
PROMPTS = [list(range(3, 44)), list(range(60, 75)), [*range(3, 35), *range(200, 210)]]
PREPARING = "hamdam-prepare"


class Switch:
    """A runner that counts the tokens either side computes, and lets the other be ready before step `at`."""

    def __init__(self, first: ModelRunner, faster: NativeRunner, *, at: int, key: str) -> None:
        self.at, self.steps = at, 0
        self.computed: dict[str, list[tuple[int, int, int]]] = {}  # (sequence, start, count) by description
        self._go = threading.Event()
        self.runner = ChangingRunner(first, lambda stop: faster if self._go.wait() else None, fingerprint=key)
        for name in ("num_blocks", "vocab_size", "max_context", "eos_ids", "kv_fingerprint"):
            setattr(self, name, getattr(self.runner, name))

    def run(self, batch: Batch) -> list[int | Broken | None]:
        if self.steps == self.at:
            self.change()
        self.steps += 1
        found = self.runner.run(batch)
        rows = self.computed.setdefault(self.runner.description, [])
        rows += [(row.sequence.id, row.start, row.count) for row in batch.rows]
        return found

    def change(self) -> None:
        self._go.set()
        until_prepared()


def until_prepared() -> None:
    for thread in threading.enumerate():
        if thread.name == PREPARING:
            thread.join()


@pytest.fixture
def checkpoint(tmp_path: Path) -> Checkpoint:
    return open_checkpoint(write_folder(tmp_path, TINY, exact_tensors(TINY)))


def with_pytorch(checkpoint: Checkpoint, dtype: str = "float32") -> ModelRunner:
    kv_memory = KV * (2 if dtype == "float32" else 1)
    return load_runner(checkpoint, EngineConfig(model=Path(), device="cpu", dtype=dtype, kv_memory=kv_memory))


@contextmanager
def switching(
    checkpoint: Checkpoint, *, at: int, dtype: str = "float32"
) -> Iterator[tuple[Switch, NativeRunner]]:
    with native(checkpoint, dtype="int16", kv_memory=KV) as faster:
        switch = Switch(with_pytorch(checkpoint, dtype), faster, at=at, key=faster.kv_fingerprint)
        try:
            yield switch, faster
        finally:
            switch.change()
            switch.runner.close()


@pytest.mark.parametrize("at", [0, 1, 5, 20])
def test_every_token_is_computed_once_by_one_or_the_other(checkpoint: Checkpoint, at: int) -> None:
    with switching(checkpoint, at=at) as (switch, faster):
        scheduler = scheduler_for(switch, max_batch_tokens=24)
        sequences = [sequence(id, prompt, max_tokens=30) for id, prompt in enumerate(PROMPTS)]
        answers = run(scheduler, switch, *sequences)
        assert [len(answer.ids) for answer in answers] == [30, 30, 30]
        before, after = [*switch.computed.values(), []][:2] if at else ([], switch.computed[faster.description])
        assert bool(before) == bool(at)
        assert after
        for id, one in enumerate(sequences):
            spans = sorted((start, count) for rows in (before, after) for own, start, count in rows if own == id)
            ends = [start + count for start, count in spans]
            assert [start for start, _ in spans] == [answers[id].cached, *ends[:-1]]
            assert ends[-1] == len(one.ids) - 1
        assert switch.runner.description == describe("int16", 1)


@pytest.mark.parametrize("at", [1, 5, 20])
def test_answers_are_those_of_native_code_from_the_start(checkpoint: Checkpoint, at: int) -> None:
    def answers(runner: Any) -> list[list[int]]:
        sequences = [sequence(id, ids, max_tokens=30) for id, ids in enumerate(PROMPTS)]
        return [answer.ids for answer in run(scheduler_for(runner), runner, *sequences)]

    with native(checkpoint, dtype="int16", kv_memory=KV) as runner:
        right = answers(runner)
    with switching(checkpoint, at=at) as (switch, _):
        assert answers(switch) == right


@pytest.mark.parametrize(("dtype", "most"), [("float32", 0.003), ("bfloat16", 0.03)])
def test_what_is_taken_over_are_the_keys_and_values_that_native_code_would_have_written(
    checkpoint: Checkpoint, dtype: str, most: float
) -> None:
    def written(switch_at: int) -> list[np.ndarray]:
        with switching(checkpoint, at=switch_at, dtype=dtype) as (switch, faster):
            scheduler = scheduler_for(switch, max_batch_tokens=8)
            one = sequence(1, range(3, 63))
            scheduler.add(one, 0.0)
            while one.num_computed < 60:
                batch = scheduler.schedule(0.0)
                scheduler.update(batch, switch.run(batch), 0.0)
            row = Written(one.ids, one.block_table, done=60)
            return [part for layer in range(2) for part in kv_of(faster.decoder, layer, row)]

    for own, right in zip(written(switch_at=6), written(switch_at=0), strict=True):
        assert own.shape == right.shape == (60, 2, 16)
        assert np.isfinite(own).all()
        assert 0 < np.linalg.norm(own - right) < most * np.linalg.norm(right)
        assert not (own[:40] == right[:40]).all()  # PyTorch's own


def test_a_later_turn_finds_what_was_computed_before_the_change(checkpoint: Checkpoint) -> None:
    """Blocks of an idle session and of the index, and one that is copied because it is shared, are taken over too."""
    with switching(checkpoint, at=10**9) as (switch, faster):
        scheduler = scheduler_for(switch)
        [first] = run(scheduler, switch, sequence(1, PROMPTS[0], session_id="chat"))
        run(scheduler, switch, sequence(2, PROMPTS[1]))
        switch.change()
        talk = [*PROMPTS[0], *first.ids]
        [second] = run(scheduler, switch, sequence(3, [*talk, 7, 8, 9], session_id="chat"))
        assert second.cached == len(talk) - 1
        [again] = run(scheduler, switch, sequence(4, PROMPTS[1]))
        assert again.cached == len(PROMPTS[1]) - len(PROMPTS[1]) % 16
        [shared] = run(scheduler, switch, sequence(5, PROMPTS[0][:32]))
        assert shared.cached == 31
        assert set(switch.computed) >= {faster.description}
    with native(checkpoint, dtype="int16", kv_memory=KV) as runner:
        for prompt, found in (([*talk, 7, 8, 9], second), (PROMPTS[1], again), (PROMPTS[0][:32], shared)):
            assert run(scheduler_for(runner), runner, sequence(1, prompt))[0].ids == found.ids


def test_it_says_what_computes_now(checkpoint: Checkpoint) -> None:
    with switching(checkpoint, at=2) as (switch, _):
        run(scheduler_for(switch), switch, sequence(1, PROMPTS[0], max_tokens=4))
        assert list(switch.computed) == ["float32 on cpu, until a faster path is ready", describe("int16", 1)]


def test_cached_blocks_are_known_by_the_key_that_native_code_has(checkpoint: Checkpoint) -> None:
    with switching(checkpoint, at=0) as (switch, faster):
        right = fingerprint(checkpoint, EngineConfig(model=Path()), "int16")
        assert switch.runner.kv_fingerprint == faster.kv_fingerprint == right
        assert switch.runner.num_blocks == faster.num_blocks


def test_the_first_runner_is_closed_as_soon_as_the_other_computes(checkpoint: Checkpoint) -> None:
    with native(checkpoint, dtype="int16", kv_memory=KV) as faster:
        first = with_pytorch(checkpoint)
        closed: list[str] = []
        first.close = lambda: closed.append("first")  # type: ignore[method-assign]
        faster.close = lambda: closed.append("faster")  # type: ignore[method-assign]
        runner = ChangingRunner(first, lambda stop: faster, fingerprint="one")
        until_prepared()
        assert closed == []
        runner.run(Batch())
        assert closed == ["first"]
        runner.close()
        assert closed == ["first", "faster"]
        del faster.close


def failing(stop: threading.Event) -> Faster | None:
    raise ValueError("no such luck")


def test_what_cannot_be_prepared_is_said_and_the_slower_one_goes_on(
    checkpoint: Checkpoint, caplog: pytest.LogCaptureFixture
) -> None:
    def answer(prepare: Callable[[threading.Event], Faster | None]) -> tuple[list[int], str]:
        runner = ChangingRunner(with_pytorch(checkpoint), prepare, fingerprint="one")
        until_prepared()
        [found] = run(scheduler_for(runner), runner, sequence(1, PROMPTS[0]))
        described = runner.description
        runner.close()
        return found.ids, described

    first = with_pytorch(checkpoint)
    right = run(scheduler_for(first), first, sequence(1, PROMPTS[0]))[0].ids
    assert answer(failing) == (right, "float32 on cpu")
    [record] = caplog.records
    assert record.levelno == logging.ERROR
    assert record.exc_info
    assert answer(lambda stop: None) == (right, "float32 on cpu")


def test_closing_stops_a_preparation_and_closes_what_it_made_all_the_same(checkpoint: Checkpoint) -> None:
    with native(checkpoint, dtype="int16", threads=2, kv_memory=KV) as faster:

        def late(stop: threading.Event) -> Faster | None:
            stop.wait()
            return faster

        runner = ChangingRunner(with_pytorch(checkpoint), late, fingerprint="one")
        runner.close()
        names = {thread.name for thread in threading.enumerate()}
        assert not names & {PREPARING, "hamdam-step-1"}
