"""AnswerStream: an answer's parts as its ids come in: reasoning, text, calls. Ids to text is text_stream.py's."""
from dataclasses import dataclass

from ..events import TokenLogprob
from ..policy.batch import Logprobs
from .call_format import Call
from .reasoning import Splitter
from .text_stream import TextStream
from .tool_calls import CallParser


@dataclass(frozen=True, slots=True)
class Words:
    text: str
    reasoning: bool = False


Part = Words | Call


class AnswerStream:
    """`push` and `finish` give the parts that are final, in order. Stop strings are looked for in all of it."""

    def __init__(
        self,
        text: TextStream,
        reasoning: Splitter | None = None,
        calls: CallParser | None = None,
        *,
        one_call: bool = False,
    ) -> None:
        """With `one_call` the first ends the answer."""
        self._text, self._reasoning, self._calls, self._one_call = text, reasoning, calls, one_call
        self.called = False
        """A call was made that ends the answer."""

    @property
    def matched(self) -> str | None:
        """The stop string that ended it; look again after `finish`."""
        return self._text.matched

    @property
    def reasoning(self) -> bool:
        """Whether the model is thinking, and not answering yet."""
        return self._reasoning is not None and self._reasoning.inside

    def push(self, token: int, logprobs: Logprobs | None = None) -> tuple[list[Part], str | None]:
        text, matched = self._text.push(token, logprobs)
        parts = self._parts(text)
        return self._counting(parts + self._rest() if matched is not None else parts), matched

    def finish(self, *, cut: bool = False) -> list[Part]:
        """No more ids: what was held back and belongs to the answer. `cut`: not the model ended it."""
        parts = self._parts(self._text.finish())
        return self._counting(parts + self._rest(cut=cut and self.matched is None))

    def listed(self) -> tuple[TokenLogprob, ...]:
        """The logprobs of tokens whose text was written since the last time, where they are kept at all."""
        return self._text.listed()

    def _parts(self, text: str) -> list[Part]:
        if not text:
            return []
        return self._split(*self._reasoning.push(text)) if self._reasoning is not None else self._answer(text)

    def _rest(self, *, cut: bool = False) -> list[Part]:
        parts = self._split(*self._reasoning.finish(cut=cut)) if self._reasoning is not None else []
        return parts + (_told(self._calls.finish(cut=cut)) if self._calls is not None else [])

    def _split(self, reasoning: str, answer: str) -> list[Part]:
        thought: list[Part] = [Words(reasoning, reasoning=True)] if reasoning else []
        return thought + self._answer(answer)

    def _answer(self, text: str) -> list[Part]:
        return _told(self._calls.push(text)) if self._calls is not None else _told([text] if text else [])

    def _counting(self, parts: list[Part]) -> list[Part]:
        """As far as the answer goes: what comes after its last call belongs to nothing."""
        if not self._one_call:
            return parts
        if self.called:
            return []
        first = next((place for place, part in enumerate(parts) if isinstance(part, Call)), None)
        self.called = first is not None
        return parts if first is None else parts[: first + 1]


def _told(found: list[str | Call]) -> list[Part]:
    return [Words(part) if isinstance(part, str) else part for part in found]
