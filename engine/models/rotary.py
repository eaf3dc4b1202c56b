"""Rotary positions: a model's inverse frequencies. The decoders make cosines and sines of them, in their own arrays."""
import hashlib
import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .config import ModelConfig
from .rope import Rope

Floats = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class RotaryTable:
    """Pair i of a head, its numbers i and i + head_dim / 2, turns by position * frequencies[i] and is then multiplied
    by sizes[i]. Pairs that do not turn have the frequency 0 and the size 1. [head_dim / 2] each."""

    frequencies: Floats
    sizes: Floats


def rotary_tables(config: ModelConfig, context: int) -> dict[Rope | None, RotaryTable]:
    """Of each way in which a layer of the model turns, None being layers that do not. context: the longest that will be
    served: two kinds depend on it, and what is stored in one cache must be turned alike."""
    ways = dict.fromkeys(config.rope_of(layer) for layer in range(config.num_layers))
    return {rope: _table(config, rope, context) for rope in ways}


def rotary_digest(config: ModelConfig, context: int) -> str:
    """Differs where keys of the same tokens would be turned in another way: a part of every KV fingerprint."""
    digest = hashlib.sha256()
    for table in rotary_tables(config, context).values():
        digest.update(table.frequencies.tobytes() + table.sizes.tobytes())
    return digest.hexdigest()[:16]


def _table(config: ModelConfig, rope: Rope | None, context: int) -> RotaryTable:
    pairs, turning = config.head_dim // 2, config.turning // 2
    table = RotaryTable(np.zeros(pairs, np.float32), np.ones(pairs, np.float32))
    if rope is not None:
        table.frequencies[:turning] = inverse_frequencies(rope, config.turning, context)
        table.sizes[:turning] = rope.scores_factor
    return table


def inverse_frequencies(rope: Rope, dim: int, context: int) -> Floats:
    """[dim / 2], computed in float32 as models are trained with it."""
    theta = rope.theta
    if rope.kind == "dynamic":
        stretch = rope.factor * max(context, rope.original_context) / rope.original_context - (rope.factor - 1)
        theta *= stretch ** (dim / (dim - 2))
    exponents = np.arange(0, dim, 2, dtype=np.float32) / np.float32(dim)
    frequencies = np.power(np.float32(theta), -exponents).astype(np.float32)
    if rope.divisors:
        frequencies = frequencies / np.array(rope.divisors, np.float32)
    elif rope.kind == "llama3":
        frequencies = _llama3(frequencies, rope)
    elif rope.kind == "yarn":
        frequencies = _yarn(frequencies, rope, dim)
    elif rope.kind == "longrope":
        long = context > rope.original_context
        frequencies = frequencies / np.array(rope.long_factors if long else rope.short_factors, np.float32)
    if rope.kind == "linear":
        frequencies = frequencies / np.float32(rope.factor)
    return np.asarray(frequencies, np.float32)


def _llama3(frequencies: Floats, rope: Rope) -> Floats:
    """What turns fewer than `low` times in the original context is slowed down by `factor`, what turns more than `high`
    times is kept, and what lies between is blended."""
    turns = np.float32(rope.original_context) * frequencies / np.float32(2 * math.pi)
    low, high = np.float32(rope.low_freq_factor), np.float32(rope.high_freq_factor)
    return _blended(frequencies, np.clip((turns - low) / (high - low), 0, 1), rope)


def _yarn(frequencies: Floats, rope: Rope, dim: int) -> Floats:
    """As llama3, but the blend goes by a frequency's number, not by its turns."""
    first, last = (
        dim * math.log(rope.original_context / (turns * 2 * math.pi)) / (2 * math.log(rope.theta))
        for turns in (rope.beta_fast, rope.beta_slow)
    )
    if rope.truncate:
        first, last = math.floor(first), math.ceil(last)
    first, last = max(first, 0), min(last, dim - 1)
    if first == last:
        last += 0.001  # a step: no blend
    slowed = (np.arange(dim // 2, dtype=np.float32) - np.float32(first)) / np.float32(last - first)
    return _blended(frequencies, 1 - np.clip(slowed, 0, 1), rope)


def _blended(frequencies: Floats, kept: Floats, rope: Rope) -> Floats:
    blended: Floats = frequencies * (kept + (1 - kept) / np.float32(rope.factor))
    return blended
