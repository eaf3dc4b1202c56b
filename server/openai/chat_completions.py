"""POST /v1/chat/completions: OpenAI's shape straight over Engine.submit. It keeps nothing; conversations are chat/.

A client that goes away takes its answers with it: one task writes, one waits for the disconnect, and whichever is first
ends both. (The body was read to its end before, so nobody else waits for what comes in.)
"""
import asyncio
import hashlib
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.types import Receive, Scope, Send

from hamdam.engine import Engine, Event, Finished, Generation, SamplingParams, Text

from ..chat.owner import owner_of
from ..chat.refusals import engine_refusals
from ..errors import ApiError
from ..people.authenticator import Authenticator
from ..people.identity import Identity, Unauthorized
from ..people.permissions import Act, require
from ..settings import Limits
from ..storage.ids import new_id
from .body import Asked, read_body

READ_HERE = 64 << 10  # bytes of a body that are read on the event loop; more takes a thread


class ChatCompletions:
    def __init__(self, engine: Engine, authenticator: Authenticator, limits: Limits) -> None:
        self.engine, self.authenticator, self.limits = engine, authenticator, limits

    async def create(self, request: Request) -> "Answer":
        identity = await self.authenticator.identify(request)
        require(identity, Act.CHAT)
        body = await request.body()
        if len(body) <= READ_HERE:
            asked = read_body(body, self.engine.model_name)
        else:
            asked = await asyncio.to_thread(read_body, body, self.engine.model_name)
        choices = await self._submit(asked, identity)
        for choice in choices:
            choice.start()
        return Answer(choices, asked, self.engine.model_name, identity, self.authenticator, self.limits.slow_consumer_s)

    async def _submit(self, asked: Asked, identity: Identity) -> list[Generation]:
        """A generation for each choice: all of them, or none."""
        owner = owner_of(identity, self.limits, asked.user)
        choices: list[Generation] = []
        try:
            for index in range(asked.params.n):
                params = replace(asked.params, n=1, seed=seed_of(asked.params, index))
                with engine_refusals():
                    choices.append(await self.engine.submit(asked.chat, params, owner=owner, session_id=None))
        except BaseException:
            for choice in choices:
                choice.cancel()
            raise
        return choices


def seed_of(params: SamplingParams, index: int) -> int | None:
    """The first choice is what n = 1 would give; the others differ from it and are the same every time."""
    if params.seed is None or index == 0:
        return params.seed
    return int.from_bytes(hashlib.sha256(f"{params.seed} {index}".encode()).digest()[:7], "big")


