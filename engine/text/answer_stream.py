"""AnswerStream: an answer's parts as its ids come in: reasoning and text. Ids to text is text_stream.py's."""
from dataclasses import dataclass

from ..events import TokenLogprob
from ..policy.batch import Logprobs
from .reasoning import ReasoningSplitter
from .text_stream import TextStream


@dataclass(frozen=True, slots=True)
class Words:
    text: str
    reasoning: bool = False


Part = Words


class AnswerStream:
    """`push` and `finish` give the parts that are final, in order. Stop strings are looked for in all of it."""

    def __init__(self, text: TextStream, reasoning: ReasoningSplitter | None = None) -> None:
        self._text, self._reasoning = text, reasoning

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
        return parts + self._rest() if matched is not None else parts, matched

    def finish(self) -> list[Part]:
        """No more ids: what was held back and belongs to the answer."""
        return self._parts(self._text.finish()) + self._rest()

    def listed(self) -> tuple[TokenLogprob, ...]:
        """The logprobs of tokens whose text was written since the last time, where they are kept at all."""
        return self._text.listed()

    def _parts(self, text: str) -> list[Part]:
        if not text:
            return []
        return _words(self._reasoning.push(text)) if self._reasoning is not None else [Words(text)]

    def _rest(self) -> list[Part]:
        return _words(self._reasoning.finish()) if self._reasoning is not None else []


def _words(found: tuple[str, str]) -> list[Part]:
    reasoning, answer = found
    return [Words(reasoning, reasoning=True)] * bool(reasoning) + [Words(answer)] * bool(answer)
