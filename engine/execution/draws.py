"""Draws: what a row's own parameters mean for the draw of its next id, as plain numbers. The draw is the kernels'."""
from ..policy.batch import Broken
from ..policy.sequence import Sequence

GREEDY_BELOW = 1e-3
"""Temperatures below this are 0. They would tell logits apart that differ by less than those are exact to."""

BROKEN_HIDDEN = Broken("the model's hidden state is not finite numbers")
BROKEN_LOGITS = Broken("the model's logits are not finite numbers")

_MASK = (1 << 64) - 1


def settings(sequence: Sequence) -> tuple[float, int, float, float, float]:
    """temperature, top_k, top_p, min_p, uniform, as `Ops.sample` takes them."""
    params = sequence.params
    if params.temperature < GREEDY_BELOW:
        return 0.0, params.top_k, params.top_p, params.min_p, 0.0
    drawn = uniform(sequence.seed, sequence.num_generated)
    return params.temperature, params.top_k, params.top_p, params.min_p, drawn


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
