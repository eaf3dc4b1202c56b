"""One step's work, as plain facts: which tokens of which sequences, into which blocks. Not how it is computed."""
from dataclasses import dataclass, field
from typing import Protocol

from .sequence import Sequence


@dataclass(slots=True)
class Row:
    """Compute `sequence.ids[start:start + count]`. With `sample` it reaches the end of the ids, so a token is drawn."""

    sequence: Sequence
    start: int
    count: int
    sample: bool


@dataclass(slots=True)
class Batch:
    """`copies` are (from, to) block ids, done in order before anything is written."""

    rows: list[Row] = field(default_factory=list)
    copies: list[tuple[int, int]] = field(default_factory=list)

    @property
    def tokens(self) -> int:
        return sum(row.count for row in self.rows)


@dataclass(frozen=True, slots=True)
class Broken:
    """In place of a sampled id: this row alone failed (not-a-number logits, a sampler's error)."""

    why: str


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

    def run(self, batch: Batch) -> list[int | Broken | None]:
        """One entry a row: the sampled id, Broken, or None where the row has no `sample`."""

    def close(self) -> None: ...
