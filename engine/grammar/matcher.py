"""Matcher: where one answer stands in its grammar, followed id by id. It knows no other parameter of the answer."""
from collections.abc import Mapping
from collections.abc import Sequence as Ordered
from typing import Any

import numpy as np

from ..policy.structured_outputs import Opening
from .lexicon import Lexicon, Words

Thought = tuple[bytes | int, bytes | int]
MOST_BLANK = 5  # ids of white space alone, one after the other: a line break, and a deep line's blanks one by one
NO_TOKEN = "the tokenizer has no token for what it needs next"
STUCK = "NoExtensionBias"  # llguidance's word for that
NO_MESSAGES: Mapping[str, "Grammar"] = {}


class Grammar:
    """What was compiled of one source. Its matchers share what they find out, so it belongs to whoever computes masks.

    terse: white space goes on for MOST_BLANK ids only, where anything else may stand.
    worn: some matcher broke, and what they share may be why; it is not to be used for others.
    """

    def __init__(self, start: Any, lexicon: Lexicon, *, terse: bool = False) -> None:
        self.lexicon, self.terse, self.worn = lexicon, terse, False
        self._start = start

    def place(self) -> "Place":
        return Place(self._start.deep_copy(), self)


class Place:
    """Where an answer stands in one grammar."""

    def __init__(self, matcher: Any, grammar: Grammar) -> None:
        """matcher: llguidance's."""
        self.matcher, self._grammar = matcher, grammar
        self._blank = 0  # ids of white space that were last

    def take(self, ids: list[int]) -> bool:
        """Whether the grammar goes on with these ids; if not, there is a fault from now on."""
        for id in ids:
            self._blank = self._blank + 1 if self._grammar.lexicon.texts[id].isspace() else 0
        return bool(self.matcher.consume_tokens(ids))

    def bound(self, words: Words, may_end: bool) -> None:
        """Takes white space out of what may be next, where that is enough of it."""
        if self._grammar.terse and self._blank >= MOST_BLANK:
            others = words & ~self._grammar.lexicon.blank
            if may_end or others.any():
                words[:] = others

    @property
    def fault(self) -> str | None:
        """Why it goes on no longer: an id that the grammar does not have, or a bound that was reached."""
        if not self.matcher.is_error():
            return None
        error = self.matcher.get_error()
        if error.startswith(STUCK):
            return NO_TOKEN
        self._grammar.worn = True
        return plain(error)


class Matcher:
    """It reads ids that only ever grow, so that neither a preemption nor a chunk of a prompt means anything to it.

    Of several grammars the answer follows any. Each has a lexer of its own, so it does not matter that one begins as
    another does.
    """

    def __init__(
        self,
        grammars: Ordered[Grammar],
        after: Opening | None = None,
        ahead: Thought | None = None,
        *,
        messages: Mapping[str, Grammar] = NO_MESSAGES,
        may_end: bool = False,
    ) -> None:
        """All of one lexicon. after: behind what the answer begins; what stands before it is free.

        ahead: what begins and what ends a thought that may come first.
        messages: where `after` says what begins, the grammar of what that is; all else is free. may_end: and may end.
        """
        self._grammars, self._lexicon = grammars, grammars[0].lexicon
        self._places = [grammar.place() for grammar in grammars]
        self._messages, self.may_end = messages, may_end
        self._read = 0
        self._after, self._ahead, self._before = after, ahead, b""

    @property
    def waits(self) -> bool:
        """Whether what comes is free: the model is thinking, or says what none of the grammars is of."""
        return self._after is not None

    def begin(self, text: str) -> bool:
        """The answer goes on after this text; whether a grammar allows it."""
        return not text or self._take(self._lexicon.spell(text))

    def follow(self, generated: Ordered[int]) -> None:
        """All ids of the answer so far."""
        for id in generated[self._read :]:
            if self._after is not None:
                self._wait(id, self._after)
            elif self._ahead is None or not self._thinks(id, *self._ahead):
                self._take([id])
        self._read = len(generated)

    def _take(self, ids: list[int]) -> bool:
        going_on = [place for place in self._places if place.take(ids)]
        self._places = going_on or self._places[:1]
        return bool(going_on)

    def _thinks(self, id: int, opening: bytes | int, closing: bytes | int) -> bool:
        """Whether with this id a thought begins. What was read until then is no part of the answer."""
        self._before += self._lexicon.texts[id]
        text = self._before.lstrip()
        if id == opening or (isinstance(opening, bytes) and text.startswith(opening)):
            self._places = [grammar.place() for grammar in self._grammars]
            self._after, self._ahead = closing, None
            self._before = text.removeprefix(opening) if isinstance(opening, bytes) else b""
            return True
        if text and not (isinstance(opening, bytes) and opening.startswith(text)):
            self._ahead, self._before = None, b""
        return False

    def _wait(self, id: int, after: Opening) -> None:
        """White space behind the end of a thought is no part of the answer (text/reasoning.py)."""
        if not isinstance(after, bytes):
            if not callable(after):
                self._after = None if id == after else after
            elif (begun := self._messages.get(after(id) or "")) is not None:
                self._after, self._places = None, [begun.place()]
            return
        self._before += self._lexicon.texts[id]
        _, found, rest = self._before.partition(after)
        if found:
            self._after, self._before = None, b""
            self.begin(rest.lstrip().decode("utf-8", "replace"))

    @property
    def fault(self) -> str | None:
        """Why it follows no longer."""
        faults = [place.fault for place in self._places]
        return faults[0] if all(faults) else None

    @staticmethod
    def masks(matchers: "Ordered[Matcher]") -> tuple[Words, list[bool]]:
        """As Lexicon.masks says, computed side by side. All are of one vocabulary; `fault` is to be asked after it."""
        places = [place for matcher in matchers for place in matcher._places]
        words, may_end = matchers[0]._lexicon.masks([place.matcher for place in places])
        for place, its, end in zip(places, words, may_end, strict=True):
            place.bound(its, end)
        if len(places) > len(matchers):
            words, may_end = _united(words, may_end, matchers)
        for row, matcher in enumerate(matchers):
            opening = matcher._ahead[0] if matcher._ahead is not None else None
            if isinstance(opening, int):
                words[row, opening >> 5] |= np.uint32(1 << (opening & 31))
        return words, may_end


def _united(words: Words, may_end: list[bool], matchers: Ordered[Matcher]) -> tuple[Words, list[bool]]:
    """What any place of a matcher allows; one that has a fault allows nothing."""
    whole = np.zeros((len(matchers), words.shape[1]), np.uint32)
    ends = [False] * len(matchers)
    rows = iter(zip(words, may_end, strict=True))
    for row, matcher in enumerate(matchers):
        for place, (its, end) in zip(matcher._places, rows, strict=False):
            if place.fault is None:
                whole[row] |= its
                ends[row] |= end
    return whole, ends


def plain(error: str) -> str:
    """One line of what llguidance says."""
    for beginning in ("\n   1 |", "<non-verbose/>", "<backtrace>"):  # of what is for whoever works on llguidance
        error = error.partition(beginning)[0]
    lines = [line.strip() for line in error.splitlines()]
    return " ".join(line for line in lines if line)[:300]
