"""Each row by its own parameters and its own draws: alone, in company, preempted or resumed, the same ids."""
import random
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from stepping import Answer, run, scheduler_for, sequence

from hamdam.engine.execution.draws import GREEDY_BELOW, uniform
from hamdam.engine.execution.sampler import sample
from hamdam.engine.policy.batch import Batch, Broken
from hamdam.engine.policy.sampling_params import SamplingParams
from hamdam.engine.policy.sequence import Sequence
from hamdam.kernels.device import for_device

VOCABULARY = 200
OPS = for_device(torch.device("cpu"))
END, OTHER_END = 198, 199


@dataclass
class FixedLogits:
    """A runner whose logits depend on the ids so far and on nothing else. The sampler is the real one."""

    num_blocks: int = 64
    vocab_size: int = VOCABULARY
    max_context: int = 4096
    eos_ids: frozenset[int] = frozenset({END, OTHER_END})
    description: str = "fixed"
    kv_fingerprint: str = "fixed"
    bias: dict[int, float] = field(default_factory=dict)  # of single ids

    def logits(self, ids: list[int]) -> torch.Tensor:
        seed = hash(tuple(ids[-8:])) % (1 << 60) + len(ids)
        logits = torch.randn(VOCABULARY, generator=torch.Generator().manual_seed(seed)) * 2
        for id, value in self.bias.items():
            logits[id] = value
        return logits

    def run(self, batch: Batch) -> list[int | Broken | None]:
        drawn: list[int | Broken | None] = [None] * len(batch.rows)
        sampling = [index for index, row in enumerate(batch.rows) if row.sample]
        if sampling:
            sequences = [batch.rows[index].sequence for index in sampling]
            found = sample(OPS, torch.stack([self.logits(s.ids) for s in sequences]), sequences)
            for index, id in zip(sampling, found, strict=True):
                drawn[index] = id
        return drawn

    def close(self) -> None:
        pass


def warm(id: int, *, seed: int, prompt: list[int] | None = None, max_tokens: int = 16, **params: Any) -> Sequence:
    chosen = SamplingParams(**{"temperature": 0.8} | params)
    return sequence(id, prompt or [1, 2, 3], seed=seed, max_tokens=max_tokens, params=chosen)


def ids_of(*sequences: Sequence, **knobs: Any) -> list[list[int]]:
    runner = FixedLogits()
    return [answer.ids for answer in run(scheduler_for(runner, **knobs), runner, *sequences)]


def test_c01_a_seeded_answer_is_the_same_alone_and_in_any_company() -> None:
    [alone] = ids_of(warm(1, seed=42))
    assert len(alone) == 16
    for other_seed in (7, 8, 42):
        assert ids_of(warm(1, seed=42), warm(2, seed=other_seed, prompt=[9, 9]))[0] == alone
    eight = [warm(id, seed=id, prompt=[id] * id) for id in range(2, 9)]
    assert ids_of(*eight[:3], warm(1, seed=42), *eight[3:])[3] == alone


def test_c01_a_seeded_answer_survives_preemption_and_a_cached_prefix() -> None:
    prompt = list(range(40))
    runner = FixedLogits()
    [alone] = ids_of(warm(1, seed=42, prompt=prompt, max_tokens=60))

    scheduler = scheduler_for(runner, num_blocks=9)
    older = warm(2, seed=1, prompt=list(range(100, 140)), max_tokens=60)
    _, preempted = run(scheduler, runner, older, warm(1, seed=42, prompt=prompt, max_tokens=60))
    assert scheduler.stats().preemptions > 0
    assert preempted.ids == alone

    scheduler = scheduler_for(runner)
    run(scheduler, runner, warm(3, seed=5, prompt=prompt))
    [cached] = run(scheduler, runner, warm(1, seed=42, prompt=prompt, max_tokens=60))
    assert cached.cached >= 32
    assert cached.ids == alone


def test_c01_seeds_give_different_answers_and_each_its_own_again() -> None:
    answers = ids_of(*(warm(seed, seed=seed) for seed in range(20)))
    assert len({tuple(ids) for ids in answers}) == 20
    assert ids_of(*(warm(seed, seed=seed) for seed in range(20))) == answers


def test_draws_are_spread_evenly_and_do_not_follow_from_seed_or_position() -> None:
    seeds = (*range(-100, 100), 1 << 63)
    draws = torch.tensor([[uniform(seed, position) for position in range(200)] for seed in seeds])
    assert draws.min() >= 0
    assert draws.max() < 1
    assert draws.mean().item() == pytest.approx(0.5, abs=0.005)
    assert draws.flatten().histc(10, 0, 1).div(draws.numel()).tolist() == pytest.approx([0.1] * 10, abs=0.006)
    assert draws.unique().numel() > 0.99 * draws.numel()
    for neighbours in (draws[:, :-1] - draws[:, 1:], draws[:-1] - draws[1:]):
        assert neighbours.square().mean().item() == pytest.approx(1 / 6, abs=0.01)


