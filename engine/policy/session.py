"""Sessions: the conversations' claims on KV blocks between turns. Not sign-ins, and no promise about content.

    idle   holds blocks (pins); expire and reclaim take them, the tail first, and then they are only cached
    busy   its one Sequence runs and holds the blocks; meanwhile the session holds none
    cold   holds none, but remembers which can still be found, so that deleting the conversation forgets them
"""
from collections import OrderedDict
from collections.abc import Container
from dataclasses import dataclass, field

from ..config import BLOCK_SIZE
from .block_pool import BlockPool
from .integrity import check
from .sequence import Sequence

MAX_COLD = 1024
"""Sessions remembered without blocks. The oldest beyond it is forgotten as if it had been closed."""


@dataclass(slots=True, eq=False)
class Session:
    """`ids` are exactly those whose KV is in `blocks`, so len(blocks) == ceil(len(ids) / BLOCK_SIZE).

    `keys` (in order) name every block that its sequences published, on every branch, while it may still be found.
    `holder` is the one sequence that may pin here; `guests` are others of the same conversation: they pin nothing.
    """

    id: str
    owner: tuple[str, str]  # Owner.id, Owner.cache_root
    last_used: float
    ids: list[int] = field(default_factory=list)
    blocks: list[int] = field(default_factory=list)
    keys: dict[bytes, None] = field(default_factory=dict)
    holder: int | None = None  # sequence id
    guests: set[int] = field(default_factory=set)
    last: tuple[int, int] | None = None  # (sequence id, prompt tokens) of what ended here last


