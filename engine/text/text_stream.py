"""TextStream: the text of one answer as its ids come in, cut at a stop string. No thread is crossed here."""
from .detokenizer import Detokenizer
from .stop_strings import StopStrings


class TextStream:
    """`push` and `finish` give text that is final; joined, they are the answer.

    After a match nothing more comes out: ids sampled after the one that completed a stop string belong to nothing.
    """

    def __init__(self, detokenizer: Detokenizer, stops: StopStrings) -> None:
        self._detokenizer, self._stops = detokenizer, stops

    @property
    def matched(self) -> str | None:
        """The stop string that ended the text; look again after `finish`, which settles what was still open."""
        return self._stops.matched

    def push(self, token: int) -> tuple[str, str | None]:
        return self._stops.push(self._detokenizer.push(token))

    def finish(self) -> str:
        """No more ids (end token, length, cancel): what was held back and belongs to the answer."""
        text, _ = self._stops.push(self._detokenizer.flush())
        return text + self._stops.flush()
