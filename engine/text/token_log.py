"""TokenLog: the log-probabilities of an answer's tokens, each given out once, when its text is. It makes no text."""
import codecs
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace

from ..events import LOWEST, TokenLogprob
from ..policy.batch import Logprobs

Spelled = Callable[[int], tuple[str, bytes]]
"""Of an id the token's text, or its name where it has none, and its bytes."""


@dataclass(frozen=True, slots=True)
class _Entry:
    """`start`, `end`: characters of the text before it, and up to where its last byte belongs."""

    listed: TokenLogprob
    half: bytes  # of the character that the tokens before it began
    start: int
    end: int

    def cut(self, end: int) -> TokenLogprob:
        """With those of its bytes that are before the character numbered `end`."""
        data = self.half + self.listed.data
        size = next(size for size in range(len(data) + 1) if _characters(data[:size]) >= end - self.start)
        return replace(self.listed, data=data[len(self.half) : size])


def _characters(data: bytes) -> int:
    return len(codecs.getincrementaldecoder("utf-8")("replace").decode(data))


class TokenLog:
    def __init__(self, spelled: Spelled) -> None:
        self._spelled = spelled
        self._waiting: deque[_Entry] = deque()
        self._characters = 0

    def add(self, token: int, logprobs: Logprobs, *, half: bytes, data: bytes, text: str, whole: bool) -> None:
        """`data` after `half` a character gave `text`; `whole`: and no half of another."""
        listed = replace(token_logprob(self._spelled, token, logprobs), data=data)
        start = self._characters
        self._characters += len(text)
        self._waiting.append(_Entry(listed, half, start, self._characters + (not whole)))

    def out(self, characters: int, *, ended: bool) -> tuple[TokenLogprob, ...]:
        """Those whose text is among so many characters of the whole and was not before.

        With `ended` the text has no more characters: of a token across its end the rest belongs to nothing, and those
        behind it are dropped.
        """
        found = []
        while self._waiting and self._waiting[0].end <= characters:
            found.append(self._waiting.popleft().listed)
        if ended and self._waiting:
            if self._waiting[0].start < characters:
                found.append(self._waiting[0].cut(characters))
            self._waiting.clear()
        return tuple(found)

def token_logprob(spelled: Spelled, token: int, logprobs: Logprobs) -> TokenLogprob:
    """With all of its bytes."""
    top = tuple(TokenLogprob(*spelled(id), max(worth, LOWEST)) for id, worth in logprobs.top)
    return TokenLogprob(*spelled(token), max(logprobs.drawn, LOWEST), top)
