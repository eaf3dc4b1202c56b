"""edits: penalties, biases and bans as the definitions say them, kept up with a sequence that grows."""
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from stepping import sequence

from hamdam.engine.errors import InvalidField
from hamdam.engine.execution.edits import NONE, edits
from hamdam.engine.execution.sampler import sample
from hamdam.engine.policy.sampling_params import SamplingParams
from hamdam.engine.policy.sequence import Sequence
from hamdam.engine.policy.thinking import Thinking
from hamdam.kernels.device import for_device

VOCABULARY = 40
OPS = for_device(torch.device("cpu"))
IDS = st.integers(0, VOCABULARY - 1)


def asking(prompt: list[int], *, ends: frozenset[int] = frozenset(), **params: Any) -> Sequence:
    return sequence(1, prompt, params=SamplingParams(temperature=0, **params), held_back_ids=ends)


def changed(logits: np.ndarray, own: Sequence) -> np.ndarray:
    found = edits(own, VOCABULARY)
    assert len(set(found.ids.tolist())) == len(found.ids)
    out = logits.copy()
    at = out[found.ids]
    out[found.ids] = np.where(at > 0, at / found.divisors, at * found.divisors) + found.added
    return out


@settings(max_examples=100, deadline=None)
@given(
    prompt=st.lists(IDS, min_size=1, max_size=30), answer=st.lists(IDS, max_size=30), repetition=st.floats(0.1, 4),
    frequency=st.floats(-2, 2), presence=st.floats(-2, 2),
    biases=st.dictionaries(IDS, st.floats(-99, 100), max_size=5), seed=st.integers(0, 99),
)
def test_penalties_are_what_their_definition_says_at_every_token(
    prompt: list[int], answer: list[int], repetition: float, frequency: float, presence: float,
    biases: dict[int, float], seed: int,
) -> None:
    own = asking(
        prompt, repetition_penalty=repetition, frequency_penalty=frequency, presence_penalty=presence,
        logit_bias=tuple(biases.items()),
    )
    logits = np.random.default_rng(seed).normal(size=VOCABULARY).astype(np.float32)
    for step in range(len(answer) + 1):
        if step % 3 == 0 or step == len(answer):  # not asked at each, as where a step fails
            counts = np.bincount(answer[:step], minlength=VOCABULARY)
            there = (counts > 0) | np.isin(np.arange(VOCABULARY), prompt)  # arXiv:1909.05858
            right = np.where(there, np.where(logits > 0, logits / repetition, logits * repetition), logits)
            right = right - frequency * counts - presence * (counts > 0)
            for id, bias in biases.items():
                right[id] += np.float32(bias)
            np.testing.assert_allclose(changed(logits, own), right, rtol=1e-4, atol=1e-4)
        own.ids += answer[step : step + 1]


def test_who_asks_for_nothing_costs_nothing() -> None:
    own = asking([1, 2, 3], ends=frozenset({5}))
    assert edits(own, VOCABULARY) is NONE
    assert own.note is None


def test_presence_and_frequency_do_not_count_the_prompt() -> None:
    own = asking([7, 7], presence_penalty=1, frequency_penalty=1)
    logits = np.ones(VOCABULARY, np.float32)
    assert changed(logits, own).tolist() == logits.tolist()
    own.ids.append(7)
    assert changed(logits, own)[7] == -1


def test_c04_a_bias_of_minus_100_bans_and_greedy_takes_the_second_best() -> None:
    logits = torch.zeros(1, VOCABULARY)
    logits[0, 3], logits[0, 4] = 1e4, 1
    assert sample(OPS, logits.clone(), [asking([1], logit_bias=((3, -99.0),))]) == [3]
    assert sample(OPS, logits.clone(), [asking([1], logit_bias=((3, -100.0),))]) == [4]
    assert sample(OPS, logits.clone(), [asking([1], logit_bias=((9, 100.0), (3, -100.0)))]) == [9]


def test_c08_one_rows_edits_are_not_anothers() -> None:
    logits = torch.zeros(3, VOCABULARY)
    logits[:, 3], logits[:, 4] = 2, 1
    rows = [asking([1]), asking([1], logit_bias=((3, -100.0),)), asking([1])]
    assert sample(OPS, logits, rows) == [3, 4, 3]


