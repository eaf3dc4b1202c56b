"""Thinking: when a thought has had the tokens it may have and has to end. Ids only; its text is text/reasoning.py's."""
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(slots=True)
class Thinking:
    """opening, closing: the tokens around a thought. inside: the prompt opened it.

    It follows ids that only ever grow. An answer has one thought at most.
    """

    budget: int  # tokens of the thought, its own two not counted
    opening: int
    closing: int
    inside: bool = False
    spent: int = 0
    _over: bool = False
    _read: int = 0  # generated ids

    def due(self, ids: Sequence[int], num_prompt: int) -> int | None:
        """The token that has to be next, if one has to."""
        for place in range(num_prompt + self._read, len(ids)):
            if self.inside and ids[place] == self.closing:
                self.inside, self._over = False, True
            elif self.inside:
                self.spent += 1
            elif ids[place] == self.opening and not self._over:
                self.inside = True
        self._read = len(ids) - num_prompt
        return self.closing if self.inside and self.spent >= self.budget else None
