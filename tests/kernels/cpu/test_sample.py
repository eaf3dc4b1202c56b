"""sample: rows drawn as the reference draws them, wherever the draw is not on a border of two ids; and broken rows."""
import numpy as np
import pytest
import torch
from native_sampling import draw

from hamdam.kernels.cpu.sample import BROKEN
from hamdam.kernels.reference import Reference

NEAR = 1e-5  # a share of the mass that float32 may put on either side of a border
VOCABULARIES = [1, 2, 15, 16, 17, 100, 1000, 4096, 30_001]


def reference(logits: np.ndarray, *settings: float) -> int:
    temperature, top_k, top_p, min_p, uniform = settings
    one = (torch.tensor([x], dtype=torch.float64) for x in (temperature, top_p, min_p, uniform))
    heat, mass, least, drawn = one
    found = Reference().sample(torch.from_numpy(logits)[None], heat, torch.tensor([int(top_k)]), mass, least, drawn)
    return int(found[0])


def clear_of_borders(logits: np.ndarray, *settings: float) -> bool:
    """Whether the same id is drawn, and the same are kept, a little to either side."""
    temperature, top_k, top_p, min_p, uniform = settings
    near = [
        (temperature, top_k, min(1.0, max(0.0, top_p + p)) if top_p < 1 else top_p, min(1.0, min_p * m),
         min(1 - 2**-53, max(0.0, uniform + u)))
        for p in (-NEAR, NEAR) for m in (1 - NEAR, 1 + NEAR) for u in (-NEAR, NEAR)
    ]
    return len({reference(logits, *own) for own in near}) == 1


