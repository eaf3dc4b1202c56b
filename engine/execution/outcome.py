"""Outcome: what the rows of a step come to, launched and perhaps not computed yet. It computes no scores."""
import torch

from hamdam.kernels.ops import Ops

from ..policy.batch import Result, Row
from ..policy.sequence import Status
from .decode_graphs import Scores
from .draws import BROKEN_HIDDEN
from .sampler import Draws
from .step_inputs import Drawn
from .transfer import Fetch, sent


class Outcome:
    """A row that samples is judged by its logits, another by its hidden state: its blocks are about to be published,
    and what is not a number there would spread to all who share them. Whose sequence is FINISHED draws nothing."""

    def __init__(self, ops: Ops, rows: list[Row], scores: Scores) -> None:
        self._rows = rows
        sampling = [index for index, row in enumerate(rows) if row.sample]
        self._drawing = [index for index in sampling if rows[index].sequence.status is not Status.FINISHED]
        logits = scores.logits[: len(sampling)]
        if len(self._drawing) < len(sampling):
            place_of = {index: place for place, index in enumerate(sampling)}  # among the logits
            places = [place_of[index] for index in self._drawing]
            logits = logits[sent(torch.tensor(places, dtype=torch.int64), logits)]
        sequences = [rows[index].sequence for index in self._drawing]
        self._draws = Draws(ops, logits, sequences) if sequences else None
        self._finite = Fetch([scores.hidden.isfinite().all(-1)]) if len(sampling) < len(rows) else None

    def drawn(self) -> Drawn:
        assert self._draws is not None, "who draws nothing foresees nothing"
        return Drawn(self._draws.ids, {self._rows[index].sequence.id: at for at, index in enumerate(self._drawing)})

    def results(self) -> list[Result]:
        found: list[Result] = [None] * len(self._rows)
        for index, drawn in zip(self._drawing, self._draws.results() if self._draws else [], strict=True):
            found[index] = drawn
        if self._finite is not None:
            [finite] = self._finite.wait()
            for index, row in enumerate(self._rows):
                if not row.sample and not finite[index]:
                    found[index] = BROKEN_HIDDEN
        return found
