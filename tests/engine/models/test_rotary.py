"""Rotary frequencies by the published formulas, and the angles that positions turn by."""
import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from hamdam.engine.models.config import ModelConfig
from hamdam.engine.models.llama import turns
from hamdam.engine.models.rotary import inverse_frequencies

PLAIN = ModelConfig(
    architecture="llama", vocab_size=8, hidden_size=512, num_layers=1, num_heads=4, num_kv_heads=4, head_dim=128,
    intermediate_size=8, rms_norm_eps=1e-5, rope_theta=500_000.0, max_context=8192,
)
LLAMA3 = {
    "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
F07 = [1.0] * 29 + [0.828168, 0.643743, 0.493507, 0.371122, 0.271425, 0.190211] + [0.125] * 29


def test_plain_frequencies_fall_from_one_to_theta() -> None:
    right = [500_000.0 ** (-2 * i / 128) for i in range(64)]
    assert inverse_frequencies(PLAIN).tolist() == pytest.approx(right, rel=1e-5)


def test_f03_the_table_is_as_wide_as_half_a_head() -> None:
    assert inverse_frequencies(replace(PLAIN, hidden_size=320, head_dim=64)).shape == (32,)


def test_linear_scaling_slows_all_alike() -> None:
    scaled = inverse_frequencies(replace(PLAIN, rope_scaling={"rope_type": "linear", "factor": 4.0}))
    assert np.array_equal(scaled, inverse_frequencies(PLAIN) / 4)


def test_f07_llama_3_keeps_short_waves_and_slows_long_ones() -> None:
    ratio = inverse_frequencies(replace(PLAIN, rope_scaling=LLAMA3)) / inverse_frequencies(PLAIN)
    assert ratio.tolist() == pytest.approx(F07, rel=1e-5)


def test_f07_factors_of_a_file_are_divisors_and_are_not_applied_twice() -> None:
    factors = tuple(1 / ratio for ratio in F07)
    for scaling in (None, LLAMA3):
        config = replace(PLAIN, rope_factors=factors, rope_scaling=scaling)
        ratio = inverse_frequencies(config) / inverse_frequencies(PLAIN)
        assert ratio.tolist() == pytest.approx(F07, rel=1e-5)


def test_positions_turn_by_their_angle() -> None:
    cosine, sine = turns(torch.tensor([0, 1, 8000]), torch.from_numpy(inverse_frequencies(PLAIN)))
    assert cosine.shape == sine.shape == (3, 1, 128)
    assert torch.equal(cosine[..., :64], cosine[..., 64:])
    assert torch.equal(sine[..., :64], -sine[..., 64:])
    assert cosine[0].eq(1).all()
    assert sine[0].eq(0).all()
    assert cosine[2, 0, 0].item() == pytest.approx(math.cos(8000), abs=1e-5)
    assert sine[1, 0, 65].item() == pytest.approx(math.sin(500_000.0 ** (-2 / 128)), abs=1e-5)
