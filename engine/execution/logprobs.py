"""Logprobs: what a row's model gave the id that was drawn and the likeliest ones, in NumPy. It draws and edits nothing.

In PyTorch the same is sampler.py's.
"""
import numpy as np

from hamdam.kernels.cpu.facts import Floats

from ..policy.batch import Logprobs

RUN = 64


def logprobs(logits: Floats, drawn: int, top: int) -> Logprobs:
    """logits: [vocabulary], finite, as the model gave them. top: how many of the likeliest ids."""
    wide = logits.astype(np.float64)
    wide -= wide.max()
    wide -= np.log(np.exp(wide).sum())
    return Logprobs(float(wide[drawn]), tuple((id, float(wide[id])) for id in _likeliest(logits, top)))


def _likeliest(logits: Floats, count: int) -> list[int]:
    """The ids of the largest, largest first, of equal ones the lower id first.

    They are sought among what is not below the largest of some run, of which there are few: `count` runs have as large
    a one. To partition all takes four times as long as everything else here.
    """
    if not count:
        return []
    whole = len(logits) // RUN * RUN
    firsts = np.append(logits[:whole].reshape(-1, RUN).max(1), logits[whole:])
    least = np.partition(firsts, -count)[-count] if count < len(firsts) else -np.inf
    ids = np.flatnonzero(logits >= least)
    found: list[int] = ids[np.argsort(-logits[ids], kind="stable")][:count].tolist()
    return found