class Answer:
    """The response, as an ASGI app: whole or streamed. Its generations run already, and never longer than it does."""

    def __init__(
        self,
        generations: Sequence[Generation],
        asked: Asked,
        model: str,
        identity: Identity,
        authenticator: Authenticator,
        slow_s: float,
    ) -> None:
        self.generations, self.asked, self.slow_s = generations, asked, slow_s
        self.identity, self.authenticator = identity, authenticator
        self.head = {"id": new_id("chatcmpl"), "created": int(time.time()), "model": model}
        self.right_lost = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        unwatch = self.authenticator.watch(self.identity, self._lose)
        write = self._stream if self.asked.stream else self._whole
        tasks = [asyncio.create_task(write(scope, receive, send)), asyncio.create_task(_disconnected(receive))]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            unwatch()
            self._cancel()
            for task in tasks:
                task.cancel()
            results = await asyncio.gather(*tasks, return_exceptions=True)
        for result in results:
            if isinstance(result, Exception) and not isinstance(result, TimeoutError):
                raise result

    def _lose(self, _code: int) -> None:
        self.right_lost = True
        self._cancel()

    def _cancel(self) -> None:
        for generation in self.generations:
            generation.cancel()

    async def _whole(self, scope: Scope, receive: Receive, send: Send) -> None:
        texts: list[list[str]] = [[] for _ in self.generations]
        ends: dict[int, Finished] = {}
        async with _merged(self.generations) as events:
            async for index, event in events:
                if isinstance(event, Text):
                    texts[index].append(event.text)
                elif isinstance(event, Finished):
                    if error := self._fault(event):
                        await error.response()(scope, receive, send)
                        return
                    ends[index] = event
        body = {
            "object": "chat.completion",
            **self.head,
            "choices": [
                {
                    "index": index,
                    "message": {"role": "assistant", "content": "".join(texts[index]), "refusal": None},
                    "logprobs": None,
                    "finish_reason": finished.reason,
                    "stop_reason": self._stop(finished),
                }
                for index, finished in sorted(ends.items())
            ],
            "usage": self._usage(),
        }
        await _start(send, "application/json")
        await _send(send, msgspec.json.encode(body), more=False)

    async def _stream(self, _scope: Scope, _receive: Receive, send: Send) -> None:
        async def say(frame: dict[str, Any]) -> None:
            async with asyncio.timeout(self.slow_s):  # a reader that stands still holds up nothing of ours
                await _send(send, b"data: " + msgspec.json.encode(frame) + b"\n\n")

        await _start(send, "text/event-stream; charset=utf-8")
        for index in range(len(self.generations)):
            await say(self._chunk(index, {"role": "assistant", "content": ""}))
        async with _merged(self.generations) as events:
            async for index, event in events:
                if isinstance(event, Text) and event.text:
                    await say(self._chunk(index, {"content": event.text}))
                elif isinstance(event, Finished):
                    if error := self._fault(event):
                        await say({"error": error.body()})
                        await _send(send, b"", more=False)
                        return
                    await say(self._chunk(index, {}, event))
        if self.asked.include_usage:
            await say({"object": "chat.completion.chunk", **self.head, "choices": [], "usage": self._usage()})
        await _send(send, b"data: [DONE]\n\n", more=False)

    def _chunk(self, index: int, delta: dict[str, str], finished: Finished | None = None) -> dict[str, Any]:
        reason = finished.reason if finished else None
        choice = {"index": index, "delta": delta, "logprobs": None, "finish_reason": reason}
        if finished:
            choice["stop_reason"] = self._stop(finished)
        chunk = {"object": "chat.completion.chunk", **self.head, "choices": [choice]}
        return chunk | {"usage": None} if self.asked.include_usage else chunk

    def _usage(self) -> dict[str, Any]:
        """The prompt counts once, however many answers it got."""
        usages = [generation.usage for generation in self.generations]
        prompt, completion = usages[0].input_tokens, sum(usage.output_tokens for usage in usages)
        return {
            "prompt_tokens": prompt,
            "completion_tokens": completion,
            "total_tokens": prompt + completion,
            "prompt_tokens_details": {"cached_tokens": usages[0].cached_tokens},
        }

    def _stop(self, finished: Finished) -> str | int | None:
        """What the client asked to stop at; the model's own end is none of that."""
        stop = finished.stop
        return stop if isinstance(stop, str) or stop in self.asked.params.stop_token_ids else None

    def _fault(self, finished: Finished) -> ApiError | None:
        if finished.reason in ("stop", "length"):
            return None
        if self.right_lost:
            return Unauthorized("This key or sign-in is no longer valid.")
        if finished.reason == "stopped":
            return ApiError("engine_unavailable", "The engine stopped.")
        return ApiError("internal", f"The answer failed: {finished.error or finished.reason}.")


@asynccontextmanager
async def _merged(generations: Sequence[Generation]) -> AsyncIterator[AsyncIterator[tuple[int, Event]]]:
    """The events of all, as they come, until each has ended."""
    waiting: asyncio.Queue[tuple[int, Event]] = asyncio.Queue(64)

    async def forward(index: int, generation: Generation) -> None:
        async for event in generation:
            await waiting.put((index, event))

    async def events() -> AsyncIterator[tuple[int, Event]]:
        left = len(generations)
        while left:
            index, event = await waiting.get()
            left -= isinstance(event, Finished)
            yield index, event

    tasks = [asyncio.create_task(forward(index, generation)) for index, generation in enumerate(generations)]
    try:
        yield events()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _start(send: Send, kind: str) -> None:
    headers = [(b"content-type", kind.encode()), (b"cache-control", b"no-store"), (b"x-accel-buffering", b"no")]
    await send({"type": "http.response.start", "status": 200, "headers": headers})


async def _send(send: Send, body: bytes, *, more: bool = True) -> None:
    await send({"type": "http.response.body", "body": body, "more_body": more})
