"""Generation: one answer as the event loop sees it, from its place in the queue to its end. It holds no socket.

Everything here happens on the event loop. What the engine's thread samples arrives as facts; text, stop strings and
cancellation are decided here, and the token at which they fall is the last that counts: ids, text and usage end there.
"""
import asyncio
import secrets
import time
from collections import deque
from collections.abc import AsyncIterator, Callable

from .chat import ToolCall
from .events import (
    Called,
    Event,
    Finished,
    Prefilled,
    PromptLogprobs,
    Queued,
    Reasoning,
    Started,
    Text,
    Timings,
    TokenLogprob,
    Usage,
)
from .policy.batch import Logprobs
from .policy.progress import Admitted, Appended, Computed, Ended, Progress, PromptScored
from .policy.sequence import Sequence
from .text.answer_stream import AnswerStream, Part, Words
from .text.token_log import Spelled, token_logprob


class Generation:
    """`async for event in generation` gives its events; exactly one `Finished` ends it. Made by `Engine.submit`."""

    def __init__(
        self,
        sequence: Sequence,
        answer: AnswerStream,
        spelled: Spelled,
        begin: Callable[["Generation"], None],
        end: Callable[["Generation", int | None], None],
    ) -> None:
        """`begin` hands the sequence to the scheduler; `end` gives its place back, and with a number tells the
        scheduler to stop it, keeping that many generated tokens."""
        self.sequence = sequence
        self._stream, self._spelled = answer, spelled
        self._begin, self._end = begin, end
        self._events: deque[Event] = deque()
        self._woken = asyncio.Event()
        self._prompt: list[TokenLogprob] = []
        self._token_ids: list[int] = []  # of the answer; the end token is counted, not kept
        self._sampled = self._thought = 0  # tokens, in all and of reasoning
        self._cached = self._calls = 0
        self._submitted = time.monotonic()
        self._scheduled = self._first = self._last = 0.0
        self.begun = False
        self.scheduled = False
        self.finished: Finished | None = None

    @property
    def usage(self) -> Usage:
        return Usage(self.sequence.num_prompt, self._cached, self._sampled, self._thought)

    @property
    def token_ids(self) -> tuple[int, ...]:
        return tuple(self._token_ids)

    def start(self) -> None:
        """Gives the sequence to the scheduler: called after the question is safely stored. Idempotent."""
        if not self.begun and not self.finished:
            self.begun = True
            self._begin(self)

    def cancel(self) -> None:
        """Ends it now, in whatever phase it is; the engine follows by its next step. Idempotent."""
        if not self.finished:
            self._emit_parts(self._stream.finish(cut=True))
            self._finish("cancelled", keep=len(self._token_ids))

    async def __aiter__(self) -> AsyncIterator[Event]:
        while True:
            while self._events:
                event = self._events.popleft()
                yield event
                if isinstance(event, Finished):
                    return
            self._woken.clear()
            await self._woken.wait()

    # What the engine tells ------------------------------------------------------------------------------------------

    def take(self, fact: Progress) -> None:
        """One fact about this sequence from the engine's thread; after the end it belongs to nothing."""
        if self.finished:
            return
        match fact:
            case Admitted(cached=cached):
                if not self.scheduled:
                    self.scheduled, self._cached, self._scheduled = True, cached, time.monotonic()
                    self._emit(Started(self.sequence.num_prompt, cached))
            case Computed(done=done, total=total):
                self._emit(Prefilled(done, total))
            case PromptScored(logprobs=logprobs):
                self._score(logprobs)
            case Appended(token=token, logprobs=logprobs):
                self._append(token, logprobs)
            case Ended(reason=reason, stop_id=stop_id, error=error, refused=refused):
                self._emit_parts(self._stream.finish(cut=reason != "stop"))
                self._sampled += stop_id is not None
                if self._stream.matched is not None:  # the last half character completed a stop string
                    self._finish("stop", stop=self._stream.matched)
                else:
                    self._finish(reason, stop=stop_id, error=error, refused=refused)

    def place(self, place: int, eta_ms: float | None) -> None:
        """Where it stands in the queue."""
        if not self.finished and not self.scheduled:
            self._emit(Queued(place, eta_ms))

    def fail(self, why: str) -> None:
        """The engine itself stopped or broke."""
        if not self.finished:
            self._emit_parts(self._stream.finish(cut=True))
            self._finish("stopped", error=why)

    def _score(self, logprobs: Logprobs) -> None:
        token = self.sequence.ids[1 + len(self._prompt)]
        self._prompt.append(token_logprob(self._spelled, token, logprobs))
        if len(self._prompt) == self.sequence.num_prompt - 1:
            self._emit(PromptLogprobs(tuple(self._prompt)))

    def _append(self, token: int, logprobs: Logprobs | None) -> None:
        self._last = time.monotonic()
        self._first = self._first or self._last
        self._sampled += 1
        self._token_ids.append(token)
        thinking = self._stream.reasoning
        parts, matched = self._stream.push(token, logprobs)
        thinking = (thinking or self._stream.reasoning) and all(_is_thought(part) for part in parts)
        self._thought += thinking
        self._emit_parts(parts or [Words("", reasoning=thinking)], (token,))
        if matched is not None or self._stream.called:
            self._finish("stop", stop=matched, keep=len(self._token_ids))

    def _emit_parts(self, parts: list[Part], token_ids: tuple[int, ...] = ()) -> None:
        """The ids that brought them go with the first, and so do the logprobs that are due."""
        logprobs = self._stream.listed()
        if logprobs and not parts:
            parts = [Words("", reasoning=self._stream.reasoning)]
        for part in parts:
            self._emit(self._event(part, token_ids, logprobs))
            token_ids, logprobs = (), ()

    def _event(self, part: Part, token_ids: tuple[int, ...], logprobs: tuple[TokenLogprob, ...]) -> Event:
        if isinstance(part, Words):
            return (Reasoning if part.reasoning else Text)(part.text, token_ids, logprobs)
        self._calls += 1
        call = ToolCall(f"call_{secrets.token_hex(12)}", part.name, part.arguments)
        return Called(self._calls - 1, call, token_ids, logprobs, part.whole)

    def _emit(self, event: Event) -> None:
        self._events.append(event)
        self._woken.set()

    def _finish(
        self, reason: str, *, stop: str | int | None = None, keep: int | None = None, error: str | None = None,
        refused: bool = False,
    ) -> None:
        self.finished = Finished(reason, self.usage, self.token_ids, self._timings(), stop, error, refused)
        self._end(self, keep)
        self._emit(self.finished)

    def _timings(self) -> Timings:
        now = time.monotonic()
        decoding = self._last - self._first
        return Timings(
            queue_ms=((self._scheduled or now) - self._submitted) * 1e3,
            ttft_ms=((self._first or now) - self._submitted) * 1e3,
            total_ms=(now - self._submitted) * 1e3,
            tps=(len(self._token_ids) - 1) / decoding if decoding > 0 else 0.0,
        )


def _is_thought(part: Part) -> bool:
    return isinstance(part, Words) and part.reasoning
