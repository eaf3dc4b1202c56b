"""Reasoning: what a model thinks before it answers, told from its answer while both stream. It sees text, never ids.

Reasoning comes once, first of all, between two tags that the model's template or its added tokens have. A template may
have written the opening tag already. A tag that stands later in an answer is text: somebody asked about tags.
"""
import enum
from collections.abc import Collection
from dataclasses import dataclass
from typing import Protocol

from .held_back import settled


@dataclass(frozen=True, slots=True)
class Tags:
    opening: str
    closing: str


PAIRS = (
    Tags("<think>", "</think>"),
    Tags("<thinking>", "</thinking>"),
    Tags("<thought>", "</thought>"),
    Tags("<reasoning>", "</reasoning>"),
    Tags("<seed:think>", "</seed:think>"),
    Tags("<|begin_of_thought|>", "<|end_of_thought|>"),
    Tags("[THINK]", "[/THINK]"),
)


def tags_of(template: str, added: Collection[str]) -> Tags | None:
    """The pair that this model thinks in: both stand in its template or among its added tokens. None: it does not."""
    for tags in PAIRS:
        if all(tag in added or tag in template for tag in (tags.opening, tags.closing)):
            return tags
    return None


def begun_answer(tags: Tags | None, prompt: str, reasoning: str, answer: str) -> str:
    """What stands after `prompt` where an answer was cut, so that the model goes on there."""
    if tags is None:
        return answer
    opened = prompt.rstrip().endswith(tags.opening)
    if reasoning:
        begun = reasoning if opened else f"{tags.opening}\n{reasoning}"
        return f"{begun}\n{tags.closing}\n\n{answer}" if answer else begun
    return f"\n{tags.closing}\n\n{answer}" if opened and answer else answer


class Splitter(Protocol):
    """What tells reasoning from answer, in whatever way a model writes them."""

    @property
    def inside(self) -> bool: ...
    def push(self, text: str) -> tuple[str, str]: ...
    def finish(self, *, cut: bool = False) -> tuple[str, str]: ...


class _Stage(enum.Enum):
    BEFORE = "before"  # nothing but white space, or the beginning of the opening tag
    INSIDE = "inside"
    BETWEEN = "between"  # white space after the closing tag
    ANSWER = "answer"


class ReasoningSplitter:
    """`push` and `finish` give (reasoning, answer), either of which may be empty; joined they are the whole of each.

    White space at the tags belongs to neither. The same comes out however the text was cut into pieces.
    """

    def __init__(self, tags: Tags, *, opened: bool = False, going_on: bool = False) -> None:
        """`opened`: the prompt ends with the opening tag. `going_on`: with reasoning that was cut."""
        self._tags = tags
        self._held = ""
        self._stage = _Stage.INSIDE if going_on else _Stage.BEFORE
        self._without_opening = _Stage.INSIDE if opened else _Stage.ANSWER
        self._begun = going_on

    @property
    def inside(self) -> bool:
        """Whether what comes now is reasoning, as far as can be told."""
        before = self._stage is _Stage.BEFORE and self._without_opening is _Stage.INSIDE
        return before or self._stage is _Stage.INSIDE

    def push(self, text: str) -> tuple[str, str]:
        self._held += text
        if self._stage is _Stage.BEFORE:
            self._open()
        reasoning = self._reasoning() if self._stage is _Stage.INSIDE else ""
        if self._stage is _Stage.BETWEEN:
            self._held = self._held.lstrip()
            self._stage = _Stage.ANSWER if self._held else _Stage.BETWEEN
        answer = ""
        if self._stage is _Stage.ANSWER:
            answer, self._held = self._held, ""
        return reasoning, answer

    def finish(self, *, cut: bool = False) -> tuple[str, str]:
        """The text ended, or was cut: what was held back."""
        held, self._held = self._held, ""
        if self.inside:
            return (held if self._begun else held.lstrip()).rstrip(), ""
        return "", held if self._stage is _Stage.BEFORE else ""

    def _open(self) -> None:
        text = self._held.lstrip()
        if text.startswith(self._tags.opening):
            self._held = text.removeprefix(self._tags.opening)
            self._stage = _Stage.INSIDE
        elif not self._tags.opening.startswith(text):
            self._stage = self._without_opening

    def _reasoning(self) -> str:
        if not self._begun:
            self._held = self._held.lstrip()
        text, found, rest = self._held.partition(self._tags.closing)
        if found:
            self._held, self._stage = rest, _Stage.BETWEEN
            return text.rstrip()
        end = settled(text, self._tags.closing)
        self._held = text[end:]
        self._begun = self._begun or end > 0
        return text[:end]
