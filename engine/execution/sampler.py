"""Sampler: from one step's logits to one id a row, by each row's own parameters. The arithmetic is `Ops.sample`'s."""
import torch
from torch import Tensor

from hamdam.kernels.ops import Ops

from ..policy.batch import Broken
from ..policy.sequence import Sequence

GREEDY_BELOW = 1e-3
"""Temperatures below this are 0. They would tell logits apart that differ by less than those are exact to."""

_MASK = (1 << 64) - 1


def uniform(seed: int, position: int) -> float:
    """A number in [0, 1) made of a sequence's seed and of how many tokens it has generated, and of nothing else.

    So a draw is never repeated, skipped or moved by a neighbour, a chunk or a preemption: there is no state to keep.
    It is number `position` of SplitMix64 (Steele, Lea and Flood 2014), started at the mixed seed; 53 bits of it.
    """
    state = (_mix(seed & _MASK) + (position + 1) * 0x9E3779B97F4A7C15) & _MASK
    return (_mix(state) >> 11) / (1 << 53)


def _mix(z: int) -> int:
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _MASK
    return z ^ (z >> 31)


def sample(ops: Ops, logits: Tensor, sequences: list[Sequence]) -> list[int | Broken]:
    """logits [rows, vocabulary]: this changes them. A row that is not all finite is Broken; others do not notice."""
    finite = logits.sum(-1).isfinite().tolist()  # one infinity or not-a-number makes the sum one, ten times as fast
    for row, sequence in enumerate(sequences):
        if not finite[row]:
            logits[row] = 0.0  # what `Ops.sample` is not made for; the id drawn from it is thrown away
        elif sequence.num_generated < sequence.params.min_tokens:
            logits[row, [id for id in sequence.held_back_ids if id < logits.shape[1]]] = -torch.inf
    ids = ops.sample(logits, *_settings(sequences)).tolist()
    broken = Broken("the model's logits are not finite numbers")
    return [id if fine else broken for id, fine in zip(ids, finite, strict=True)]


def _settings(sequences: list[Sequence]) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """temperature, top_k, top_p, min_p, uniform as `Ops.sample` takes them."""
    chosen = [sequence.params for sequence in sequences]
    heat = [0.0 if params.temperature < GREEDY_BELOW else params.temperature for params in chosen]
    draws = [uniform(s.seed, s.num_generated) if warm else 0.0 for s, warm in zip(sequences, heat, strict=True)]
    return (
        torch.tensor(heat, dtype=torch.float64),
        torch.tensor([params.top_k for params in chosen]),
        torch.tensor([params.top_p for params in chosen], dtype=torch.float64),
        torch.tensor([params.min_p for params in chosen], dtype=torch.float64),
        torch.tensor(draws, dtype=torch.float64),
    )
