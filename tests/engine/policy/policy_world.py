"""A world for the tests of policy: the real Scheduler over a store that knows which prefix each slot was computed for.

The "model" is a function of the exact prefix, read through the block table. Foreign, stale or overwritten KV gives
another token, and is caught before that. Every rule of a block's life is looked at in every step.
"""
import zlib
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from hamdam.engine.chat import Owner
from hamdam.engine.config import BLOCK_SIZE, EngineConfig
from hamdam.engine.policy.batch import Batch, Broken
from hamdam.engine.policy.chain import Link, extend
from hamdam.engine.policy.progress import Admitted, Appended, Ended
from hamdam.engine.policy.sampling_params import SamplingParams
from hamdam.engine.policy.scheduler import Scheduler
from hamdam.engine.policy.sequence import Sequence, Status

KV = "model-1/float32"
VOCABULARY = 5
END = 4  # the one stop id


def kv_after(kv: int, token: int) -> int:
    """The KV of a position: it depends on the root and on all ids up to there, and on nothing else."""
    return hash((kv, token))


def kv_before(root: str) -> int:
    return zlib.crc32(f"{KV} {root}".encode())


def next_id(prefix: list[int]) -> int:
    """The greedy answer of a model that attends to all of its prefix."""
    return sum((place + 7) * (kv % 1009) for place, kv in enumerate(prefix)) % 1013 % VOCABULARY


def solo(root: str, prompt: list[int], count: int) -> list[int]:
    """What the `count` tokens after `prompt` are when nothing else runs and nothing is cached."""
    kv, prefix, answer = kv_before(root), [], []
    prefix.extend(kv := kv_after(kv, token) for token in prompt)
    for _ in range(count):
        answer.append(next_id(prefix))
        prefix.append(kv := kv_after(kv, answer[-1]))
    return answer


@dataclass(eq=False)
class Conversation:
    """What a server keeps: the ids of all turns."""

    id: str
    owner: Owner
    ids: list[int] = field(default_factory=list)


