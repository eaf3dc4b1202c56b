"""Rotary frequencies by the published formulas, and the angles that positions turn by."""
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from hamdam.engine.errors import ModelError
from hamdam.engine.models.config import ModelConfig
from hamdam.engine.models.rope import Rope
from hamdam.engine.models.rotary import inverse_frequencies, rotary_digest, rotary_tables
from hamdam.engine.models.transformer import turns

PLAIN = Rope(theta=500_000.0)
LLAMA3 = Rope(
    theta=500_000.0, kind="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_context=8192
)
YARN = Rope(theta=10_000.0, kind="yarn", factor=4.0, original_context=4096)
LONG = Rope(
    theta=10_000.0, kind="longrope", factor=32.0, original_context=4096, short_factors=(1.0, 2.0),
    long_factors=(4.0, 5.0),
)  # fmt: skip
DYNAMIC = Rope(theta=10_000.0, kind="dynamic", factor=2.0, original_context=4096)
MODEL = ModelConfig(
    architecture="llama", vocab_size=8, hidden_size=512, num_layers=3, num_heads=4, num_kv_heads=4, head_dim=128,
    intermediate_size=8, rms_norm_eps=1e-5, rope=PLAIN, max_context=8192,
)
F07 = [1.0] * 29 + [0.828168, 0.643743, 0.493507, 0.371122, 0.271425, 0.190211] + [0.125] * 29


def frequencies(rope: Rope, dim: int = 128, context: int = 8192) -> np.ndarray[Any, Any]:
    return inverse_frequencies(rope, dim, context)


def test_plain_frequencies_fall_from_one_to_theta() -> None:
    right = [500_000.0 ** (-2 * i / 128) for i in range(64)]
    assert frequencies(PLAIN).tolist() == pytest.approx(right, rel=1e-5)


def test_f03_the_table_is_as_wide_as_half_a_head() -> None:
    [table] = rotary_tables(replace(MODEL, hidden_size=320, head_dim=64), 8192).values()
    assert table.frequencies.shape == table.sizes.shape == (32,)


def test_linear_scaling_slows_all_alike() -> None:
    assert np.array_equal(frequencies(replace(PLAIN, kind="linear", factor=4.0)), frequencies(PLAIN) / 4)


def test_f07_llama_3_keeps_short_waves_and_slows_long_ones() -> None:
    ratio = frequencies(LLAMA3) / frequencies(PLAIN)
    assert ratio.tolist() == pytest.approx(F07, rel=1e-5)


def test_f07_factors_of_a_file_are_divisors_and_are_not_applied_twice() -> None:
    factors = tuple(1 / ratio for ratio in F07)
    for rope in (PLAIN, LLAMA3):
        ratio = frequencies(replace(rope, divisors=factors)) / frequencies(PLAIN)
        assert ratio.tolist() == pytest.approx(F07, rel=1e-5)


def test_dynamic_scaling_makes_theta_larger_by_the_served_length_and_only_beyond_the_original_one() -> None:
    plain = frequencies(replace(DYNAMIC, kind="default"))
    for context in (100, 4096):
        assert np.array_equal(frequencies(DYNAMIC, context=context), plain)
    theta = 10_000.0 * 3 ** (128 / 126)  # 2 * 8192 / 4096 - (2 - 1)
    right = [theta ** (-2 * i / 128) for i in range(64)]
    assert frequencies(DYNAMIC, context=8192).tolist() == pytest.approx(right, rel=1e-5)


def test_yarn_keeps_what_turns_often_and_divides_what_turns_less_than_once() -> None:
    ratio = frequencies(YARN) / frequencies(replace(YARN, kind="default"))
    turns_in_all = 4096 * frequencies(replace(YARN, kind="default")) / (2 * math.pi)
    assert ratio[turns_in_all > 40].tolist() == pytest.approx([1.0] * int((turns_in_all > 40).sum()))
    assert ratio[turns_in_all < 0.8].tolist() == pytest.approx([0.25] * int((turns_in_all < 0.8).sum()))
    assert (np.diff(ratio) <= 1e-6).all()
    assert YARN.scores_factor == pytest.approx(0.1 * math.log(4) + 1)
    assert replace(YARN, attention_factor=1.5).scores_factor == 1.5


