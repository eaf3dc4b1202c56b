"""The life of a KV block at random: the real Scheduler over a store that knows which prefix each slot was computed for.

The "model" is a function of the exact prefix, read through the block table. Foreign, stale or overwritten KV gives
another token, and is caught before that. `python tests/engine/policy/block_life.py --runs 300 --steps 1200`
"""
import argparse
import random
import time
import zlib
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test

from hamdam.engine.chat import Owner
from hamdam.engine.config import BLOCK_SIZE, EngineConfig
from hamdam.engine.errors import PromptTooLong
from hamdam.engine.policy.batch import Batch, Broken
from hamdam.engine.policy.chain import Link, extend
from hamdam.engine.policy.progress import Appended, Ended, Started
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
        **knobs: float,
    ) -> None:
        config = EngineConfig(model=Path("none"), **{"max_batch_tokens": 32, "session_ttl": 100.0, **knobs})
        self.scheduler = Scheduler(config, num_blocks=num_blocks, max_context=max_context, kv_fingerprint=KV)
        self.owners = owners
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
        self._end(self.scheduler.cancel(sequence_id, keep))
        sequence, conversation = self.ended[sequence_id].sequence, self.of.get(sequence_id)
        if keep is not None:
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
            assert not pool.is_published(key) or pool.is_held(pool._index[key]), "a deleted prefix is still cached"
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
        pool = self.scheduler.pool
        for source, target in batch.copies:
            assert pool.is_writable(target), "copied to a block that others read"
            self.slots[target] = list(self.slots[source])
        written: set[tuple[int, int]] = set()
        for row in batch.rows:
            sequence, kv = row.sequence, self._kv_of(row.sequence)
            for position in range(row.start, row.start + row.count):
                block, slot = sequence.block_table[position // BLOCK_SIZE], position % BLOCK_SIZE
                assert pool.is_writable(block), "wrote to a block that is shared or published"
                assert (block, slot) not in written, "two rows wrote to one slot"
                written.add((block, slot))
                self.slots[block][slot] = kv[position]
        return [self._draw(row.sequence, row.start + row.count, row.sample) for row in batch.rows]

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
        if isinstance(fact, Started):
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


OWNERS = (
    Owner("ann", "ann"),
    Owner("ben", "team", 6, 6),
    Owner("cat", "team", None, None),
    Owner("service", "service", None, None),
)
SYSTEM_PROMPTS = ([1] * 37, [2] * 16 + [3] * 16, [])


class Life:
    """One random life of a World; everything follows from the seed. `chance` picks what happens next."""

    def __init__(self, chance: random.Random) -> None:
        self.chance = chance
        self.world = World(
            num_blocks=chance.choice((4, 8, 16, 32, 64)),
            owners=OWNERS,
            max_batch_tokens=chance.choice((1, 2, 8, 24, 64)),
            max_running=chance.choice((1, 3, 16)),
            session_ttl=chance.choice((5.0, 50.0)),
            session_quota=chance.choice((0.1, 0.5, 1.0)),
        )

    def run(self, steps: int) -> World:
        deeds = {
            self.send: 14, self.edit: 4, self.regenerate: 3, self.call: 4, self.intrude: 2, self.cancel: 2, self.cut: 2,
            self.delete: 1, self.disable: 0.1, self.pause: 1, self.break_one: 0.5, self.step: 80,
        }  # fmt: skip
        names, weights = list(deeds), list(deeds.values())
        while self.world.steps < steps:
            self.chance.choices(names, weights)[0]()
        self.end()
        return self.world

    def end(self) -> None:
        """Everybody gets done; when all that can be deleted is, nobody holds anything."""
        self.world.finish()
        for owner in OWNERS:
            self.world.disable(owner)
        assert len(self.world.scheduler.sessions) == 0
        assert self.world.scheduler.pool.num_allocatable == self.world.scheduler.pool.num_blocks

    def send(self) -> None:
        conversation = self._some_conversation(new=0.4)
        self._ask(conversation, conversation.ids)

    def edit(self) -> None:
        """An earlier question is changed: a branch."""
        conversation = self._some_conversation()
        self._ask(conversation, conversation.ids[: self.chance.randint(0, len(conversation.ids))])

    def regenerate(self) -> None:
        conversation = self._some_conversation()
        mine = [s for s in self.world.live.values() if self.world.of.get(s.id) is conversation]
        ids = mine[0].ids[: mine[0].num_prompt] if mine else conversation.ids
        self._ask(conversation, ids, more=0)

    def call(self) -> None:
        """A plain API call: no session."""
        self._submit(self.chance.choice(SYSTEM_PROMPTS) + self._words(), self.chance.choice(OWNERS), None)

    def intrude(self) -> None:
        """Another owner names somebody's session and his ids."""
        conversation, owner = self._some_conversation(), self.chance.choice(OWNERS)
        if conversation.id in self.world.scheduler.sessions and owner != conversation.owner:
            self._submit(conversation.ids + self._words(), owner, conversation.id)

    def cancel(self) -> None:
        if self.world.live:
            sequence = self.world.live[self.chance.choice(list(self.world.live))]
            self.world.cancel(sequence.id, self.chance.choice((None, self.chance.randint(0, sequence.num_generated))))

    def cut(self) -> None:
        """The stop string was complete, but the sequence ended before that was told."""
        if self.world.ended:
            sequence = self.world.ended[self.chance.choice(list(self.world.ended)[-4:])].sequence
            self.world.cancel(sequence.id, self.chance.randint(0, sequence.num_generated))

    def delete(self) -> None:
        self.world.delete(self._some_conversation())

    def disable(self) -> None:
        self.world.disable(self.chance.choice(OWNERS))

    def pause(self) -> None:
        self.world.now += self.chance.choice((1.0, 10.0, 100.0))

    def break_one(self) -> None:
        if self.world.live:
            self.world.breaks.add(self.chance.choice(list(self.world.live)))

    def step(self) -> None:
        self.world.now += 0.1
        self.world.step()

    def _some_conversation(self, new: float = 0.0) -> Conversation:
        if not self.world.conversations or self.chance.random() < new:
            return self.world.open(self.chance.choice(OWNERS), *self.chance.choice(SYSTEM_PROMPTS))
        return self.world.conversations[self.chance.choice(list(self.world.conversations))]

    def _words(self) -> list[int]:
        return [self.chance.randrange(VOCABULARY) for _ in range(self.chance.choice((1, 2, 15, 16, 17, 40)))]

    def _ask(self, conversation: Conversation, ids: list[int], more: int = 1) -> None:
        ids = ids + self._words() * more
        if ids and self._submit(ids, conversation.owner, conversation.id, conversation):
            conversation.ids = ids

    def _submit(
        self, ids: list[int], owner: Owner, session_id: str | None, conversation: Conversation | None = None
    ) -> bool:
        """Whether it was taken. A refused turn changes nothing."""
        if len(self.world.live) >= 12:
            return False
        options = {"max_tokens": self.chance.choice((1, 5, 20, 60, 150)), "ignore_end": self.chance.random() < 0.7}
        before = self.world.scheduler.stats()
        try:
            self.world.submit(ids, owner, session_id, conversation=conversation, **options)
        except PromptTooLong:
            assert len(ids) > self.world.scheduler.max_prompt
            assert self.world.scheduler.stats() == before
            if conversation:
                del conversation.ids[16:]
            return False
        return True


Chance = st.randoms(use_true_random=False)


class LifeMachine(RuleBasedStateMachine):
    """The same deeds, chosen by hypothesis, which looks for a short life that breaks a rule."""

    life: Life

    @initialize(chance=Chance)
    def begin(self, chance: random.Random) -> None:
        self.life = Life(chance)

    @rule(chance=Chance, deed=st.sampled_from(("send", "edit", "regenerate", "call", "intrude")))
    def ask(self, chance: random.Random, deed: str) -> None:
        self._do(chance, deed)

    @rule(chance=Chance, deed=st.sampled_from(("cancel", "cut", "delete", "disable", "pause", "break_one")))
    def disturb(self, chance: random.Random, deed: str) -> None:
        self._do(chance, deed)

    @rule(chance=Chance, times=st.integers(1, 40))
    def step(self, chance: random.Random, times: int) -> None:
        for _ in range(times):
            self._do(chance, "step")

    def _do(self, chance: random.Random, deed: str) -> None:
        self.life.chance = chance
        getattr(self.life, deed)()

    def teardown(self) -> None:
        if hasattr(self, "life"):
            self.life.end()


def search(examples: int, steps: int) -> None:
    run_state_machine_as_test(
        LifeMachine,
        settings=settings(
            max_examples=examples,
            stateful_step_count=steps,
            derandomize=True,
            deadline=None,
            database=None,
            suppress_health_check=list(HealthCheck),
        ),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=300)
    parser.add_argument("--steps", type=int, default=1200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--examples", type=int, default=200, help="lives of up to 50 deeds that hypothesis chooses")
    args = parser.parse_args()
    began, total = time.monotonic(), Counter[str]()
    for seed in range(args.seed, args.seed + args.runs):
        try:
            world = Life(random.Random(seed)).run(args.steps)
        except BaseException:
            print(f"seed {seed}")
            raise
        total += world.counts + Counter(steps=world.steps, preemptions=world.scheduler.stats().preemptions)
    figures = ", ".join(f"{count:,} {what}" for what, count in sorted(total.items()))
    print(f"{args.runs} runs in {time.monotonic() - began:.0f} s: {figures}")
    began = time.monotonic()
    if args.examples:
        search(args.examples, 50)
    print(f"{args.examples} lives chosen by hypothesis in {time.monotonic() - began:.0f} s")


if __name__ == "__main__":
    main()
