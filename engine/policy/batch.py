"""One step's work, as plain facts: which tokens of which sequences, into which blocks. Not how it is computed."""
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from .sequence import Sequence


@dataclass(slots=True)
class Row:
    """Compute `sequence.ids[start:start + count]`. With `sample` it reaches the end of the ids, so a token is drawn.

    In a batch that another foresaw, `start` is the place of the id that the other's row draws.
    With `scores` it is one token of that sequence's prompt, and `sequence` stands in for it: what is drawn is `given`.
    """

    sequence: Sequence
    start: int
    count: int
    sample: bool
    scores: Sequence | None = None


@dataclass(slots=True)
class Batch:
    """`copies` are (from, to) block ids, done in order before anything is written.

    foresee: what a runner that computes beside us may ask once, while this step runs: the step after it, up to the ids
    that this one draws. It may begin to compute that at once, and will be asked to run it next, or never. A row whose
    sequence is FINISHED by then draws nothing. None: what comes next cannot be known yet.
    """

    rows: list[Row] = field(default_factory=list)
    copies: list[tuple[int, int]] = field(default_factory=list)
    foresee: "Callable[[], Batch | None]" = field(default=lambda: None, repr=False, compare=False)

    @property
    def tokens(self) -> int:
        return sum(row.count for row in self.rows)


@dataclass(frozen=True, slots=True)
class Broken:
    """In place of a sampled id: this row alone failed (not-a-number logits, a sampler's error).

    refused: by what was asked for, which leaves no answer, and not by a fault of ours.
    """

    why: str
    refused: bool = False


@dataclass(frozen=True, slots=True)
class Logprobs:
    """log-softmax of a row's logits as the model gave them: before edits, masks and temperature.

    `top` has the likeliest ids with theirs, likeliest first, of equal ones the lower id first.
    """

    drawn: float
    top: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, slots=True)
class Scored:
    """In place of a sampled id, where the row's sequence asks for logprobs."""

    id: int
    logprobs: Logprobs


Result = int | Scored | Broken | None
"""Of a row: the sampled id, alone or Scored; Broken; None where the row has no `sample`."""


class Runner(Protocol):
    """What the step loop asks of what computes. Lives on the engine's thread; never asked twice at a time.

    `num_blocks` are the usable ones, numbered from 0: what a runner needs for itself is not among them.
    """

    num_blocks: int
    vocab_size: int
    max_context: int
    eos_ids: frozenset[int]
    kv_fingerprint: str  # model weights + KV dtype + layout: part of every cache key

    @property
    def description(self) -> str:
        """The device and what it computes in, for people."""

    def run(self, batch: Batch) -> list[Result]:
        """One entry a row."""

    def close(self) -> None: ...