def test_longrope_takes_its_list_by_the_served_length() -> None:
    plain = frequencies(replace(LONG, kind="default"), dim=4)
    assert (plain / frequencies(LONG, 4, context=4096)).tolist() == pytest.approx([1, 2])
    assert (plain / frequencies(LONG, 4, context=4097)).tolist() == pytest.approx([4, 5])
    assert LONG.scores_factor == pytest.approx(math.sqrt(1 + math.log(32) / math.log(4096)))


def test_what_does_not_turn_has_no_frequency_and_keeps_its_size() -> None:
    config = replace(MODEL, head_dim=128, rotary_dim=4, rope=LONG, unturned_layers=frozenset({1}))
    tables = rotary_tables(config, 8192)
    assert list(tables) == [LONG, None]
    assert tables[LONG].frequencies[:2].all()
    assert not tables[LONG].frequencies[2:].any()
    assert tables[LONG].sizes.tolist() == pytest.approx([LONG.scores_factor] * 2 + [1.0] * 62)
    assert not tables[None].frequencies.any()
    assert tables[None].sizes.tolist() == [1.0] * 64


def test_the_digest_is_another_for_another_table_and_only_then() -> None:
    stretched = replace(MODEL, rope=DYNAMIC, max_context=4096)
    assert rotary_digest(stretched, 4096) == rotary_digest(stretched, 100) != rotary_digest(stretched, 4097)
    assert rotary_digest(MODEL, 4096) == rotary_digest(MODEL, 8192) != rotary_digest(stretched, 4096)


@pytest.mark.parametrize(
    ("rope", "changes", "words"),
    [
        (PLAIN, {"theta": math.nan}, "rope_theta is nan"),
        (PLAIN, {"kind": "proportional"}, "rotary scaling 'proportional' is not supported"),
        (replace(PLAIN, kind="linear"), {"factor": 0.0}, "rotary scaling factor is 0"),
        (replace(PLAIN, kind="linear"), {"factor": math.inf}, "rotary scaling factor is inf"),
        (LLAMA3, {"low_freq_factor": 4.0}, "low_freq_factor 4.0 is not below high_freq_factor 4.0"),
        (LLAMA3, {"high_freq_factor": math.nan}, "high_freq_factor is nan"),
        (LLAMA3, {"original_context": 0}, "original_max_position_embeddings is 0"),
        (YARN, {"beta_slow": 32.0}, "beta_slow 32.0 is not below beta_fast 32.0"),
        (YARN, {"attention_factor": 0.0}, "attention_factor is 0.0"),
        (YARN, {"theta": 1.0}, "yarn needs one above 1"),
    ],
)
def test_numbers_that_make_no_sense_are_refused_by_name(rope: Rope, changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ModelError, match=words):
        replace(rope, **changes)


@pytest.mark.parametrize("factors", [(), (1.0,), (1.0, 2.0, 3.0), (1.0, -1.0), (1.0, math.nan)])
def test_there_is_one_factor_for_each_frequency(factors: tuple[float, ...]) -> None:
    for name in ("short_factors", "long_factors"):
        with pytest.raises(ModelError, match="rotary factors must be 2 positive numbers"):
            replace(MODEL, rotary_dim=4, rope=replace(LONG, **{name: factors}))


def test_positions_turn_by_their_angle() -> None:
    numbers = torch.from_numpy(frequencies(PLAIN))
    cosine, sine = turns(torch.tensor([0, 1, 8000]), numbers, torch.ones(64))
    assert cosine.shape == sine.shape == (3, 1, 128)
    assert torch.equal(cosine[..., :64], cosine[..., 64:])
    assert torch.equal(sine[..., :64], -sine[..., 64:])
    assert cosine[0].eq(1).all()
    assert sine[0].eq(0).all()
    assert cosine[2, 0, 0].item() == pytest.approx(math.cos(8000), abs=1e-5)
    assert sine[1, 0, 65].item() == pytest.approx(math.sin(500_000.0 ** (-2 / 128)), abs=1e-5)
    twice = turns(torch.tensor([0, 1, 8000]), numbers, torch.full((64,), 2.0))
    assert torch.equal(twice[0], 2 * cosine)
    assert torch.equal(twice[1], 2 * sine)
