"""Delivery: a cursor into a turn's list, and what it gives next. It holds no queue and sends nothing.

Text that waited becomes one delta: whoever is slow gets bigger pieces, and what waits is the turn itself.
"""
from msgspec.structs import replace

from .protocol import Delta, RunEvent, ServerEvent
from .turn import Turn

MAX_DELTA = 64 << 10  # characters of one merged delta, so that one frame never fills a peer's window alone
LISTED = 100  # characters that a token and its log-probability take, about


class Cursor:
    def __init__(self, turn: Turn, seen: int | None) -> None:
        """`seen`: the last number that the client has; the end is given in any case.

        None, or a number that the run never reached: begin with a snapshot.
        """
        last = len(turn.numbered)
        self.turn = turn
        self._snapshot_due = seen is None or seen > last
        self.seen = min(seen or 0, last - (turn.end is not None))
        self._states: dict[type[RunEvent], int] = {}
        self.due = float("-inf")  # when the next delta may go

    @property
    def drained(self) -> bool:
        """The end was given: there is nothing more to come."""
        return self.turn.end is not None and not self._snapshot_due and self.seen >= len(self.turn.numbered)

    def next(self, now: float, coalesce_s: float) -> ServerEvent | None:
        """The next event, or None: nothing is there, or what is there waits until `due`."""
        if self._snapshot_due:
            self._snapshot_due = False
            snapshot = self.turn.snapshot()
            self.seen = snapshot.sequence_number
            return snapshot
        if self.seen < len(self.turn.numbered):
            event = self.turn.numbered[self.seen]
            if not isinstance(event, Delta):
                self.seen += 1
                return event
            if now >= self.due or type(self.turn.numbered[-1]) is not type(event):
                self.due = now + coalesce_s
                return self._merged(event)
        return self._state()

    @property
    def waits(self) -> bool:
        """Whether there is text that goes out at `due`."""
        return self.seen < len(self.turn.numbered)

    def _merged(self, first: Delta) -> Delta:
        merged, size = [first], _size(first)
        for event in self.turn.numbered[self.seen + 1 :]:
            if not isinstance(event, Delta) or type(event) is not type(first) or size + _size(event) > MAX_DELTA:
                break
            merged.append(event)
            size += _size(event)
        last = merged[-1]
        self.seen = last.sequence_number
        if last is first:
            return first
        text, logprobs = "".join(one.delta for one in merged), [own for one in merged for own in one.logprobs or ()]
        return replace(last, delta=text, from_seq=first.sequence_number, logprobs=logprobs or None)

    def _state(self) -> RunEvent | None:
        for kind, (version, event) in self.turn.states.items():
            if self._states.get(kind, 0) < version:
                self._states[kind] = version
                return event
        return None


def _size(event: Delta) -> int:
    return len(event.delta) + LISTED * sum(1 + len(own.top_logprobs) for own in event.logprobs or ())