def test_none_but_the_allowed_ids_are_drawn() -> None:
    logits = torch.arange(VOCABULARY, dtype=torch.float32)[None]
    assert sample(OPS, logits.clone(), [asking([1], allowed_token_ids=(2, 11, 5))]) == [11]
    warm = SamplingParams(temperature=2, allowed_token_ids=(2, 11, 5))
    drawn = {sample(OPS, 0 * logits, [sequence(1, [1], seed=seed, params=warm)])[0] for seed in range(60)}
    assert drawn == {2, 5, 11}


def test_ends_are_held_back_beside_everything_else() -> None:
    own = asking([1], ends=frozenset({11, 10**9}), allowed_token_ids=(2, 11), min_tokens=1, presence_penalty=2)
    logits = torch.arange(VOCABULARY, dtype=torch.float32)[None]
    assert sample(OPS, logits.clone(), [own]) == [2]
    own.ids.append(2)
    assert sample(OPS, logits.clone(), [own]) == [11]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("logit_bias", {"-1": 1}), ("logit_bias", {"abc": 1}), ("logit_bias", {"1.5": 1}), ("logit_bias", {"": 1}),
        ("logit_bias", {"7": 1000}), ("logit_bias", {"7": float("nan")}), ("logit_bias", {"7": "1"}),
        ("logit_bias", [7]), ("logit_bias", {"99999999999": 1}), ("logit_bias", {str(id): 1 for id in range(2000)}),
        ("logit_bias", {"٧": 1}), ("allowed_token_ids", []), ("allowed_token_ids", [-1]), ("allowed_token_ids", "ab"),
        ("allowed_token_ids", [1.5]), ("allowed_token_ids", [True]), ("presence_penalty", 2.1),
        ("frequency_penalty", float("inf")), ("frequency_penalty", "1"), ("repetition_penalty", 0),
        ("repetition_penalty", -1), ("repetition_penalty", 1e9),
    ],
)  # fmt: skip
def test_c04_what_makes_no_sense_is_refused_by_name(field: str, value: object) -> None:
    with pytest.raises(InvalidField) as refused:
        SamplingParams.from_dict({field: value})
    assert refused.value.name == field


def test_a_bad_words_last_id_is_banned_where_the_others_were_just_generated() -> None:
    own = asking([5, 6], bad_words=("x", "y"))
    own.bad_ids = ((5, 6, 7), (9,))
    logits = torch.zeros(1, VOCABULARY)
    logits[0, 7], logits[0, 9], logits[0, 3] = 2, 3, 1
    assert sample(OPS, logits.clone(), [own]) == [7]  # in the prompt they do not count
    own.ids += [6, 5, 6]
    assert sample(OPS, logits.clone(), [own]) == [3]
    own.ids.append(6)
    assert sample(OPS, logits.clone(), [own]) == [7]


def test_where_only_a_bad_word_is_left_it_is_said() -> None:
    own = asking([1], bad_words=("x",), allowed_token_ids=(4,))
    own.bad_ids = ((4,),)
    assert sample(OPS, torch.zeros(1, VOCABULARY), [own]) == [4]


@pytest.mark.parametrize("temperature", [0, 1e-30, 0.01, 1, 2])
def test_a_thought_that_has_to_end_ends_whatever_else_was_asked(temperature: float) -> None:
    asked = {"top_k": 3, "min_p": 0.5, "logit_bias": ((7, -100.0),), "repetition_penalty": 2.0, "thinking_budget": 0}
    params = SamplingParams(temperature=temperature, **asked)
    own = sequence(1, [1, 7], params=params)
    own.thinking = Thinking(0, 6, 7, inside=True)
    logits = torch.randn(1, VOCABULARY, generator=torch.Generator().manual_seed(1)) * 50
    assert sample(OPS, logits, [own]) == [7]
    own.ids.append(7)
    assert edits(own, VOCABULARY).ids.tolist() != [7], "and no second one"