@pytest.mark.parametrize("vocabulary", VOCABULARIES)
def test_ids_are_those_that_the_reference_draws(vocabulary: int) -> None:
    random = np.random.default_rng(vocabulary)
    compared = 0
    for number in range(60 if vocabulary < 5000 else 20):
        logits = (random.standard_normal(vocabulary) * random.choice([0.1, 2, 6])).astype(np.float32)
        if number % 3 == 0:  # ties
            logits = np.round(logits)
        if number % 4 == 0 and vocabulary > 2:
            logits[random.integers(0, vocabulary, vocabulary // 3)] = -np.inf
            logits[random.integers(vocabulary)] = 1
        settings = (
            float(random.choice([0.001, 0.3, 1.0, 2.0])), int(random.choice([0, 1, 2, 40, vocabulary, 10**9])),
            float(random.choice([1.0, 0.999, 0.9, 0.5, 0.01, 1e-9])), float(random.choice([0, 0.01, 0.3, 1])),
            float(random.random()),
        )
        if clear_of_borders(logits, *settings):
            compared += 1
            assert draw(logits, *settings) == reference(logits, *settings), settings
    assert compared >= 10


@pytest.mark.parametrize("vocabulary", VOCABULARIES)
@pytest.mark.parametrize("allowed", [0.001, 0.3, 0.999, 1.0])
def test_what_a_mask_leaves_out_is_as_if_it_was_banned_id_by_id(vocabulary: int, allowed: float) -> None:
    random = np.random.default_rng(vocabulary)
    for number in range(20):
        logits = random.standard_normal(vocabulary).astype(np.float32)
        logits[random.random(vocabulary) >= allowed] = -np.inf
        first = int(random.integers(vocabulary))
        logits[first : first + 40] = -np.inf  # and whole words of it
        logits[random.integers(vocabulary)] = 1
        top_k, top_p, uniform = int(random.choice([0, 3])), float(random.choice([1.0, 0.9])), float(random.random())
        settings = (float(number % 2), top_k, top_p, 0.0, uniform)
        assert draw(logits, *settings, by_mask=True) == draw(logits, *settings)


@pytest.mark.parametrize("vocabulary", VOCABULARIES)
def test_greedy_takes_the_lowest_id_of_the_largest(vocabulary: int) -> None:
    random = np.random.default_rng(vocabulary)
    for _ in range(20):
        logits = np.round(random.standard_normal(vocabulary) * 2).astype(np.float32)
        assert draw(logits, 0.0, 5, 0.1, 0.9, 0.5) == logits.argmax()
        banned = np.where(logits == logits.max(), -np.inf, logits).astype(np.float32)
        if np.isfinite(banned).any():
            assert draw(banned, 0.0, 0, 1.0, 0.0, 0.0) == banned.argmax()


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_negative_and_positive_zero_are_equal_logits(temperature: float) -> None:
    logits = np.array([-5.0, -0.0, 0.0, -0.0], np.float32)
    assert draw(logits, temperature, 1, 1.0, 0.0, 0.9) == 1
    assert draw(logits, temperature, 0, 1e-9, 0.0, 0.9) == 1


@pytest.mark.parametrize("poison", [np.nan, np.inf])
@pytest.mark.parametrize("settings", [(0.0, 0, 1.0, 0.0, 0.5), (1.0, 0, 1.0, 0.0, 0.5), (1.0, 3, 0.5, 0.1, 0.5)])
@pytest.mark.parametrize("at", [0, 15, 16, 36])
def test_a_logit_that_is_no_number_or_infinite_breaks_the_row(
    at: int, settings: tuple[float, int, float, float, float], poison: float
) -> None:
    logits = np.zeros(37, np.float32)
    logits[at] = poison
    assert draw(logits, *settings) == BROKEN


@pytest.mark.parametrize("size", [1e-38, 1e30, float(np.finfo(np.float32).max)])
@pytest.mark.parametrize("temperature", [0.001, 1.0, 2.0])
def test_logits_of_any_finite_size_give_an_id_that_may_be_taken(size: float, temperature: float) -> None:
    logits = np.array([size, -size, 0, size] * 10 + [0], np.float32)
    for uniform in (0.0, 0.5, 1 - 2**-53):
        for top_k, top_p, min_p in ((0, 1.0, 0.0), (3, 0.5, 0.1), (0, 0.9, 0.0), (0, 1.0, 1.0)):
            id = draw(logits, temperature, top_k, top_p, min_p, uniform)
            assert 0 <= id < 41
            assert size < 1 or logits[id] == np.float32(size)


def test_all_but_one_banned_leaves_that_one() -> None:
    for left in (0, 16, 36):
        logits = np.full(37, -np.inf, np.float32)
        logits[left] = -50
        for settings in ((0.0, 0, 1.0, 0.0, 0.5), (1.0, 0, 1.0, 0.0, 0.99), (2.0, 5, 0.9, 0.5, 0.0)):
            assert draw(logits, *settings) == left


def test_a_long_tail_is_looked_at_where_the_likely_do_not_suffice() -> None:
    """One token far above the rest, whose many together hold most of what top_p asks for."""
    logits = np.full(30_000, -17.0, np.float32)  # below e^-16 each
    logits[123] = 0.0
    tail = 30_000 * np.exp(-17.0)
    whole = 1 + tail
    assert draw(logits, 1.0, 0, 1 / whole * 0.999, 0.0, 0.9999) == 123
    asked = (1 + tail / 2) / whole  # the first half of the tail, by their ids
    assert draw(logits, 1.0, 0, asked, 0.0, 1 - 2**-53) == pytest.approx(15_000, abs=30)
    logits[[0, 123]] = 0.0, -17.0
    assert draw(logits, 1.0, 20, 1.0, 0.0, 1 - 2**-53) == 19
    assert draw(logits, 1.0, 20, 1.0, 1e-6, 1 - 2**-53) == 0


@pytest.mark.parametrize("settings", [(0, 1.0, 0.0), (9, 1.0, 0.0), (0, 0.9999, 0.0), (0, 1.0, 0.5)])
def test_exactly_on_a_border_the_next_id_is_taken(settings: tuple[int, float, float]) -> None:
    logits = np.array([0, 0, -np.inf, 0, 0] + [-np.inf] * 20, np.float32)
    ids = [draw(logits, 1.0, *settings, share / 4) for share in range(4)]
    assert ids == [reference(logits, 1.0, *settings, share / 4) for share in range(4)] == [0, 1, 3, 4]


@pytest.mark.parametrize("temperature", [0.0, 1e-40, 0.01, 2.0])
@pytest.mark.parametrize(("top_k", "top_p", "min_p"), [(0, 1.0, 0.0), (3, 0.5, 0.5)])
def test_a_token_that_is_made_certain_is_drawn(temperature: float, top_k: int, top_p: float, min_p: float) -> None:
    logits = (np.random.default_rng(0).normal(size=40) * 50).astype(np.float32)
    logits[7] += np.float32(3e38)
    assert draw(logits, temperature, top_k, top_p, min_p, 0.37) == 7
