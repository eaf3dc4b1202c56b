"""Thinking: when a thought has had the tokens it may have and has to end. Ids only; its text is text/reasoning.py's."""
from collections.abc import Callable, Sequence
from dataclasses import dataclass


@dataclass(slots=True)
class Thinking:
    """opening, closing: the tokens around a thought, of which an answer has one at most. inside: the prompt opened it.

    opening may also be what is asked of each token, once and in order, whether the model thinks behind it: then it may
    do so more than once. It follows ids that only ever grow.
    """

    budget: int  # tokens of all that is thought, those around it not counted
    opening: int | Callable[[int], bool]
    closing: int
    inside: bool = False
    spent: int = 0
    _over: bool = False
    _read: int = 0  # generated ids

    def due(self, ids: Sequence[int], num_prompt: int) -> int | None:
        """The token that has to be next, if one has to."""
        for place in range(num_prompt + self._read, len(ids)):
            before, self.inside = self.inside, self._thinks(ids[place])
            self.spent += before and self.inside
        self._read = len(ids) - num_prompt
        return self.closing if self.inside and self.spent >= self.budget else None

    def _thinks(self, id: int) -> bool:
        """Whether it does behind this token."""
        if callable(self.opening):
            return self.opening(id)
        if self.inside and id == self.closing:
            self._over = True
        return not self._over and (self.inside or id == self.opening)
