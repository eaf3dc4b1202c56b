"""What is drawn 100,000 times from the same logits: as often as the exact distribution says, for each parameter alone
and for all together. The distribution is worked out here, in float64, by the definitions; the draws are the real ones.
"""
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from packed_numbers import address
from stepping import sequence

from hamdam.engine.execution.draws import settings
from hamdam.engine.execution.edits import edits
from hamdam.engine.execution.sampler import sample
from hamdam.engine.policy.sampling_params import SamplingParams
from hamdam.engine.policy.sequence import Sequence
from hamdam.kernels.device import for_device

DRAWS, VOCABULARY = 100_000, 48
PROMPT, ANSWER = [3, 4, 5, 5], [7, 7, 7, 4, 20]
LOGITS = np.random.default_rng(6).normal(0, 1.5, VOCABULARY).astype(np.float32)
ALONE: list[dict[str, Any]] = [
    {}, {"temperature": 0.5}, {"temperature": 2.0}, {"top_k": 9}, {"top_p": 0.7}, {"min_p": 0.1},
    {"presence_penalty": 1.5}, {"frequency_penalty": 0.8}, {"frequency_penalty": -0.8}, {"repetition_penalty": 1.8},
    {"logit_bias": ((1, 3.0), (7, -2.5), (int(LOGITS.argmax()), -100.0))}, {"allowed_token_ids": (0, 7, 20, 31, 40)},
    {"min_tokens": 50},
]  # fmt: skip
TOGETHER = {name: value for parameters in ALONE for name, value in parameters.items()} | {
    "temperature": 1.3, "top_k": 20, "top_p": 0.95, "min_p": 0.02, "allowed_token_ids": tuple(range(1, 47)),
}
ENDS = frozenset({11, 12})


def row(params: SamplingParams, seed: int) -> Sequence:
    return sequence(seed, [*PROMPT, *ANSWER], seed=seed, params=params, held_back_ids=ENDS)


def exact(params: SamplingParams) -> np.ndarray:
    """Probabilities of all ids, by the definitions of engine/policy/sampling_params.py, Ops.sample and Penalties."""
    logits = LOGITS.astype(np.float64)
    for id in {*PROMPT, *ANSWER}:
        logits[id] *= params.repetition_penalty ** (-1 if logits[id] > 0 else 1)
    for id in set(ANSWER):
        logits[id] -= params.frequency_penalty * ANSWER.count(id) + params.presence_penalty
    for id, bias in params.logit_bias:
        logits[id] = -math.inf if bias == -100 else logits[id] + bias
    for id in range(VOCABULARY):
        allowed = params.allowed_token_ids is None or id in params.allowed_token_ids
        if not allowed or (id in ENDS and len(ANSWER) < params.min_tokens):
            logits[id] = -math.inf
    probable = np.exp((logits - logits.max()) / params.temperature)
    probable /= probable.sum()
    order = np.argsort(-probable, kind="stable")
    kept = order[: params.top_k or VOCABULARY]
    mass = probable[kept].cumsum() / probable[kept].sum()
    kept = kept[: np.searchsorted(mass, params.top_p) + 1]
    kept = kept[probable[kept] >= params.min_p * probable[kept[0]]]
    found = np.zeros(VOCABULARY)
    found[kept] = probable[kept] / probable[kept].sum()
    return found


def by_pytorch(params: SamplingParams) -> list[int]:
    rows = [told(row(params, seed)) for seed in range(DRAWS)]
    edits(rows[0], VOCABULARY)
    for own in rows[1:]:
        own.note = rows[0].note  # they are alike
    logits = torch.from_numpy(LOGITS).expand(DRAWS, -1).clone()
    drawn = sample(for_device(torch.device("cpu")), logits, rows)
    assert all(isinstance(id, int) for id in drawn)
    return drawn  # type: ignore[return-value]  # ids, as was just seen


def natively(params: SamplingParams) -> list[int]:
    draw = pytest.importorskip("hamdam.kernels.cpu.sample").sample_row
    asked = edits(told(row(params, 0)), VOCABULARY)
    logits, weights, kept = np.zeros((3, VOCABULARY), np.float32)
    places = [address(array) for array in (logits, asked.ids, asked.divisors, asked.added, weights, kept)]
    own, drawn = told(row(params, 0)), []
    for own.seed in range(DRAWS):
        logits[:] = LOGITS
        drawn.append(
            draw(places[0], VOCABULARY, 0, *places[1:4], len(asked.ids), *settings(own), *places[4:])
        )
    return drawn


def told(own: Sequence) -> Sequence:
    """With the answer so far as an answer, not as part of the prompt."""
    own.num_prompt = len(PROMPT)
    return own


@pytest.mark.timeout(300)
@pytest.mark.parametrize("draws", [by_pytorch, natively])
@pytest.mark.parametrize("parameters", [*ALONE, TOGETHER], ids=lambda given: ", ".join(given) or "none")
def test_ids_come_as_often_as_the_exact_distribution_says(
    parameters: dict[str, Any], draws: Callable[[SamplingParams], list[int]]
) -> None:
    params = SamplingParams(**parameters)
    wanted = exact(params) * DRAWS
    counts = np.bincount(draws(params), minlength=VOCABULARY)
    assert not counts[wanted == 0].any()
    often = wanted > 5
    square = float(((counts[often] - wanted[often]) ** 2 / wanted[often]).sum())
    degrees = int(often.sum()) - 1
    if degrees:  # how many standard deviations from the mean (Wilson and Hilferty 1931)
        assert ((square / degrees) ** (1 / 3) - 1 + 2 / (9 * degrees)) / math.sqrt(2 / (9 * degrees)) < 4


def test_a_seed_gives_the_same_text_at_batch_1_and_64() -> None:
    params = SamplingParams(**TOGETHER)
    rows = [told(row(replace(params, top_k=seed % 7), seed)) for seed in range(64)]
    logits = torch.from_numpy(np.random.default_rng(1).normal(size=(64, VOCABULARY)).astype(np.float32))
    ops = for_device(torch.device("cpu"))
    together = sample(ops, logits.clone(), rows)
    assert [sample(ops, logits[[index]].clone(), [own])[0] for index, own in enumerate(rows)] == together
    assert len(set(together)) > 5
