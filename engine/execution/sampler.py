"""Sampler: from one step's logits to one id a row, in PyTorch. The arithmetic is `Ops.sample`'s."""
import torch
from torch import Tensor

from hamdam.kernels.ops import Ops

from ..policy.batch import Broken
from ..policy.sequence import Sequence
from .draws import BROKEN_LOGITS, held_back, settings


def sample(ops: Ops, logits: Tensor, sequences: list[Sequence]) -> list[int | Broken]:
    """logits [rows, vocabulary]: this changes them. A row that is not all finite is Broken; others do not notice.

    On a GPU all is launched without waiting, while the logits may still be computed; only the ids are waited for.
    """
    finite = logits.sum(-1).isfinite()  # one infinity or not-a-number makes the sum one, ten times as fast
    logits.masked_fill_(~finite[:, None], 0.0)  # what `Ops.sample` is not made for; the id drawn from it is thrown away
    held = [(row, id) for row, sequence in enumerate(sequences) for id in held_back(sequence, logits.shape[1])]
    if held:
        logits[tuple(_there(torch.tensor(held), logits).T)] = -torch.inf
    asked = torch.tensor(list(map(settings, sequences)), dtype=torch.float64)
    heat, top_k, mass, least, drawn = _there(asked, logits).T
    ids = ops.sample(logits, heat, top_k.long(), mass, least, drawn)
    return [BROKEN_LOGITS if id < 0 else id for id in ids.where(finite, -1).tolist()]


def _there(numbers: Tensor, like: Tensor) -> Tensor:
    """On the device of `like`. A copy out of ordinary memory would wait for all that was launched before."""
    if like.device.type == "cpu":
        return numbers
    return numbers.pin_memory().to(like.device, non_blocking=True)
