"""Sampler: from one step's logits to one id a row, in PyTorch. The arithmetic of the draw is `Ops.sample`'s."""
import numpy as np
import torch
from torch import Tensor

from hamdam.kernels.ops import Ops

from ..policy.batch import Broken, Logprobs, Scored
from ..policy.sequence import Sequence
from .draws import BROKEN_LOGITS, settings
from .edits import Edits
from .masks import Limits, limits
from .transfer import Fetch, sent

AT_ONCE = 16  # rows whose log-softmax is sorted together: it takes ten times their memory


def sample(ops: Ops, logits: Tensor, sequences: list[Sequence]) -> list[int | Scored | Broken]:
    """As Draws; waits for what was drawn."""
    return Draws(ops, logits, sequences).results()


class Draws:
    """One step's draws. On a GPU all is launched without waiting, while the logits may still be computed.

    `ids` [rows], on the logits' device, are tokens of the vocabulary in any case. A row that is not all finite is
    Broken; others do not notice.
    """

    def __init__(self, ops: Ops, logits: Tensor, sequences: list[Sequence]) -> None:
        """logits [rows, vocabulary]: this changes them."""
        finite = logits.sum(-1).isfinite()  # one infinity or not-a-number makes the sum one, ten times as fast
        logits.masked_fill_(~finite[:, None], 0.0)  # what `Ops.sample` is not made for; what is drawn is nobody's
        self._scored = [row for row, sequence in enumerate(sequences) if sequence.params.logprobs]
        self._tops = [sequences[row].params.top_logprobs for row in self._scored]
        places = sent(torch.tensor(self._scored, dtype=torch.int64), logits)
        unedited = logits[places] if self._scored else None  # a copy, of these rows alone
        limited = limits(sequences, logits.shape[1])
        self._broken = limited.broken
        _mask(logits, limited)
        _edit(logits, limited.edits)
        asked = torch.tensor(list(map(settings, sequences)), dtype=torch.float64)
        heat, top_k, mass, least, drawn = sent(asked, logits).T
        self.ids = ops.sample(logits, heat, top_k.long(), mass, least, drawn)
        scores = [] if unedited is None else _logprobs(unedited, self.ids[places], max(self._tops))
        self._fetch = Fetch([self.ids.where(finite, -1), *scores])

    def results(self) -> list[int | Scored | Broken]:
        ids, *scores = (tensor.tolist() for tensor in self._fetch.wait())
        found: list[int | Scored | Broken] = [BROKEN_LOGITS if id < 0 else id for id in ids]
        for row, top, worth, likeliest, worths in zip(self._scored, self._tops, *scores, strict=True) if scores else ():
            if ids[row] >= 0:
                found[row] = Scored(ids[row], Logprobs(worth, tuple(zip(likeliest[:top], worths[:top], strict=True))))
        for row, broken in self._broken.items():
            found[row] = broken
        return found


def _logprobs(logits: Tensor, drawn: Tensor, top: int) -> list[Tensor]:
    """logits [rows, vocabulary], drawn [rows] -> log-softmax of what was drawn [rows], the likeliest ids [rows, top]
    and theirs."""
    parts = []
    for start in range(0, len(logits), AT_ONCE):
        own = logits[start : start + AT_ONCE].double().log_softmax(-1)
        of_drawn = own.gather(1, drawn[start : start + AT_ONCE, None].long())[:, 0]
        values, order = own.sort(dim=-1, descending=True, stable=True) if top else (own, own)
        parts.append((of_drawn, order[:, :top].clone(), values[:, :top].clone()))  # without what they are cut from
    return [torch.cat(part) for part in zip(*parts, strict=True)]


def _mask(logits: Tensor, limited: Limits) -> None:
    rows = np.flatnonzero(limited.of >= 0)
    if not len(rows):
        return
    words = torch.from_numpy(limited.words[limited.of[rows]].view(np.int32))
    words, shifts = sent(words, logits), sent(torch.arange(32, dtype=torch.int32), logits)
    allowed = ((words[:, :, None] >> shifts) & 1).flatten(1)[:, : logits.shape[1]].bool()
    places = sent(torch.from_numpy(rows), logits)
    logits[places] = logits[places].masked_fill(~allowed, -torch.inf)


def _edit(logits: Tensor, changes: list[Edits]) -> None:
    lengths = [len(change.ids) for change in changes]
    if not sum(lengths):
        return
    rows = np.repeat(np.arange(len(changes)), lengths)
    columns = np.concatenate([change.ids for change in changes])
    places = tuple(sent(torch.from_numpy(np.stack((rows, columns)).astype(np.int64)), logits))
    numbers = np.concatenate([np.stack((change.divisors, change.added)) for change in changes], 1)
    divisors, added = sent(torch.from_numpy(numbers), logits)
    own = logits[places].float()
    changed = torch.where(own > 0, own / divisors, own * divisors) + added
    logits[places] = changed.to(logits.dtype)
