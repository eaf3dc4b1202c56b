"""TextStream: the text of one answer as its ids come in, cut at a stop string. No thread is crossed here."""
from .detokenizer import Detokenizer
from .stop_strings import StopStrings


class TextStream:
    """`push` and `finish` give text that is final; joined, they are the answer.

    After a match nothing more comes out: ids sampled after the one that completed a stop string belong to nothing.
    """

    def __init__(self, detokenizer: Detokenizer, stops: StopStrings, *, include_stop: bool = False) -> None:
        """include_stop: the stop string that ends the text is its last part."""
        self._detokenizer, self._stops, self._include_stop = detokenizer, stops, include_stop

    @property
    def matched(self) -> str | None:
        """The stop string that ended the text; look again after `finish`, which settles what was still open."""
        return self._stops.matched

    def push(self, token: int) -> tuple[str, str | None]:
        return self._pushed(self._detokenizer.push(token))

    def finish(self) -> str:
        """No more ids (end token, length, cancel): what was held back and belongs to the answer."""
        text, matched = self._pushed(self._detokenizer.flush())
        if matched is None:
            text += self._stops.flush()
            text += self._ending()
        return text

    def _pushed(self, text: str) -> tuple[str, str | None]:
        ended = self._stops.matched is not None
        text, matched = self._stops.push(text)
        return text if ended else text + self._ending(), matched

    def _ending(self) -> str:
        return self._stops.matched or "" if self._include_stop else ""