def test_a_draw_is_written_down() -> None:
    """Answers of a seed are to stay what they are from release to release."""
    written = [0.5961188718302076, 0.1603653875985772, 0.16639780398145976]
    assert [uniform(42, position) for position in range(3)] == written


@pytest.mark.parametrize("temperature", [0, 1e-4, 1e-8, 1e-40, GREEDY_BELOW / 2])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_c02_next_to_no_temperature_is_none(temperature: float, dtype: torch.dtype) -> None:
    params = {"temperature": temperature, "top_p": 0.9, "min_p": 0.1}
    for row, right in (([10.0, 10.0, -3.0], 0), ([9.0, 10.0, -3.0], 1), ([-60_000.0, -60_000.0, 60_000.0], 2)):
        for seed in range(50):
            logits = torch.tensor([row], dtype=dtype)
            assert sample(OPS, logits, [warm(1, seed=seed, **params)]) == [right]


@pytest.mark.parametrize("temperature", [GREEDY_BELOW, 0.002, 0.5, 2.0])
def test_c02_logits_far_apart_give_the_largest_at_any_temperature(temperature: float) -> None:
    logits = torch.tensor([[1e30, -1e30, 0.0]])
    assert sample(OPS, logits, [warm(1, seed=3, temperature=temperature)]) == [0]


def test_c02_a_thousand_runs_of_a_mixed_batch_agree() -> None:
    logits = torch.randn(4, VOCABULARY, generator=torch.Generator().manual_seed(0))
    sequences = [warm(0, seed=1, temperature=0), warm(1, seed=2), warm(2, seed=3, top_p=0.5), warm(3, seed=4, top_k=5)]
    first = sample(OPS, logits.clone(), sequences)
    assert first[0] == int(logits[0].argmax())
    assert all(sample(OPS, logits.clone(), sequences) == first for _ in range(1000))


def random_params(seed: int) -> dict[str, Any]:
    chosen = random.Random(seed)
    return {
        "temperature": chosen.choice([0, 0.001, 0.7, 1.0, 2.0]),
        "top_p": chosen.choice([1.0, 0.9, 0.3, 1e-6]),
        "top_k": chosen.choice([0, 1, 5, 1000]),
        "min_p": chosen.choice([0, 0.02, 0.5]),
        "min_tokens": chosen.choice([0, 3, 9]),
    }


def test_c08_fifty_settings_give_alone_what_they_give_together() -> None:
    def fifty() -> list[Sequence]:
        rows = [warm(id, seed=id, prompt=[id, 1], max_tokens=12, **random_params(id)) for id in range(50)]
        for row in rows:
            row.stop_ids = row.held_back_ids = frozenset() if row.id % 5 == 0 else frozenset({END, OTHER_END})
        return rows

    together = ids_of(*fifty(), max_running=50)
    assert together == [ids_of(row)[0] for row in fifty()]


def ending(id: int, **fields: Any) -> Sequence:
    """A greedy sequence whose likeliest next ids are both end tokens."""
    ends = frozenset({END, OTHER_END})
    return sequence(id, range(10), params=SamplingParams(temperature=0, **fields), held_back_ids=ends, stop_ids=ends)


def end_soon(*sequences: Sequence) -> list[Answer]:
    runner = FixedLogits(bias={END: 50.0, OTHER_END: 49.0})
    return run(scheduler_for(runner), runner, *sequences)


def test_c08_min_tokens_counts_generated_tokens_and_holds_back_every_end() -> None:
    answers = end_soon(ending(1, min_tokens=3), ending(2), ending(3, min_tokens=1))
    assert [(len(answer.ids), answer.reason) for answer in answers] == [(3, "stop"), (0, "stop"), (1, "stop")]
    assert not {END, OTHER_END} & {id for answer in answers for id in answer.ids}


def test_c08_holding_back_bans_these_ids_and_not_the_last_of_the_vocabulary() -> None:
    row = ending(1, min_tokens=1)
    row.held_back_ids = frozenset({END, VOCABULARY, 10**9})  # what is beyond the vocabulary cannot be drawn anyway
    logits = torch.zeros(1, VOCABULARY)
    logits[0, END], logits[0, OTHER_END] = 2, 1
    assert sample(OPS, logits, [row]) == [OTHER_END]


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
def test_a_row_that_is_not_finite_breaks_alone(bad: float) -> None:
    logits = torch.randn(3, VOCABULARY)
    right = sample(OPS, logits.clone(), [warm(id, seed=id) for id in range(3)])
    logits[1, 77] = bad
    found = sample(OPS, logits, [warm(id, seed=id) for id in range(3)])
    assert (found[0], found[2]) == (right[0], right[2])
    assert isinstance(found[1], Broken)
