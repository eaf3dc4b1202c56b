"""Who is next, and who gets how much of a step: owners by what they were served. It knows no blocks and no clock.

Served is counted in tokens computed plus tokens sampled. An owner who comes back after a pause starts level with the
least served of those who are there, so nobody saves up a claim (a virtual token counter).
"""
from collections import Counter, OrderedDict
from collections.abc import Iterator
from itertools import chain, zip_longest

from .integrity import check
from .sequence import Sequence


class FairQueue:
    """The waiting sequences, by owner; and how many of each owner run."""

    def __init__(self) -> None:
        self._waiting: dict[str, OrderedDict[int, Sequence]] = {}
        self._served: dict[str, int] = {}
        self._running: dict[str, int] = {}
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def push(self, sequence: Sequence) -> None:
        owner = sequence.owner.id
        if not self._is_present(owner):
            present = [self._served[other] for other in self._served if self._is_present(other)]
            if not present:
                self._served.clear()
            self._served[owner] = max(self._served.get(owner, 0), min(present, default=0))
        self._waiting.setdefault(owner, OrderedDict())[sequence.id] = sequence
        self._count += 1

    def push_back(self, sequence: Sequence) -> None:
        """Preempted: it was taken from this queue before, so it is its owner's next."""
        self.push(sequence)
        self._waiting[sequence.owner.id].move_to_end(sequence.id, last=False)
        self._leave(sequence.owner.id)

    def remove(self, sequence: Sequence) -> None:
        owner = sequence.owner.id
        del self._waiting[owner][sequence.id]
        if not self._waiting[owner]:
            del self._waiting[owner]
        self._count -= 1

    def start(self, sequence: Sequence) -> None:
        """From the queue to those who run."""
        self._running[sequence.owner.id] = self._running.get(sequence.owner.id, 0) + 1
        self.remove(sequence)

    def end(self, sequence: Sequence) -> None:
        """A running sequence ended."""
        self._leave(sequence.owner.id)

    def may_start(self, sequence: Sequence) -> bool:
        bound = sequence.owner.max_running
        return bound is None or self._running.get(sequence.owner.id, 0) < bound

    def in_turn(self) -> Iterator[Sequence]:
        """One of each owner, least served first, then a second of each, and so on. A snapshot: the queue may change."""
        owners = sorted(self._waiting, key=lambda owner: (self._served[owner], next(iter(self._waiting[owner]))))
        rounds = zip_longest(*(tuple(self._waiting[owner].values()) for owner in owners))
        return (sequence for sequence in chain.from_iterable(rounds) if sequence is not None)

    def charge(self, sequence: Sequence, tokens: int) -> None:
        self._served[sequence.owner.id] += tokens

    def share(self, running: list[Sequence], budget: int) -> list[tuple[Sequence, int]]:
        """(sequence, tokens) of one step; `running` is oldest first and has fewer members than the budget.

        Whoever needs one token gets it. Half of the rest is kept for the oldest prompt, so that none starves; the
        other half goes by owner, least served first, and the shortest first, so that a short one gets past a long one.
        What these leave is the oldest's, too.
        """
        shares = [(sequence, 1) for sequence in running if sequence.num_uncomputed == 1]
        prompts = [sequence for sequence in running if sequence.num_uncomputed > 1]
        if not prompts:
            return shares
        oldest, left = prompts[0], budget - len(shares)
        kept = min(oldest.num_uncomputed, (left + 1) // 2)
        for sequence in sorted(prompts[1:], key=lambda s: (self._served[s.owner.id], s.num_uncomputed, s.id)):
            if count := min(sequence.num_uncomputed, left - kept):
                shares.append((sequence, count))
                left -= count
        return [*shares, (oldest, min(oldest.num_uncomputed, left))]

    def check_integrity(self, running: list[Sequence]) -> None:
        counts = Counter(sequence.owner.id for sequence in running)
        check(counts == Counter(self._running), f"{dict(counts)} run, counted {self._running}")
        check(self._count == sum(map(len, self._waiting.values())), f"{self._count} were counted to wait")

    def _is_present(self, owner: str) -> bool:
        return owner in self._waiting or owner in self._running

    def _leave(self, owner: str) -> None:
        self._running[owner] -= 1
        if not self._running[owner]:
            del self._running[owner]
