"""Rotary positions: a model's inverse frequencies and a step's cosines and sines. The kernels turn heads by them."""
import math

import torch
from torch import Tensor

from .config import ModelConfig


def inverse_frequencies(config: ModelConfig) -> Tensor:
    """[head_dim / 2] float32, computed in float32 as models are trained with it (RoFormer, arXiv:2104.09864)."""
    exponents = torch.arange(0, config.head_dim, 2, dtype=torch.float32) / config.head_dim
    frequencies = 1.0 / config.rope_theta**exponents
    scaling = config.rope_scaling or {"rope_type": "default"}
    if config.rope_factors is not None:  # llama3's scaling as some files give it, worked out
        frequencies = frequencies / torch.tensor(config.rope_factors)
    elif scaling["rope_type"] == "llama3":
        frequencies = _llama3(
            frequencies, scaling["original_max_position_embeddings"], factor=scaling["factor"],
            low=scaling["low_freq_factor"], high=scaling["high_freq_factor"],
        )
    return frequencies / scaling["factor"] if scaling["rope_type"] == "linear" else frequencies


def _llama3(frequencies: Tensor, trained: int, *, factor: float, low: float, high: float) -> Tensor:
    """Llama 3.1's scaling: what turns fewer than `low` times in the `trained` context is slowed down by `factor`, what
    turns more than `high` times is kept, and what lies between is blended."""
    turns = trained * frequencies / (2 * math.pi)
    kept = ((turns - low) / (high - low)).clamp(0, 1)
    return frequencies * (kept + (1 - kept) / factor)


def turns(positions: Tensor, frequencies: Tensor) -> tuple[Tensor, Tensor]:
    """For `Ops.rotary`: [tokens] -> cosine and sine, [tokens, 1, head_dim], the first half of the sine negative."""
    angles = positions[:, None, None] * frequencies
    cosine, sine = angles.cos(), angles.sin()
    return torch.cat((cosine, cosine), -1), torch.cat((-sine, sine), -1)
