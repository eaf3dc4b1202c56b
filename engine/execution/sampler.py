"""Sampler: from one step's logits to one id a row, in PyTorch. The arithmetic is `Ops.sample`'s."""
import numpy as np
import torch
from torch import Tensor

from hamdam.kernels.ops import Ops

from ..policy.batch import Broken
from ..policy.sequence import Sequence
from .draws import BROKEN_LOGITS, settings
from .edits import edits


def sample(ops: Ops, logits: Tensor, sequences: list[Sequence]) -> list[int | Broken]:
    """logits [rows, vocabulary]: this changes them. A row that is not all finite is Broken; others do not notice.

    On a GPU all is launched without waiting, while the logits may still be computed; only the ids are waited for.
    """
    finite = logits.sum(-1).isfinite()  # one infinity or not-a-number makes the sum one, ten times as fast
    logits.masked_fill_(~finite[:, None], 0.0)  # what `Ops.sample` is not made for; the id drawn from it is thrown away
    _edit(logits, sequences)
    asked = torch.tensor(list(map(settings, sequences)), dtype=torch.float64)
    heat, top_k, mass, least, drawn = _there(asked, logits).T
    ids = ops.sample(logits, heat, top_k.long(), mass, least, drawn)
    return [BROKEN_LOGITS if id < 0 else id for id in ids.where(finite, -1).tolist()]


def _edit(logits: Tensor, sequences: list[Sequence]) -> None:
    changes = [edits(sequence, logits.shape[1]) for sequence in sequences]
    lengths = [len(change.ids) for change in changes]
    if not sum(lengths):
        return
    rows = np.repeat(np.arange(len(sequences)), lengths)
    columns = np.concatenate([change.ids for change in changes])
    places = tuple(_there(torch.from_numpy(np.stack((rows, columns)).astype(np.int64)), logits))
    numbers = np.concatenate([np.stack((change.divisors, change.added)) for change in changes], 1)
    divisors, added = _there(torch.from_numpy(numbers), logits)
    own = logits[places].float()
    changed = torch.where(own > 0, own / divisors, own * divisors) + added
    logits[places] = changed.to(logits.dtype)


def _there(numbers: Tensor, like: Tensor) -> Tensor:
    """On the device of `like`. A copy out of ordinary memory would wait for all that was launched before."""
    if like.device.type == "cpu":
        return numbers
    return numbers.pin_memory().to(like.device, non_blocking=True)
