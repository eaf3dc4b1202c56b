"""The life of a KV block at random: sends, edits, deletions, cancels, pauses and faults in a World, from a seed.

`python tests/engine/policy/block_life.py --runs 300 --steps 1200` is the long one, by hand.
"""
import argparse
import random
import time
from collections import Counter

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test
from policy_world import VOCABULARY, Conversation, World

from hamdam.engine.chat import Owner
from hamdam.engine.errors import PromptTooLong

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
            ahead=chance.random() < 0.5,
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
