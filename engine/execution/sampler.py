"""Sampler: from one step's logits to one id a row, in PyTorch. The arithmetic of the draw is `Ops.sample`'s."""
from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from hamdam.kernels.ops import Ops

from ..policy.batch import Broken, Logprobs, Scored
from ..policy.sequence import Sequence
from .draws import BROKEN_LOGITS, settings
from .edits import Edits
from .masks import Limits, limits

AT_ONCE = 16  # rows whose log-softmax is sorted together: it takes ten times their memory


def sample(ops: Ops, logits: Tensor, sequences: list[Sequence]) -> list[int | Scored | Broken]:
    """logits [rows, vocabulary]: this changes them. A row that is not all finite is Broken; others do not notice.

    On a GPU all is launched without waiting, while the logits may still be computed; only the ids are waited for.
    """
    finite = logits.sum(-1).isfinite()  # one infinity or not-a-number makes the sum one, ten times as fast
    logits.masked_fill_(~finite[:, None], 0.0)  # what `Ops.sample` is not made for; the id drawn from it is thrown away
    scored = [row for row, sequence in enumerate(sequences) if sequence.params.logprobs]
    unedited = logits[_there(torch.tensor(scored), logits)] if scored else None  # a copy, of these rows alone
    limited = limits(sequences, logits.shape[1])
    _mask(logits, limited)
    _edit(logits, limited.edits)
    asked = torch.tensor(list(map(settings, sequences)), dtype=torch.float64)
    heat, top_k, mass, least, drawn = _there(asked, logits).T
    ids = ops.sample(logits, heat, top_k.long(), mass, least, drawn)
    drawn_ids = ids.where(finite, -1).tolist()
    found: list[int | Scored | Broken] = [BROKEN_LOGITS if id < 0 else id for id in drawn_ids]
    if unedited is not None:
        tops = [sequences[row].params.top_logprobs for row in scored]
        for row, own in zip(scored, _logprobs(unedited, [max(drawn_ids[row], 0) for row in scored], tops), strict=True):
            if drawn_ids[row] >= 0:
                found[row] = Scored(drawn_ids[row], own)
    for row, broken in limited.broken.items():
        found[row] = broken
    return found


def _logprobs(logits: Tensor, drawn: list[int], tops: list[int]) -> Iterator[Logprobs]:
    """logits [rows, vocabulary]; of each row the id that was drawn, and how many of the likeliest are asked for."""
    most = max(tops)
    for start in range(0, len(logits), AT_ONCE):
        own = logits[start : start + AT_ONCE].double().log_softmax(-1)
        ids = torch.tensor(drawn[start : start + AT_ONCE], device=own.device)
        of_drawn = own.gather(1, ids[:, None])[:, 0].tolist()
        values, order = own.sort(dim=-1, descending=True, stable=True) if most else (own, own)
        listed = zip(order[:, :most].tolist(), values[:, :most].tolist(), strict=True)
        for worth, top, (likeliest, worths) in zip(of_drawn, tops[start : start + AT_ONCE], listed, strict=True):
            yield Logprobs(worth, tuple(zip(likeliest[:top], worths[:top], strict=True)))


def _mask(logits: Tensor, limited: Limits) -> None:
    rows = np.flatnonzero(limited.of >= 0)
    if not len(rows):
        return
    words = torch.from_numpy(limited.words[limited.of[rows]].view(np.int32))
    words, shifts = _there(words, logits), _there(torch.arange(32, dtype=torch.int32), logits)
    allowed = ((words[:, :, None] >> shifts) & 1).flatten(1)[:, : logits.shape[1]].bool()
    places = _there(torch.from_numpy(rows), logits)
    logits[places] = logits[places].masked_fill(~allowed, -torch.inf)


def _edit(logits: Tensor, changes: list[Edits]) -> None:
    lengths = [len(change.ids) for change in changes]
    if not sum(lengths):
        return
    rows = np.repeat(np.arange(len(changes)), lengths)
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
