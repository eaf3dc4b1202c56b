"""Matcher: where one answer stands in its grammar, followed id by id. It knows no other parameter of the answer."""
from collections.abc import Sequence as Ordered
from typing import Any

from ..policy.structured_outputs import Opening
from .lexicon import Lexicon, Words

NO_TOKEN = "the tokenizer has no token for what it needs next"


class Grammar:
    """What was compiled of one source. Its matchers share what they find out, so it belongs to whoever computes masks.

    worn: some matcher broke, and what they share may be why; it is not to be used for others.
    """

    def __init__(self, start: Any, lexicon: Lexicon) -> None:
        self.lexicon, self.worn = lexicon, False
        self._start = start

    def matcher(self, after: Opening | None = None) -> "Matcher":
        """after: behind what the answer begins; what stands before it is free."""
        return Matcher(self._start.deep_copy(), self, after)


class Matcher:
    """It reads ids that only ever grow, so that neither a preemption nor a chunk of a prompt means anything to it."""

    def __init__(self, place: Any, grammar: Grammar, after: Opening | None = None) -> None:
        self._place, self._grammar = place, grammar
        self._read = 0
        self._after, self._before = after, b""

    @property
    def waits(self) -> bool:
        """Whether the answer has not begun yet: the model is thinking."""
        return self._after is not None

    def begin(self, text: str) -> bool:
        """The answer goes on after this text; whether the grammar allows it."""
        return not text or bool(self._place.consume_tokens(self._grammar.lexicon.spell(text)))

    def follow(self, generated: Ordered[int]) -> None:
        """All ids of the answer so far."""
        for id in generated[self._read :]:
            if self._after is None:
                self._place.consume_token(id)
            else:
                self._wait(id, self._after)
        self._read = len(generated)

    def _wait(self, id: int, after: Opening) -> None:
        """White space behind the end of a thought is no part of the answer (text/reasoning.py)."""
        if not isinstance(after, bytes):
            begins = after(id) if callable(after) else id == after
            self._after = None if begins else after
            return
        self._before += self._grammar.lexicon.texts[id]
        _, found, rest = self._before.partition(after)
        if found:
            self._after, self._before = None, b""
            self.begin(rest.lstrip().decode("utf-8", "replace"))

    @property
    def fault(self) -> str | None:
        """Why it follows no longer: an id that the grammar does not have, or a bound that was reached."""
        if not self._place.is_error():
            return None
        error = self._place.get_error()
        if error.startswith("NoExtensionBias"):
            return NO_TOKEN
        self._grammar.worn = True
        return plain(error)

    @staticmethod
    def masks(matchers: "Ordered[Matcher]") -> tuple[Words, list[bool]]:
        """As Lexicon.masks says, computed side by side. All are of one vocabulary; `fault` is to be asked after it."""
        lexicon = matchers[0]._grammar.lexicon
        return lexicon.masks([matcher._place for matcher in matchers])


def plain(error: str) -> str:
    """One line of what llguidance says."""
    for beginning in ("\n   1 |", "<non-verbose/>", "<backtrace>"):  # of what is for whoever works on llguidance
        error = error.partition(beginning)[0]
    lines = [line.strip() for line in error.splitlines()]
    return " ".join(line for line in lines if line)[:300]
