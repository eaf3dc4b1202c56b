"""CompletionsPeer: workloads of the engine's bench on another engine, through its /v1/completions. HTTP is in its time.

Prompts are ids of our vocabulary (the same weights are assumed), no id ends an answer, and the requests of one workload
run at once. Decode is what streams while all of them are being answered. Prompts are sent once before they count, so
that a peer with a prefix cache finds them, as ours does.
"""
import asyncio
import random
from typing import Any

from hamdam.engine import BenchError, Repeat, Workload

from .door import Door, DoorError, Streamed, stream

PATH = "/v1/completions"
SPARE = 16  # tokens more than are counted: not all answers begin and end together


class CompletionsPeer:
    """Implements the engine bench's Side."""

    def __init__(self, door: Door, vocab_size: int, *, temperature: float = 0.0, seed: int = 1) -> None:
        self.door, self.description = door, door.name
        self._vocab_size, self._temperature, self._random = vocab_size, temperature, random.Random(seed)
        self._prompts: dict[int, list[list[int]]] = {}

    def why_not(self, workload: Workload) -> str | None:
        return "over HTTP nobody can tell what is in a step" if workload.kind == "mixed" else None

    def repeat(self, workload: Workload) -> Repeat:
        """Raises BenchError."""
        try:
            return asyncio.run(self._prefill(workload) if workload.kind == "prefill" else self._decode(workload))
        except* DoorError as errors:
            raise BenchError(f"{self.door.url}: {errors.exceptions[0]}") from errors

    async def _prefill(self, workload: Workload) -> Repeat:
        (answer,) = await self._ask([self._ids(workload.prompt)], 1)
        return Repeat(seconds=answer.pieces[0] - answer.asked, computed=workload.prompt, sampled=1)

    async def _decode(self, workload: Workload) -> Repeat:
        prompts = self._prompts.setdefault(workload.context, [])
        if new := [self._ids(workload.context) for _ in range(workload.batch - len(prompts))]:
            await self._ask(new, 1)
            prompts += new
        answers = await self._ask(prompts[: workload.batch], workload.steps + SPARE)
        begun = max(answer.pieces[0] for answer in answers)
        ended = min(answer.pieces[-1] for answer in answers)
        if ended <= begun:
            raise BenchError(f"{self.door.url} never answered {workload.batch} at once: its own limit may be lower")
        tokens = sum(_tokens_between(answer, begun, ended) for answer in answers)
        return Repeat(seconds=ended - begun, computed=round(tokens), sampled=round(tokens))

    async def _ask(self, prompts: list[list[int]], max_tokens: int) -> list[Streamed]:
        async with self.door.client(len(prompts)) as client, asyncio.TaskGroup() as together:
            tasks = [together.create_task(stream(client, PATH, self._body(ids, max_tokens))) for ids in prompts]
        return [task.result() for task in tasks]

    def _body(self, ids: list[int], max_tokens: int) -> dict[str, Any]:
        return {"model": self.door.model, "prompt": ids, "max_tokens": max_tokens, "ignore_eos": True,
                "temperature": self._temperature}

    def _ids(self, count: int) -> list[int]:
        return [self._random.randrange(self._vocab_size) for _ in range(count)]


def _tokens_between(answer: Streamed, begun: float, ended: float) -> float:
    """Tokens that came in (begun, ended]. A piece may be more than one: half characters are held back."""
    pieces = sum(begun < piece <= ended for piece in answer.pieces)
    return pieces * answer.tokens / len(answer.pieces)
