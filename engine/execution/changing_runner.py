"""ChangingRunner: computes with one runner until a faster one is ready, and from then on with that. No step is lost.

The faster one is prepared on a thread of its own; the change happens between two steps, and takes along the KV of every
block that was written meanwhile, so that nothing has to be computed again.
"""
import logging
import threading
from collections.abc import Callable
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from ..config import BLOCK_SIZE
from ..memory import give_back
from ..policy.batch import Batch, Result, Runner

log = logging.getLogger("hamdam.engine")
Floats = NDArray[np.float32]


class First(Runner, Protocol):
    num_layers: int

    def kv(self, blocks: list[int], layer: int) -> tuple[Floats, Floats]:
        """Keys and values of whole blocks in one layer: [blocks, 16, kv_heads, head_dim] each."""


class Faster(Runner, Protocol):
    def take_kv(self, blocks: list[int], keys: Floats, values: Floats, layer: int) -> None:
        """Fills whole blocks of one layer with what `First.kv` gave."""


class ChangingRunner:
    """Implements policy.batch.Runner. Both runners have as many blocks, numbered alike."""

    def __init__(self, first: First, prepare: Callable[[threading.Event], Faster | None], *, fingerprint: str) -> None:
        """prepare(stop): seconds of work, on another thread; None where it was stopped or cannot be done."""
        self.num_blocks, self.vocab_size = first.num_blocks, first.vocab_size
        self.max_context, self.eos_ids = first.max_context, first.eos_ids
        self.kv_fingerprint = fingerprint
        self._now: Runner = first
        self._first: First | None = first
        self._ready: Faster | None = None
        self._written: set[int] = set()  # blocks that hold KV
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._prepare, args=(prepare,), name="hamdam-prepare", daemon=True)
        self._thread.start()

    @property
    def description(self) -> str:
        faster = ", until a faster path is ready" if self._first is not None and not self._stop.is_set() else ""
        return f"{self._now.description}{faster}"

    def run(self, batch: Batch) -> list[Result]:
        if self._first is not None:
            if self._ready is not None:
                self._change(self._first, self._ready)
            else:
                self._note(batch)
        return self._now.run(batch)

    def close(self) -> None:
        self._stop.set()
        self._thread.join()
        self._now.close()
        if self._ready is not None and self._ready is not self._now:
            self._ready.close()

    def _prepare(self, prepare: Callable[[threading.Event], Faster | None]) -> None:
        try:
            self._ready = prepare(self._stop)
        except Exception:
            log.exception("the faster path could not be prepared; the slower one goes on")
        if self._ready is None:
            self._stop.set()

    def _note(self, batch: Batch) -> None:
        self._written.update(target for _, target in batch.copies)
        for row in batch.rows:
            last = (row.start + row.count - 1) // BLOCK_SIZE
            self._written.update(row.sequence.block_table[row.start // BLOCK_SIZE : last + 1])

    def _change(self, first: First, ready: Faster) -> None:
        blocks = sorted(self._written)
        if blocks:
            for layer in range(first.num_layers):
                ready.take_kv(blocks, *first.kv(blocks, layer), layer)
        first.close()
        self._now, self._first = ready, None
        del first
        give_back()  # some 200 MB
        self._written.clear()
        log.info("now computing in %s", ready.description)