class World:
    """Owners, conversations, a pool of blocks and a clock. Every rule of a block's life is looked at in every step."""

    def __init__(
        self,
        *,
        num_blocks: int = 12,
        max_context: int = 10_000,
        owners: tuple[Owner, ...] = (Owner("ann", "ann"), Owner("ben", "ben")),
        ahead: bool = False,
        **knobs: float,
    ) -> None:
        config = EngineConfig(model=Path("none"), **{"max_batch_tokens": 32, "session_ttl": 100.0, **knobs})
        self.scheduler = Scheduler(config, num_blocks=num_blocks, max_context=max_context, kv_fingerprint=KV)
        self.owners = owners
        self.ahead = ahead  # whether the machine computes what a batch foresees before that batch is updated
        self.now = 0.0
        self.slots: list[list[int | None]] = [[None] * BLOCK_SIZE for _ in range(num_blocks)]
        self.conversations: dict[str, Conversation] = {}
        self.live: dict[int, Sequence] = {}
        self.ended: dict[int, Ended] = {}
        self.of: dict[int, Conversation] = {}  # the conversation that a sequence writes, by sequence id
        self.publisher: dict[bytes, Conversation | None] = {}  # by key
        self.facts: list[object] = []
        self.steps = 0
        self.counts: Counter[str] = Counter()
        self.breaks: set[int] = set()  # sequence ids whose next row fails
        self._begun: Batch | None = None
        self._next_id = self._opened = 0
        self._kv: dict[int, list[int]] = {}  # by sequence id
        self._links: dict[int, list[Link]] = {}

    # --- what people do ---

    def open(self, owner: Owner, *ids: int) -> Conversation:
        self._opened += 1
        conversation = self.conversations[f"c{self._opened}"] = Conversation(f"c{self._opened}", owner, list(ids))
        return conversation

    def send(self, conversation: Conversation, *more: int, **options: object) -> Sequence:
        """The next turn: all ids so far and `more`."""
        conversation.ids = [*conversation.ids, *more]
        return self.submit(conversation.ids, conversation.owner, conversation.id, conversation=conversation, **options)

    def submit(
        self,
        ids: list[int],
        owner: Owner,
        session_id: str | None = None,
        *,
        max_tokens: int = 8,
        ignore_end: bool = True,
        conversation: Conversation | None = None,
    ) -> Sequence:
        self._next_id += 1
        sequence = Sequence(
            id=self._next_id,
            owner=owner,
            ids=list(ids),
            num_prompt=len(ids),
            params=SamplingParams(temperature=0),
            seed=0,
            max_tokens=max_tokens,
            stop_ids=frozenset() if ignore_end else frozenset({END}),
            session_id=session_id,
        )
        self.scheduler.add(sequence, self.now)
        self.live[sequence.id] = sequence
        if conversation:
            self.of[sequence.id] = conversation
        return sequence

    def cancel(self, sequence_id: int, keep: int | None = None) -> None:
        ended = self.scheduler.cancel(sequence_id, keep)
        self._end(ended)
        sequence, conversation = self.ended[sequence_id].sequence, self.of.get(sequence_id)
        if keep is not None:
            assert not ended or sequence.num_generated <= keep
            is_last = conversation and conversation.ids == sequence.ids
            del sequence.ids[sequence.num_prompt + keep :]
            if conversation and is_last:
                conversation.ids = list(sequence.ids)
        self._check_sessions()

    def delete(self, conversation: Conversation) -> None:
        """Afterwards nothing of it can be found, unless somebody else holds it."""
        for ended in self.scheduler.close_session(conversation.id):
            self._end(ended)
        self.conversations.pop(conversation.id, None)
        pool = self.scheduler.pool
        for key in [key for key, publisher in self.publisher.items() if publisher is conversation]:
            assert not pool.is_published(key) or pool._counts[pool._index[key]], "a deleted prefix is still cached"
            del self.publisher[key]
        self.scheduler.check_integrity()

    def disable(self, owner: Owner) -> None:
        """The account lost its rights: all that it runs ends, all that it kept warm goes."""
        for sequence in [s for s in self.live.values() if s.owner == owner]:
            self.cancel(sequence.id)
        for conversation in [c for c in self.conversations.values() if c.owner == owner]:
            self.delete(conversation)

    # --- what the machine does ---

    def step(self) -> list[object]:
        """Schedule, run, update; and what has to hold."""
        oldest = self._oldest_running()
        batch = self.scheduler.schedule(self.now)
        self._check_batch(batch, oldest)
        drawn, new = self._run(batch), self._new_keys(batch)
        facts = self.scheduler.update(batch, drawn, self.now) if batch.rows else []
        self.publisher.update((key, by) for key, by in new.items() if self.scheduler.pool.is_published(key))
        self.steps += 1
        self.facts += facts
        for fact in facts:
            self._check_fact(fact)
        self._check_sessions()
        return facts

    def finish(self, most: int = 100_000) -> None:
        """Steps until nobody runs or waits: everybody gets there."""
        end = self.steps + most
        while self.scheduler.has_work:
            self.step()
            assert self.steps < end, f"{len(self.live)} sequences do not get done"
        assert not self.live

    def _run(self, batch: Batch) -> list[int | Broken | None]:
        if batch is not self._begun:
            self._write(batch, {})
        self._begun = None
        drawn = [
            None if row.sequence.status is Status.FINISHED
            else self._draw(row.sequence, row.start + row.count, row.sample) for row in batch.rows
        ]  # fmt: skip
        self._begun = batch.foresee() if self.ahead and batch.rows else None
        if self._begun:
            self.counts["foreseen"] += 1
            self._write(self._begun, {row.sequence.id: id for row, id in zip(batch.rows, drawn, strict=True)})
        return drawn

    def _write(self, batch: Batch, drawn: dict[int, int | Broken | None]) -> None:
        """drawn: the ids that are not yet among a sequence's own, by sequence id; of a broken one, any."""
        pool = self.scheduler.pool
        for source, target in batch.copies:
            assert pool.is_writable(target), "copied to a block that others read"
            self.slots[target] = list(self.slots[source])
        written: set[tuple[int, int]] = set()
        for row in batch.rows:
            sequence, kv = row.sequence, self._kv_of(row.sequence)
            if sequence.id in drawn:
                kv = [*kv, kv_after(kv[-1], id) if isinstance(id := drawn[sequence.id], int) else 0]
            for position in range(row.start, row.start + row.count):
                block, slot = sequence.block_table[position // BLOCK_SIZE], position % BLOCK_SIZE
                assert pool.is_writable(block), "wrote to a block that is shared or published"
                assert (block, slot) not in written, "two rows wrote to one slot"
                written.add((block, slot))
                self.slots[block][slot] = kv[position]

    def _draw(self, sequence: Sequence, length: int, sample: bool) -> int | Broken | None:
        if sequence.id in self.breaks:
            self.breaks.discard(sequence.id)
            for block in sequence.block_table:  # what a broken row left behind must never be read
                if self.scheduler.pool.is_writable(block):
                    self.slots[block] = [None] * BLOCK_SIZE
            return Broken("not a number")
        slots = [kv for block in sequence.block_table for kv in self.slots[block]][:length]
        assert slots == self._kv_of(sequence)[:length], "attention read what is not its own prefix"
        return next_id(tuple(slots)) if sample else None

    def _kv_of(self, sequence: Sequence) -> list[int]:
        kv = self._kv.setdefault(sequence.id, [])
        if len(kv) < len(sequence.ids):
            last = kv[-1] if kv else kv_before(sequence.owner.cache_root)
            for token in sequence.ids[len(kv) :]:
                kv.append(last := kv_after(last, token))
        return kv

    def _new_keys(self, batch: Batch) -> dict[bytes, Conversation | None]:
        """What this step may publish, and for whom."""
        new: dict[bytes, Conversation | None] = {}
        for row in batch.rows:
            if row.sequence.status is Status.FINISHED:
                continue
            links = self._links.setdefault(row.sequence.id, [])
            extend(links, row.sequence.ids, (KV, row.sequence.owner.cache_root))
            for link in links[row.start // BLOCK_SIZE : (row.start + row.count) // BLOCK_SIZE]:
                if not self.scheduler.pool.is_published(link.key):
                    new.setdefault(link.key, self.of.get(row.sequence.id))
        return new

    # --- what has to hold ---

    def _oldest_running(self) -> Sequence | None:
        return min((s for s in self.live.values() if s.status is Status.RUNNING), key=lambda s: s.id, default=None)

    def _check_batch(self, batch: Batch, oldest: Sequence | None) -> None:
        if self.scheduler.has_work:
            assert batch.rows, "there is work and nobody advances"
        assert batch.tokens <= self.scheduler._budget
        sequences = [row.sequence for row in batch.rows]
        assert len(set(sequences)) == len(sequences)
        for row in batch.rows:
            sequence = row.sequence
            if batch is self._begun and sequence.status is Status.FINISHED:
                self.counts["in vain"] += 1
                continue
            assert sequence.status is Status.RUNNING
            assert row.start == sequence.num_computed
            assert row.count > 0
            assert row.sample == (row.start + row.count == len(sequence.ids))
        if oldest:
            assert oldest.status is Status.RUNNING, "the oldest running sequence was preempted"
            assert self._oldest_running() in sequences, "the oldest running sequence does not advance"
        for sequence in self.live.values():
            if sequence.status is Status.WAITING:
                assert not sequence.block_table, "a waiting sequence holds blocks"
            elif sequence.num_uncomputed == 1:
                assert sequence in sequences, "a decoding sequence got no token"

    def _check_sessions(self) -> None:
        """Everything adds up, and a session holds a beginning of what was kept of its last turn."""
        self.scheduler.check_integrity()
        for session in self.scheduler.sessions._all.values():
            if session.last and session.last[0] in self.ended:
                ids = self.ended[session.last[0]].sequence.ids
                assert session.ids == ids[: len(session.ids)], "a session holds what was not kept"

    def _check_fact(self, fact: object) -> None:
        self.counts[type(fact).__name__] += 1
        if isinstance(fact, Admitted):
            assert 0 <= fact.cached < fact.sequence.num_prompt
            self.counts["cached"] += fact.cached
        if isinstance(fact, Appended):
            assert fact.token == fact.sequence.ids[-1] or fact.sequence.status is Status.FINISHED
        if isinstance(fact, Ended):
            self._end(fact)

    def _end(self, ended: Ended | None) -> None:
        if ended is None:
            return
        sequence = ended.sequence
        assert sequence.id not in self.ended, "ended twice"
        assert not sequence.block_table
        del self.live[sequence.id]
        self.ended[sequence.id] = ended
        self.counts[ended.reason] += 1
        answer = sequence.ids[sequence.num_prompt :]
        root = sequence.owner.cache_root
        prompt = sequence.ids[: sequence.num_prompt]
        assert answer == solo(root, prompt, len(answer)), "the answer is not what it is alone"
        conversation = self.of.get(sequence.id)
        if conversation and conversation.ids == prompt:
            conversation.ids = list(sequence.ids)
        self._kv.pop(sequence.id, None)
        self._links.pop(sequence.id, None)
