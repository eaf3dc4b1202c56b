"""Admission: from the queue to those who run, with blocks for all ids so far. It takes nothing from those who run."""
from dataclasses import dataclass

from ..config import BLOCK_SIZE
from .batch import Batch
from .block_pool import BlockPool
from .chain import common_prefix, extend
from .fairness import FairQueue
from .integrity import check
from .sequence import Sequence
from .session import Sessions

MAX_PASSED = 8
"""Waiting sequences that one step passes by for want of blocks; a full pool must not make every step long."""
PATIENCE = 32
"""How many may be taken past a sequence that waits for blocks; after that nobody is until it fits."""


class Admission:
    """Asks session and prefix index for what is computed already, when a sequence is first scheduled and not before."""

    def __init__(self, pool: BlockPool, sessions: Sessions, queue: FairQueue, kv_fingerprint: str) -> None:
        self._pool, self._sessions, self._queue = pool, sessions, queue
        self._kv_fingerprint = kv_fingerprint
        self._underway: dict[bytes, Sequence] = {}  # keys of blocks that a running sequence is going to publish

    def admit(self, num_running: int, max_running: int, batch: Batch) -> list[Sequence]:
        """Takes in who fits, in turn, and returns them. Who does not fit is passed by, but not for ever."""
        taken: list[Sequence] = []
        passed: list[Sequence] = []
        for sequence in self._queue.in_turn():
            if num_running + len(taken) == max_running or len(passed) == MAX_PASSED:
                break
            if not self._queue.may_start(sequence) or self._waits(sequence):
                continue
            if self._take(sequence, num_running + len(taken), batch):
                taken.append(sequence)
                for other in passed:
                    other.passed_by += 1
            elif not self._waits(sequence):
                passed.append(sequence)
                if sequence.passed_by >= PATIENCE:
                    break
        return taken

    def publish(self, sequence: Sequence, first: int, end: int) -> None:
        """Blocks `first` to `end` of a running sequence are full and computed: from now on they can be found."""
        self._extend(sequence)
        for number in range(first, end):
            self._pool.publish(sequence.block_table[number], sequence.links, number)
        self._not_underway(sequence, first, end)

    def leave(self, sequence: Sequence) -> None:
        """The sequence runs no more: what it has not published it will not."""
        self._not_underway(sequence, sequence.num_computed // BLOCK_SIZE, len(sequence.links))

    def check_integrity(self, running: list[Sequence]) -> None:
        computing = set(self._underway.values())
        check(computing <= set(running), "a block is said to be on its way from a sequence that does not run")

    # --- inside ---

    def _take(self, sequence: Sequence, num_running: int, batch: Batch) -> bool:
        """What is found is held first, then it is seen whether the rest fits; if not, the hold is undone.

        Each that runs may need one more block soon, so as many are left. The source of a copy may be given up in the
        same step, and even be the block that is copied to: copies come before all writes.
        """
        found = self._find(sequence)
        if self._is_underway(sequence, len(found.own) + len(found.hits)):
            return False
        self._pool.unpin(found.own)
        self._pool.acquire(found.hits)
        missing = -(-len(sequence.ids) // BLOCK_SIZE) - len(found.own) - len(found.hits)
        if missing + num_running > self._pool.num_available:
            self._pool.release(found.hits)
            self._pool.pin(found.own)
            return False
        if session := self._sessions.held_by(sequence):
            self._sessions.take(session, len(found.own))
        self._sessions.reclaim(missing)
        fresh = self._pool.allocate(missing)
        if found.source is not None and found.source != fresh[0]:
            batch.copies.append((found.source, fresh[0]))
        sequence.block_table = found.own + found.hits + fresh
        sequence.num_computed = found.computed
        sequence.waits_on, sequence.passed_by = None, 0
        self._set_underway(sequence)
        self._queue.start(sequence)
        return True

    def _find(self, sequence: Sequence) -> "Found":
        """At least the last id is left to compute, for its logits. The session's own blocks first, then the index.

        A block of which only a part is of use must be private: it is moved if the session alone holds it and nobody
        can find it, else copied.
        """
        self._extend(sequence)
        if sequence.is_scoring:  # what is found computed has no logits
            return Found([], [], None, 0)
        session, most = self._sessions.held_by(sequence), len(sequence.ids) - 1
        blocks = session.blocks if session else []
        known = min(common_prefix(session.ids, sequence.ids), most) if session else 0
        full, part = divmod(known, BLOCK_SIZE)
        hits = self._pool.match(sequence.links, full)
        if (full + len(hits)) * BLOCK_SIZE > most:  # the whole prompt is there
            return Found(blocks[:full], hits[:-1], hits[-1], most)
        if hits or not part:
            return Found(blocks[:full], hits, None, (full + len(hits)) * BLOCK_SIZE)
        if self._pool.is_writable(blocks[full]):
            return Found(blocks[: full + 1], [], None, known)
        return Found(blocks[:full], [], blocks[full], known)

    def _extend(self, sequence: Sequence) -> None:
        extend(sequence.links, sequence.ids, (self._kv_fingerprint, sequence.owner.cache_root))

    # --- what another sequence is just computing ---

    def _set_underway(self, sequence: Sequence) -> None:
        for link in sequence.links[sequence.num_computed // BLOCK_SIZE :]:
            self._underway.setdefault(link.key, sequence)

    def _not_underway(self, sequence: Sequence, first: int, end: int) -> None:
        for link in sequence.links[first:end]:
            if self._underway.get(link.key) is sequence:
                del self._underway[link.key]

    def _is_underway(self, sequence: Sequence, next_block: int) -> bool:
        """Whether the next block it needs is on its way; notes the last one in a row, which is worth waiting for."""
        for link in sequence.links[next_block:]:
            if link.key not in self._underway:
                break
            sequence.waits_on = link.key
        return self._waits(sequence)

    def _waits(self, sequence: Sequence) -> bool:
        return sequence.waits_on is not None and sequence.waits_on in self._underway


@dataclass(frozen=True, slots=True)
class Found:
    """`computed` tokens need no work: in `own` (its session's) and `hits` (the index's), and a part in `source`."""

    own: list[int]
    hits: list[int]
    source: int | None
    computed: int
