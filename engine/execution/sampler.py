"""Sampler: from one step's logits to one id a row, in PyTorch. The arithmetic is `Ops.sample`'s."""
import torch
from torch import Tensor

from hamdam.kernels.ops import Ops

from ..policy.batch import Broken
from ..policy.sequence import Sequence
from .draws import BROKEN_LOGITS, held_back, settings


def sample(ops: Ops, logits: Tensor, sequences: list[Sequence]) -> list[int | Broken]:
    """logits [rows, vocabulary]: this changes them. A row that is not all finite is Broken; others do not notice."""
    finite = logits.sum(-1).isfinite().tolist()  # one infinity or not-a-number makes the sum one, ten times as fast
    for row, sequence in enumerate(sequences):
        if not finite[row]:
            logits[row] = 0.0  # what `Ops.sample` is not made for; the id drawn from it is thrown away
        else:
            logits[row, held_back(sequence, logits.shape[1])] = -torch.inf
    ids = ops.sample(logits, *_settings(sequences)).tolist()
    return [id if fine else BROKEN_LOGITS for id, fine in zip(ids, finite, strict=True)]


def _settings(sequences: list[Sequence]) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """temperature, top_k, top_p, min_p, uniform as `Ops.sample` takes them."""
    temperature, top_k, top_p, min_p, uniform = zip(*map(settings, sequences), strict=True)
    wide = (torch.tensor(column, dtype=torch.float64) for column in (temperature, top_p, min_p, uniform))
    heat, mass, least, drawn = wide
    return heat, torch.tensor(top_k), mass, least, drawn
