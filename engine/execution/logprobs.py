"""Logprobs: what a row's model gave the id that was drawn and the likeliest ones, in NumPy. It draws and edits nothing.

In PyTorch the same is sampler.py's.
"""
import numpy as np

from hamdam.kernels.cpu.facts import Floats

from ..policy.batch import Logprobs


def logprobs(logits: Floats, drawn: int, top: int) -> Logprobs:
    """logits: [vocabulary], finite, as the model gave them. top: how many of the likeliest ids."""
    wide = logits.astype(np.float64)
    wide -= wide.max()
    wide -= np.log(np.exp(wide).sum())
    return Logprobs(float(wide[drawn]), tuple((id, float(wide[id])) for id in _likeliest(logits, top)))


def _likeliest(logits: Floats, count: int) -> list[int]:
    """The ids of the largest, largest first, of equal ones the lower id first."""
    if not (count := min(count, len(logits))):
        return []
    least = np.partition(logits, -count)[-count]
    ids = np.flatnonzero(logits >= least)
    found: list[int] = ids[np.argsort(-logits[ids], kind="stable")][:count].tolist()
    return found
