"""Logprobs: log-softmax of what the model said, whatever was done to the logits, and the same in NumPy and PyTorch."""
import math
from typing import Any

import numpy as np
import pytest
import torch
from stepping import sequence

from hamdam.engine.execution.logprobs import logprobs
from hamdam.engine.execution.sampler import sample
from hamdam.engine.policy.batch import Broken, Logprobs, Scored
from hamdam.engine.policy.sampling_params import SamplingParams
from hamdam.engine.policy.sequence import Sequence
from hamdam.kernels.device import for_device

OPS = for_device(torch.device("cpu"))
VOCABULARY = 300


def asking(id: int, *, top: int = 5, **params: Any) -> Sequence:
    return sequence(id, [1, 2, 3], seed=id, params=SamplingParams(logprobs=True, top_logprobs=top, **params))


def logits_of(rows: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(rows, VOCABULARY, generator=torch.Generator().manual_seed(seed)) * 4


def right(row: torch.Tensor, drawn: int, top: int) -> Logprobs:
    """In Python's own numbers."""
    wide = row.tolist()
    most = max(wide)
    mass = most + math.log(math.fsum(math.exp(x - most) for x in wide))
    likeliest = sorted(range(len(wide)), key=lambda id: (-wide[id], id))[:top]
    return Logprobs(wide[drawn] - mass, tuple((id, wide[id] - mass) for id in likeliest))


def agree(found: Logprobs, expected: Logprobs) -> bool:
    ids = [id for id, _ in found.top]
    worths = [worth for _, worth in found.top]
    return (
        found.drawn == pytest.approx(expected.drawn, abs=1e-6)
        and ids == [id for id, _ in expected.top]
        and worths == pytest.approx([worth for _, worth in expected.top], abs=1e-6)
    )


@pytest.mark.parametrize("top", [0, 1, 5, 20])
def test_they_are_the_log_softmax_of_the_row(top: int) -> None:
    for seed in range(20):
        [row] = logits_of(1, seed)
        assert agree(logprobs(row.numpy(), seed, top), right(row, seed, top))
        [found] = sample(OPS, row[None].clone(), [asking(seed, top=top)])
        assert isinstance(found, Scored)
        assert agree(found.logprobs, right(row, found.id, top))


def test_of_equal_logits_the_lower_ids_are_listed_lowest_first() -> None:
    row = torch.zeros(1, VOCABULARY)
    row[0, [7, 250]] = 1
    expected = [7, 250, 0, 1]
    assert [id for id, _ in logprobs(row[0].numpy(), 9, 4).top] == expected
    [found] = sample(OPS, row, [asking(1, top=4)])
    assert isinstance(found, Scored)
    assert [id for id, _ in found.logprobs.top] == expected


@pytest.mark.parametrize("size", [1, 5, 63, 64, 65, 127, 640, 1300, 5000])
def test_the_likeliest_are_found_in_a_vocabulary_of_any_size(size: int) -> None:
    for seed in range(20):
        row = torch.randn(size, generator=torch.Generator().manual_seed(seed))
        if seed % 2:
            row = (row * 2).round()  # ties
        assert agree(logprobs(row.numpy(), 0, 20), right(row, 0, 20))


def test_no_more_are_listed_than_the_vocabulary_has() -> None:
    assert [id for id, _ in logprobs(np.array([1, 3, 2], np.float32), 0, 20).top] == [1, 2, 0]


@pytest.mark.parametrize(
    "params",
    [{"temperature": 0.01}, {"temperature": 0.5}, {"temperature": 2.0}, {"top_k": 1}, {"min_p": 0.9}, {"top_p": 1e-6},
     {"allowed_token_ids": (3, 8)}, {"logit_bias": ((5, -100.0), (6, 90.0))}, {"repetition_penalty": 9.0},
     {"presence_penalty": 2.0, "frequency_penalty": 2.0}, {"min_tokens": 9}],
)
def test_c06_nothing_that_a_client_asks_of_the_sampler_changes_what_is_reported(params: dict[str, Any]) -> None:
    for seed in range(10):
        [row] = logits_of(1, seed)
        one = asking(seed, **params)
        one.held_back_ids = frozenset({int(row.argmax())})
        one.ids += [4, 4, int(row.argmax())]
        [found] = sample(OPS, row[None].clone(), [one])
        assert isinstance(found, Scored)
        assert agree(found.logprobs, right(row, found.id, 5))


def test_who_asks_changes_nothing_for_itself_nor_for_the_others() -> None:
    """A batch of rows of which every third asks, against one of which none does; more of them than are sorted at
    once."""
    def rows(*, ask: bool) -> list[Sequence]:
        mixed = [{"temperature": 0.8}, {"temperature": 0, "logit_bias": ((1, 3.0),)}, {"top_k": 3}, {"top_p": 0.4}]
        given = [mixed[id % 4] | ({"logprobs": True, "top_logprobs": id % 7} if ask and id % 3 == 0 else {})
                 for id in range(60)]
        return [sequence(id, [1, 2, 3], seed=id, params=SamplingParams(**own)) for id, own in enumerate(given)]

    logits = logits_of(60)
    without, found = sample(OPS, logits.clone(), rows(ask=False)), sample(OPS, logits.clone(), rows(ask=True))
    assert [one.id if isinstance(one, Scored) else one for one in found] == without
    assert [isinstance(one, Scored) for one in found] == [id % 3 == 0 for id in range(60)]
    for id, one in enumerate(found):
        if isinstance(one, Scored):
            assert agree(one.logprobs, right(logits[id], one.id, id % 7))


def test_a_broken_row_that_asks_is_broken_and_the_others_are_listed() -> None:
    logits = logits_of(3)
    expected = [right(row, int(row.argmax()), 5) for row in logits]
    logits[1, 9] = torch.nan
    found = sample(OPS, logits, [asking(id, temperature=0) for id in range(3)])
    assert isinstance(found[1], Broken)
    for one, own in ((found[0], expected[0]), (found[2], expected[2])):
        assert isinstance(one, Scored)
        assert agree(one.logprobs, own)


def test_numbers_far_apart_and_rows_of_16_bits_have_finite_values() -> None:
    found = logprobs(np.array([-3e38, 3e38, 0], np.float32), 0, 3)
    assert math.isfinite(found.drawn)
    assert found.top[0] == (1, 0.0)
    narrow = logits_of(1).bfloat16()
    [one] = sample(OPS, narrow.clone(), [asking(1, temperature=0)])
    assert isinstance(one, Scored)
    assert agree(one.logprobs, right(narrow[0].float(), one.id, 5))
