"""Facts: what a decoder is, and what one step of it is to do, as numbers. Nothing is computed of them here."""
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int32]
Floats = NDArray[np.float32]


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """hidden, wide and dim are multiples of 16; heads a multiple of kv_heads."""

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    dim: int
    wide: int
    vocabulary: int
    epsilon: float
    window: int = 0  # tokens a query sees, itself included; 0: all


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """T tokens of R rows, of which S sample. All arrays are contiguous."""

    ids: Ints  # [T]
    owners: Ints  # [T] each token's row
    positions: Ints  # [T]
    starts: Ints  # [R + 1] each row's first token, and T
    tables: Ints  # [R, blocks of the longest]
    turns: Floats  # [T, dim] cosines of each pair's angle, then sines
    sampled: Ints  # [S] rows
    settings: NDArray[np.float64]  # [S, 5] temperature, top_k, top_p, min_p, uniform, as Ops.sample takes them
    masks: NDArray[np.uint32]  # [M, vocabulary / 32 at least]: id 32 w + i may be taken where bit i of word w is 1
    mask_of: Ints  # [S] which of them a sample has; -1: none
    edits: Ints  # [E] ids whose logits are changed, of one sample after another, of each no two alike
    divisors: Floats  # [E] by which such a logit is divided where it is above zero, and multiplied elsewhere
    added: Floats  # [E] and what is then added; -inf: never taken
    edit_starts: Ints  # [S + 1] where each sample's begin
    kept: Ints  # [S] a number from 0 on where a sample's logits are also kept as they were before edits; else -1
