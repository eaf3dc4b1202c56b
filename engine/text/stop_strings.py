"""StopStrings: cuts a growing text at the earliest of them, holds back what may become one. It sees text, never ids."""
from collections import deque


class _State:
    """A node of the automaton: the longest tail of the text that begins some stop string, `depth` characters of it."""

    __slots__ = ("depth", "fallback", "next", "stop")

    def __init__(self, depth: int) -> None:
        self.depth = depth
        self.next: dict[str, _State] = {}
        self.fallback: _State | None = None
        self.stop: str | None = None  # the longest stop string that ends here


def _automaton(stops: tuple[str, ...]) -> _State:
    """Aho and Corasick, "Efficient string matching" (1975)."""
    root = _State(0)
    for stop in stops:
        state = root
        for char in stop:
            state = state.next.setdefault(char, _State(state.depth + 1))
        state.stop = stop
    queue = deque([root])
    while queue:
        state = queue.popleft()
        for char, child in state.next.items():
            fallback = state.fallback
            while fallback is not None and char not in fallback.next:
                fallback = fallback.fallback
            child.fallback = root if fallback is None else fallback.next[char]
            child.stop = child.stop or child.fallback.stop
            queue.append(child)
    return root


class StopStrings:
    """What is withheld is the longest tail of the text that is a beginning of some stop string, and no more.

    The cut is at the earliest place where any stop string begins, however the text was split into pieces: with the
    stops "bc" and "abcd", the text "abc" waits for one more character, since the earlier "abcd" may still complete.
    One dictionary look-up a character, whatever the number and length of the stop strings.
    """

    def __init__(self, stops: tuple[str, ...] = ()) -> None:
        if not all(stops):
            raise ValueError("an empty stop string would end every answer")
        self._root = self._state = _automaton(stops)
        self._held = ""
        self._found: tuple[int, str] | None = None  # where a whole stop string begins, seen from the text's current end
        self.matched: str | None = None

    def push(self, text: str) -> tuple[str, str | None]:
        """More text in; out comes what is final now, and the stop string that ended it all, if one did."""
        if self.matched is not None:
            return "", self.matched
        if not self._root.next:
            return text, None
        text = self._held + text
        for end in range(len(self._held) + 1, len(text) + 1):
            state = self._state = self._step(text[end - 1])
            if state.stop is not None and (self._found is None or end - len(state.stop) < self._found[0]):
                self._found = (end - len(state.stop), state.stop)
            if self._found is not None and self._found[0] <= end - state.depth:
                start, self.matched = self._found
                self._held = ""
                return text[:start], self.matched
        released = len(text) - self._state.depth
        self._held = text[released:]
        if self._found is not None:
            self._found = (self._found[0] - released, self._found[1])
        return text[:released], None

    def _step(self, char: str) -> _State:
        state: _State | None = self._state
        while state is not None and char not in state.next:
            state = state.fallback
        return self._root if state is None else state.next[char]

    def flush(self) -> str:
        """The text ended: what was held back and is no stop string. `matched` tells whether one was complete in it."""
        held, self._held = self._held, ""
        if self._found is not None and self.matched is None:
            start, self.matched = self._found
            return held[:start]
        return held
