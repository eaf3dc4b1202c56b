"""Load: who asks what, and when: users who each hold one conversation. It sends nothing.

Every user sends the whole history each turn, as a chat page does; all begin with the same system prompt.
"""
import random
from collections.abc import Iterator
from dataclasses import dataclass

SYSTEM = "You are an expert distributed systems architect. "
QUESTIONS = (
    "Compare a queue and a log for job number {user}.",
    "Which of the two would you start with, and why?",
    "What breaks first when the load doubles?",
    "Say it again in two sentences.",
    "Give me three questions that I should ask my team.",
    "Write a short title for this talk.",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    users: int = 16
    turns: int = 3
    max_tokens: int = 48
    think_s: float = 0.0  # between an answer's end and the next question
    system: str = SYSTEM
    system_repeat: int = 20
    arrivals: float | None = None  # users a second, at random (Poisson); None: all at once
    ignore_eos: bool = False  # every answer has max_tokens tokens, where the server allows it

    @property
    def answers(self) -> int:
        return self.users * self.turns

    def opening(self, salt: str) -> str:
        """The system prompt. `salt` stands first, so that what a server computed for an earlier run is of no use."""
        return f"[{salt}] {self.system * self.system_repeat}".strip()

    def question(self, user: int, turn: int) -> str:
        """`turn` counts from 0."""
        return QUESTIONS[turn % len(QUESTIONS)].format(user=user)

    def arrival_s(self, seed: int = 0) -> Iterator[float]:
        """When each user begins, seconds after the first. The same every time, so that two servers get the same."""
        chance, now = random.Random(seed), 0.0
        for _ in range(self.users):
            yield now
            now += chance.expovariate(self.arrivals) if self.arrivals else 0.0
