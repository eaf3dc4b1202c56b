"""POST /v1/chat/completions: OpenAI's shape straight over Engine.submit. It keeps nothing; conversations are chat/.

A client that goes away takes its answers with it: one task writes, one waits for the disconnect, and whichever is first
ends both. (The body was read to its end before, so nobody else waits for what comes in.)
"""
import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from typing import Any, TypeVar

import msgspec
from starlette.requests import Request
from starlette.types import Receive, Scope, Send

from hamdam.engine import Called, Engine, Finished, Generation, PromptLogprobs, Reasoning, Text

from ..chat.owner import Owners
from ..chat.refusals import engine_refusals, failure
from ..cutting import cut
from ..errors import ApiError
from ..logprobs import Listed, listed
from ..people.authenticator import Authenticator
from ..people.identity import Identity, Unauthorized
from ..people.permissions import Act, require
from ..settings import Limits
from ..storage.ids import new_id
from .body import Asked, read_body
from .messages import invalid

UNFINISHED: Mapping[str, Any] = {"finish_reason": None}
READ_HERE = 64 << 10  # bytes of a body that are read on the event loop; more takes a thread


class ChatCompletions:
    def __init__(self, engine: Engine, owners: Owners, authenticator: Authenticator, limits: Limits) -> None:
        self.engine, self.owners, self.authenticator, self.limits = engine, owners, authenticator, limits

    async def create(self, request: Request) -> "Answer":
        identity = await self.authenticator.identify(request)
        require(identity, Act.CHAT)
        if request.headers.get("content-encoding", "identity").lower() != "identity":
            raise invalid("Content-Encoding", "A body is read as it comes, not unpacked.")
        body = await request.body()
        if len(body) <= READ_HERE:
            asked = read_body(body, self.engine)
        else:
            asked = await asyncio.to_thread(read_body, body, self.engine)
        choices = await self._submit(asked, identity)
        for choice in choices:
            choice.start()
        return Answer(choices, asked, self.engine.model_name, identity, self.authenticator, self.limits.slow_consumer_s)

    async def _submit(self, asked: Asked, identity: Identity) -> list[Generation]:
        """A generation for each choice: all of them, or none."""
        owner = self.owners.of(identity, asked.user)
        choices: list[Generation] = []
        try:
            for index in range(asked.params.n):
                params = asked.params.choice(index)
                with engine_refusals(names=asked.names):
                    choices.append(await self.engine.submit(asked.chat, params, owner=owner, session_id=None))
        except BaseException:
            for choice in choices:
                choice.cancel()
            raise
        return choices


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
        self.prompt: list[Listed] = []  # of the prompt's tokens from the second one on, where they are asked for
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
            if isinstance(result, TimeoutError) and cut(scope):
                await _disconnected(receive)
            elif isinstance(result, Exception):
                raise result

    def _lose(self, _code: int) -> None:
        self.right_lost = True
        self._cancel()

    def _cancel(self) -> None:
        for generation in self.generations:
            generation.cancel()

    async def _whole(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            choices = await _together(self._choice(index, g) for index, g in enumerate(self.generations))
        except ApiError as error:
            await error.response()(scope, receive, send)
            return
        body = {"object": "chat.completion", **self.head, "choices": choices, "usage": self._usage()}
        if self.asked.params.prompt_logprobs is not None:
            body["prompt_logprobs"] = [None, *self.prompt]
        await _start(send, "application/json")
        await _send(send, msgspec.json.encode(body), more=False)

    async def _choice(self, index: int, generation: Generation) -> dict[str, Any]:
        text: list[str] = []
        thoughts: list[str] = []
        calls: list[Called] = []
        logprobs: list[Listed] = []
        async for event in generation:
            if isinstance(event, Text | Reasoning):
                (text if isinstance(event, Text) else thoughts).append(event.text)
                logprobs += listed(event.logprobs)
            elif isinstance(event, PromptLogprobs):
                self.prompt = listed(event.tokens)
            elif isinstance(event, Called):
                calls.append(event)
                logprobs += listed(event.logprobs)
            elif isinstance(event, Finished):
                return {
                    "index": index,
                    "message": _message("".join(text), "".join(thoughts), calls),
                    "logprobs": _logprobs(logprobs) if self.asked.params.logprobs else None,
                    **self._reasons(event, called=bool(calls)),
                }
        raise RuntimeError("a generation ended without saying so")

    async def _stream(self, _scope: Scope, _receive: Receive, send: Send) -> None:
        async def put(data: bytes, *, more: bool = True) -> None:
            async with asyncio.timeout(self.slow_s):  # a reader that stands still holds up nothing of ours
                await _send(send, data, more=more)

        async def say(frame: dict[str, Any]) -> None:
            await put(b"data: " + msgspec.json.encode(frame) + b"\n\n")

        await _start(send, "text/event-stream; charset=utf-8")
        try:
            await _together(self._speak(index, g, say) for index, g in enumerate(self.generations))
        except ApiError as error:
            await say({"error": error.body()})
            await put(b"", more=False)  # and no [DONE]: what failed must not look finished
            return
        if self.asked.include_usage:
            await say({"object": "chat.completion.chunk", **self.head, "choices": [], "usage": self._usage()})
        await put(b"data: [DONE]\n\n", more=False)

    async def _speak(self, index: int, generation: Generation, say: "Say") -> None:
        await say(self._chunk(index, {"role": "assistant", "content": ""}))
        called = False
        async for event in generation:
            if isinstance(event, Text | Reasoning) and (event.text or event.logprobs):
                name = "content" if isinstance(event, Text) else "reasoning_content"
                await say(self._chunk(index, {name: event.text}, logprobs=listed(event.logprobs)))
            elif isinstance(event, Called):
                called = True
                call = _call(event)
                head = {"index": event.index, **call, "function": call["function"] | {"arguments": ""}}
                rest = {"index": event.index, "function": {"arguments": event.call.arguments}}
                await say(self._chunk(index, {"tool_calls": [head]}, logprobs=listed(event.logprobs)))
                await say(self._chunk(index, {"tool_calls": [rest]}))
            elif isinstance(event, Finished):
                await say(self._chunk(index, {}, self._reasons(event, called=called)))

    def _chunk(
        self,
        index: int,
        delta: dict[str, Any],
        reasons: Mapping[str, Any] = UNFINISHED,
        logprobs: Sequence[Listed] = (),
    ) -> dict[str, Any]:
        choice = {"index": index, "delta": delta, "logprobs": _logprobs(logprobs) if logprobs else None, **reasons}
        chunk = {"object": "chat.completion.chunk", **self.head, "choices": [choice]}
        return chunk | {"usage": None} if self.asked.include_usage else chunk

    def _usage(self) -> dict[str, Any]:
        """The prompt counts once, however many answers it got."""
        usages = [generation.usage for generation in self.generations]
        prompt, completion = usages[0].input_tokens, sum(usage.output_tokens for usage in usages)
        thought = sum(usage.reasoning_tokens for usage in usages)
        details = {"completion_tokens_details": {"reasoning_tokens": thought}} if thought else {}
        return details | {
            "prompt_tokens": prompt,
            "completion_tokens": completion,
            "total_tokens": prompt + completion,
            "prompt_tokens_details": {"cached_tokens": usages[0].cached_tokens},
        }

    def _reasons(self, finished: Finished, *, called: bool) -> dict[str, Any]:
        """Raises ApiError where this is no end but a failure. `stop_reason`: what the client asked to stop at."""
        if finished.reason in ("stop", "length"):
            stop = finished.stop
            asked_for = isinstance(stop, str) or stop in self.asked.params.stop_token_ids
            reason = "tool_calls" if called and finished.reason == "stop" else finished.reason
            return {"finish_reason": reason, "stop_reason": stop if asked_for else None}
        if self.right_lost:
            raise Unauthorized("This key or sign-in is no longer valid.")
        if finished.reason == "stopped":
            raise ApiError("engine_unavailable", "The engine stopped.")
        raise failure(finished)


def _logprobs(content: Sequence[Listed]) -> dict[str, Any]:
    return {"content": content, "refusal": None}


Say = Callable[[dict[str, Any]], Awaitable[None]]
T = TypeVar("T")


async def _together(work: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """All of it, or the first failure, at which the others are dropped."""
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(one) for one in work]
    except ExceptionGroup as failures:
        raise failures.exceptions[0] from None
    return [task.result() for task in tasks]


def _message(text: str, reasoning: str, calls: Sequence[Called]) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": text, "refusal": None}
    if reasoning:
        message["reasoning_content"] = reasoning
    if calls:
        message |= {"content": text or None, "tool_calls": [_call(called) for called in calls]}
    return message


def _call(called: Called) -> dict[str, Any]:
    call = called.call
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _start(send: Send, kind: str) -> None:
    headers = [(b"content-type", kind.encode()), (b"cache-control", b"no-store"), (b"x-accel-buffering", b"no")]
    await send({"type": "http.response.start", "status": 200, "headers": headers})


async def _send(send: Send, body: bytes, *, more: bool = True) -> None:
    await send({"type": "http.response.body", "body": body, "more_body": more})
