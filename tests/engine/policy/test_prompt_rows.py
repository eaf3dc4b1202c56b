"""Rows of a prompt whose tokens are scored: one token each, every token once, and a few a step whoever asks."""
import pytest
from stepping import scheduler_for, sequence

from hamdam.engine.policy.batch import Batch, Broken, Logprobs, Result, Row, Scored
from hamdam.engine.policy.progress import Appended, Ended, PromptScored
from hamdam.engine.policy.prompt_rows import SCORED_A_STEP, prompt_rows
from hamdam.engine.policy.sampling_params import SamplingParams
from hamdam.engine.policy.sequence import Sequence

ASKING = SamplingParams(temperature=0, prompt_logprobs=3)


class Counting:
    """A runner that scores the id n with -n, and draws nothing but 7."""

    num_blocks, vocab_size, max_context, eos_ids, kv_fingerprint, description = 64, 1000, 900, frozenset(), "", ""

    def run(self, batch: Batch) -> list[Result]:
        return [self.result(row) for row in batch.rows]

    def result(self, row: Row) -> Result:
        if row.sequence.given is not None:
            return Scored(row.sequence.given, Logprobs(-float(row.sequence.given)))
        return 7 if row.sample else None

    def close(self) -> None:
        pass


def spans(rows: list[Row]) -> list[tuple[int, int, int | None, bool]]:
    return [(row.start, row.count, row.sequence.given, row.sample) for row in rows]


def test_every_token_but_the_last_stands_before_a_known_one() -> None:
    one = sequence(1, [10, 11, 12, 13], params=ASKING)
    rows = prompt_rows(one, 0, 4)
    assert spans(rows) == [(0, 1, 11, True), (1, 1, 12, True), (2, 1, 13, True), (3, 1, None, True)]
    assert [row.scores is one for row in rows] == [True, True, True, False]
    assert spans(prompt_rows(one, 1, 2)) == [(1, 1, 12, True), (2, 1, 13, True)]


def test_what_was_scored_is_only_computed_again() -> None:
    one = sequence(1, [10, 11, 12, 13], params=ASKING)
    one.num_scored = 2
    assert spans(prompt_rows(one, 0, 4)) == [(0, 2, None, False), (2, 1, 13, True), (3, 1, None, True)]
    assert spans(prompt_rows(one, 0, 1)) == [(0, 1, None, False)]
    one.ids += [20, 21]
    assert spans(prompt_rows(one, 2, 4)) == [(2, 1, 13, True), (3, 3, None, True)]


def run(*sequences: Sequence, runner: Counting | None = None, **knobs: int) -> tuple[list[list[float]], list[Batch]]:
    """What each was told of its prompt, and all steps."""
    runner = runner or Counting()
    scheduler = scheduler_for(runner, **knobs)
    told: dict[int, list[float]] = {one.id: [] for one in sequences}
    drawn: set[int] = set()
    steps = []
    for one in sequences:
        scheduler.add(one, 0.0)
    while scheduler.has_work:
        batch = scheduler.schedule(0.0)
        steps.append(batch)
        for fact in scheduler.update(batch, runner.run(batch), 0.0):
            if isinstance(fact, PromptScored):
                assert fact.sequence.id not in drawn, "the prompt comes before the answer"
                told[fact.sequence.id].append(-fact.logprobs.drawn)
            if isinstance(fact, Appended | Ended):
                drawn.add(fact.sequence.id)
    scheduler.check_integrity()
    return list(told.values()), steps


@pytest.mark.parametrize("knobs", [{}, {"max_batch_tokens": 5}, {"num_blocks": 12}])
def test_each_token_is_told_once_in_order_whatever_the_steps(knobs: dict[str, int]) -> None:
    prompts = [list(range(id * 100, id * 100 + length)) for id, length in ((1, 50), (2, 1), (3, 2), (4, 70), (5, 33))]
    asking = [sequence(id, prompt, params=ASKING, max_tokens=20) for id, prompt in enumerate(prompts)]
    others = [sequence(id, range(id, id + 40), max_tokens=30) for id in (8, 9)]
    told, steps = run(*asking, *others, **knobs)
    assert told == [*([float(id) for id in prompt[1:]] for prompt in prompts), [], []]
    for batch in steps:
        assert sum(row.scores is not None for row in batch.rows) <= SCORED_A_STEP


def test_blocks_that_are_found_computed_are_not_used_for_what_is_to_be_scored_but_left_for_others() -> None:
    runner = Counting()
    scheduler = scheduler_for(runner)
    prompt = list(range(100, 150))
    cached = []
    for id, params in enumerate((SamplingParams(temperature=0), ASKING, SamplingParams(temperature=0))):
        one = sequence(id, prompt, params=params, max_tokens=1)
        scheduler.add(one, 0.0)
        while scheduler.has_work:
            batch = scheduler.schedule(0.0)
            scheduler.update(batch, runner.run(batch), 0.0)
        cached.append(one.num_cached)
    assert cached == [0, 0, 48]


def test_a_token_that_breaks_ends_its_own_sequence_once() -> None:
    class Breaking(Counting):
        def result(self, row: Row) -> Result:
            return Broken("no") if row.sequence.given == 105 else super().result(row)

    bad, good = sequence(1, range(100, 120), params=ASKING), sequence(2, range(200, 220), params=ASKING, max_tokens=2)
    told, _ = run(bad, good, runner=Breaking())
    assert told == [[101.0, 102.0, 103.0, 104.0], [float(id) for id in range(201, 220)]]
    assert (bad.finish_reason, good.finish_reason) == ("failed", "length")