class Sessions:
    """All of them. `ttl` in seconds; `quota` is how many blocks an owner's idle sessions hold before they go first."""

    def __init__(self, pool: BlockPool, *, ttl: float, quota: int) -> None:
        self._pool, self._ttl, self._quota = pool, ttl, quota
        self._all: dict[str, Session] = {}
        self._of: dict[int, Session] = {}  # by sequence id: those that take part, and the one that ended last
        self._idle: OrderedDict[str, Session] = OrderedDict()  # the longest idle first
        self._idle_of: dict[str, OrderedDict[str, Session]] = {}  # the same by owner id
        self._pinned_of: dict[str, int] = {}  # blocks, by owner id
        self._cold: OrderedDict[str, Session] = OrderedDict()

    def __len__(self) -> int:
        return len(self._all)

    def __getitem__(self, session_id: str) -> Session:
        return self._all[session_id]

    def __contains__(self, session_id: object) -> bool:
        return session_id in self._all

    # --- a sequence's part in it ---

    def join(self, sequence: Sequence, now: float) -> None:
        """The first to come holds the session, others are its guests. Another owner's session is no session."""
        if sequence.session_id is None:
            return
        owner = (sequence.owner.id, sequence.owner.cache_root)
        session = self._all.get(sequence.session_id)
        if session is None:
            session = self._all[sequence.session_id] = Session(sequence.session_id, owner, now)
        if session.owner != owner:
            return
        self._cold.pop(session.id, None)
        self._of[sequence.id] = session
        if session.holder is not None:
            session.guests.add(sequence.id)
            return
        session.holder, session.last_used = sequence.id, now
        self._forget_last(session)
        if session.blocks:  # about to be used: the last to be taken
            self._leave_idle(session)
            self._enter_idle(session)

    def held_by(self, sequence: Sequence) -> Session | None:
        session = self._of.get(sequence.id)
        return session if session and session.holder == sequence.id else None

    def members(self, session_id: str) -> list[int]:
        """The sequence ids that run or wait in a session."""
        session = self._all.get(session_id)
        if session is None:
            return []
        return [*([session.holder] if session.holder is not None else []), *sorted(session.guests)]

    def take(self, session: Session, kept: int) -> None:
        """The holder runs: the first `kept` blocks are its own now (unpinned already), the others are given up."""
        self._leave_idle(session)
        rest = session.blocks[kept:]
        session.blocks, session.ids = [], []
        self._pool.unpin(rest)
        self._pool.release(rest)

    def give(self, sequence: Sequence, now: float) -> None:
        """What `sequence` computed goes to the session it holds, if any; else its blocks are released."""
        computed = sequence.num_computed
        used = -(-computed // BLOCK_SIZE)
        blocks, sequence.block_table, reserved = sequence.block_table[:used], [], sequence.block_table[used:]
        self._pool.release(reserved)
        session = self._of.get(sequence.id)
        if session:
            session.keys.update((link.key, None) for link in sequence.links)
        if session is None or session.holder != sequence.id:
            self._pool.release(blocks)
            return
        session.ids, session.blocks, session.last_used = sequence.ids[:computed], blocks, now
        self._pool.pin(blocks)
        self._enter_idle(session)

    def part(self, sequence: Sequence) -> None:
        """The sequence ended, and what it had is given or released already."""
        session = self._of.get(sequence.id)
        if session is None:
            return
        is_holder = session.holder == sequence.id
        if is_holder:
            session.holder = None
        session.guests.discard(sequence.id)
        if is_holder and sequence.started:
            session.last = (sequence.id, sequence.num_prompt)
        else:
            del self._of[sequence.id]
        self._cool(session)

    def cut(self, sequence_id: int, keep: int) -> None:
        """Of the answer that ended here last only `keep` tokens count: the session holds no more than that."""
        session = self._of.get(sequence_id)
        if session is None or session.holder is not None or session.last is None or session.last[0] != sequence_id:
            return
        length = session.last[1] + keep
        while session.blocks and (len(session.blocks) - 1) * BLOCK_SIZE >= length:
            self._drop_tail(session)
        del session.ids[length:]
        self._cool(session)

    # --- giving up pins ---

    def expire(self, now: float) -> None:
        """Idle for `ttl` seconds: not pinned any more, only cached."""
        while self._idle and now - (first := next(iter(self._idle.values()))).last_used >= self._ttl:
            self._drop_all(first)

    def reclaim(self, count: int) -> None:
        """Unpins until `count` blocks are allocatable: owners over quota first, then the longest idle; tails first."""
        while self._pool.num_allocatable < count and self._idle:
            over = [owner for owner, pinned in self._pinned_of.items() if pinned > self._quota]
            firsts = [next(iter(self._idle_of[owner].values())) for owner in over] or [next(iter(self._idle.values()))]
            session = min(firsts, key=lambda first: first.last_used)
            while session.blocks and self._pool.num_allocatable < count and (not over or self._is_over(session)):
                self._drop_tail(session)
            self._cool(session)

    def close(self, session_id: str) -> None:
        """Forgets a session in which nothing runs any more, and whatever of it nobody else holds."""
        session = self._all.get(session_id)
        if session is None:
            return
        assert not self.members(session_id)
        self._drop_all(session)
        self._forget(session)

    # --- does it add up? ---

    def held_blocks(self) -> list[list[int]]:
        return [session.blocks for session in self._all.values()]

    def check_integrity(self, known: Container[int]) -> None:
        """`known` are the ids of sequences that run or wait."""
        for session in self._all.values():
            name = f"session {session.id}"
            check(len(session.blocks) == -(-len(session.ids) // BLOCK_SIZE), f"{name}: ids and blocks do not agree")
            used = bool(session.blocks or self.members(session.id))
            check(all(member in known for member in self.members(session.id)), f"{name}: its sequence is gone")
            check((session.id in self._idle) == bool(session.blocks), f"{name}: idle or not?")
            check((session.id in self._cold) != used, f"{name}: cold or not?")
        for owner, idle in self._idle_of.items():
            pinned = sum(len(session.blocks) for session in idle.values())
            check(self._pinned_of[owner] == pinned, f"{owner} pins {pinned} blocks, counted {self._pinned_of[owner]}")
        check(sum(map(len, self._idle_of.values())) == len(self._idle), "an idle session belongs to no owner")
        lasting = {s.last[0] for s in self._all.values() if s.last}
        check(all(member in known or member in lasting for member in self._of), "a sequence that is gone is remembered")

    # --- inside ---

    def _is_over(self, session: Session) -> bool:
        return self._pinned_of.get(session.owner[0], 0) > self._quota

    def _enter_idle(self, session: Session) -> None:
        if session.blocks:
            owner = session.owner[0]
            self._idle[session.id] = session
            self._idle_of.setdefault(owner, OrderedDict())[session.id] = session
            self._pinned_of[owner] = self._pinned_of.get(owner, 0) + len(session.blocks)

    def _leave_idle(self, session: Session) -> None:
        if self._idle.pop(session.id, None):
            owner = session.owner[0]
            self._pinned_of[owner] -= len(session.blocks)
            del self._idle_of[owner][session.id]
            if not self._idle_of[owner]:
                del self._idle_of[owner], self._pinned_of[owner]

    def _drop_tail(self, session: Session) -> None:
        block = session.blocks.pop()
        del session.ids[len(session.blocks) * BLOCK_SIZE :]
        self._pinned_of[session.owner[0]] -= 1
        self._pool.unpin([block])
        self._pool.release([block])
        if not session.blocks:
            self._leave_idle(session)

    def _drop_all(self, session: Session) -> None:
        while session.blocks:
            self._drop_tail(session)
        self._cool(session)

    def _cool(self, session: Session) -> None:
        """A session without blocks, and in which nothing runs, stays only as long as there is something to forget."""
        if session.blocks or session.holder is not None or session.guests or session.id not in self._all:
            return
        session.keys = {key: None for key in session.keys if self._pool.is_published(key)}
        self._cold[session.id] = session
        if not session.keys:
            self._forget(session)
        elif len(self._cold) > MAX_COLD:
            self._forget(next(iter(self._cold.values())))

    def _forget(self, session: Session) -> None:
        self._pool.forget(session.keys)
        self._forget_last(session)
        self._cold.pop(session.id, None)
        self._all.pop(session.id, None)

    def _forget_last(self, session: Session) -> None:
        if session.last:
            self._of.pop(session.last[0], None)
            session.last = None

