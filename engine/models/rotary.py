"""Rotary positions: a model's inverse frequencies. The decoders make cosines and sines of them, in their own arrays."""
import math

import numpy as np
from numpy.typing import NDArray

from .config import ModelConfig

Floats = NDArray[np.float32]


def inverse_frequencies(config: ModelConfig) -> Floats:
    """[head_dim / 2], computed in float32 as models are trained with it (RoFormer, arXiv:2104.09864)."""
    exponents = np.arange(0, config.head_dim, 2, dtype=np.float32) / np.float32(config.head_dim)
    frequencies = np.power(np.float32(config.rope_theta), -exponents).astype(np.float32)
    scaling = config.rope_scaling or {"rope_type": "default"}
    if config.rope_factors is not None:  # llama3's scaling as some files give it, worked out
        frequencies = frequencies / np.array(config.rope_factors, np.float32)
    elif scaling["rope_type"] == "llama3":
        frequencies = _llama3(
            frequencies, scaling["original_max_position_embeddings"], factor=scaling["factor"],
            low=scaling["low_freq_factor"], high=scaling["high_freq_factor"],
        )
    if scaling["rope_type"] == "linear":
        frequencies = frequencies / np.float32(scaling["factor"])
    return np.asarray(frequencies, np.float32)


def _llama3(frequencies: Floats, trained: int, *, factor: float, low: float, high: float) -> Floats:
    """Llama 3.1's scaling: what turns fewer than `low` times in the `trained` context is slowed down by `factor`, what
    turns more than `high` times is kept, and what lies between is blended."""
    turns = np.float32(trained) * frequencies / np.float32(2 * math.pi)
    kept = np.clip((turns - np.float32(low)) / np.float32(high - low), 0, 1)
    slowed: Floats = frequencies * (kept + (1 - kept) / np.float32(factor))
    return slowed
