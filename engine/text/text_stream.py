"""TextStream: the text of one answer as its ids come in, cut at a stop string. No thread is crossed here."""
from ..events import TokenLogprob
from ..policy.batch import Logprobs
from .detokenizer import Detokenizer
from .stop_strings import StopStrings
from .token_log import TokenLog


class TextStream:
    """`push` and `finish` give text that is final; joined, they are the answer.

    After a match nothing more comes out: ids sampled after the one that completed a stop string belong to nothing.
    """

    def __init__(
        self, detokenizer: Detokenizer, stops: StopStrings, *, include_stop: bool = False, log: TokenLog | None = None
    ) -> None:
        """include_stop: the stop string that ends the text is its last part."""
        self._detokenizer, self._stops, self._include_stop, self._log = detokenizer, stops, include_stop, log
        self._out = 0  # characters
        self._finished = False

    @property
    def matched(self) -> str | None:
        """The stop string that ended the text; look again after `finish`, which settles what was still open."""
        return self._stops.matched

    def push(self, token: int, logprobs: Logprobs | None = None) -> tuple[str, str | None]:
        if self._log is None or logprobs is None:
            return self._pushed(self._detokenizer.push(token))
        half = self._detokenizer.half
        text = self._detokenizer.push(token)
        self._log.add(
            token, logprobs, half=half, data=self._detokenizer.data, text=text, whole=not self._detokenizer.half
        )
        return self._pushed(text)

    def finish(self) -> str:
        """No more ids (end token, length, cancel): what was held back and belongs to the answer."""
        text, matched = self._pushed(self._detokenizer.flush())
        if matched is None:
            rest = self._stops.flush() + self._ending()
            self._out += len(rest)
            text += rest
        self._finished = True
        return text

    def listed(self) -> tuple[TokenLogprob, ...]:
        """The logprobs of tokens whose text came out since the last time, where they are kept at all."""
        if self._log is None:
            return ()
        return self._log.out(self._out, ended=self._finished or self.matched is not None)

    def _pushed(self, text: str) -> tuple[str, str | None]:
        ended = self._stops.matched is not None
        text, matched = self._stops.push(text)
        text = text if ended else text + self._ending()
        self._out += len(text)
        return text, matched

    def _ending(self) -> str:
        return self._stops.matched or "" if self._include_stop else ""
