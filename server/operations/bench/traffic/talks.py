"""Talks: a load sent to a door, every user a task of its own. It notes what happened and sums up nothing."""
import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import httpx

from .door import Door, DoorError, Streamed, stream
from .load import Load

PATH = "/v1/chat/completions"


@dataclass(frozen=True, slots=True)
class Answered:
    turn: int  # from 1
    streamed: Streamed


@dataclass(slots=True)
class Talks:
    """One run. An interrupt leaves here what was answered until then; `seconds` counts on until `ended` is set."""

    door: Door
    load: Load
    salt: str
    begun: float = 0.0
    ended: float | None = None
    answered: list[Answered] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)

    @property
    def seconds(self) -> float:
        return (time.perf_counter() if self.ended is None else self.ended) - self.begun

    async def run(self, progress: Callable[[int], None]) -> None:
        """`progress` is told how many answers there are, after each."""
        async with self.door.client(self.load.users + 4) as client:
            self.begun = time.perf_counter()
            try:
                async with asyncio.TaskGroup() as users:
                    for number, arrival in enumerate(self.load.arrival_s()):
                        users.create_task(self._user(client, number, arrival, progress))
            finally:
                self.ended = time.perf_counter()

    async def _user(
        self, client: httpx.AsyncClient, number: int, arrival: float, progress: Callable[[int], None]
    ) -> None:
        """Asks, thinks, asks on. Whose question failed goes home: the rest of the talk would be another load."""
        await asyncio.sleep(arrival)
        messages = [{"role": "system", "content": self.load.opening(self.salt)}]
        for turn in range(self.load.turns):
            if turn and self.load.think_s:
                await asyncio.sleep(self.load.think_s)
            messages.append({"role": "user", "content": self.load.question(number, turn)})
            try:
                answer = await stream(client, PATH, self._body(messages))
                self._check(answer)
            except DoorError as error:
                self.errors.append(str(error))
                return
            self.answered.append(Answered(turn + 1, answer))
            progress(len(self.answered))
            messages.append({"role": "assistant", "content": answer.text})

    def _body(self, messages: list[dict[str, str]]) -> dict[str, Any]:
        body = {"model": self.door.model, "messages": messages, "max_tokens": self.load.max_tokens, "temperature": 0}
        return body | {"ignore_eos": True} if self.load.ignore_eos else body

    def _check(self, answer: Streamed) -> None:
        """Without its end token an answer has a known length; another one means that the two sides differ."""
        if self.load.ignore_eos and answer.counted and answer.tokens != self.load.max_tokens:
            raise DoorError(f"{self.load.max_tokens} tokens were asked for, and {answer.tokens} came")
