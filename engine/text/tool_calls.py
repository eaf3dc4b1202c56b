"""CallParser: calls of tools, told from the text around them while an answer streams. It sees text, never ids.

A call is told when it is whole. What only looks like one is text and is told as such, not a character of it lost: JSON
that breaks off or is none, a tool that nobody offered, a tag without a call.
"""
import enum
import re
from collections.abc import Collection

from .call_format import Call, CallFormat, arguments_of, calls_in, cut_in
from .held_back import settled
from .json_scanner import JsonScanner, Verdict

MAX_HEAD = 160  # characters of a name that stands before its arguments, with what belongs to it
_HEAD = re.compile(r"\s*([A-Za-z0-9_-]{1,64})(?:\[CALL_ID\][A-Za-z0-9]{1,64})?(?:\[ARGS\])?\s*")
_OF_HEAD = re.compile(r"[A-Za-z0-9_\[\]\s-]")
_SEPARATOR = re.compile(r"\s*[;,]?\s*")


class _Stage(enum.Enum):
    TEXT = "text"
    CALL = "call"  # `_held` begins with what opened it
    AFTER = "after"  # a call: its closing tag, or another one


class CallParser:
    """`push` and `finish` give texts and calls in order. The same comes out however the stream was cut into pieces.

    White space at a call belongs to neither: it is told only where there is text before the call and after it.
    """

    def __init__(self, form: CallFormat, names: Collection[str], *, going_on: bool = False) -> None:
        """`names`: the tools that are offered. `going_on`: the answer has begun already."""
        self._form, self._names = form, names
        self._held = ""
        self._stage = _Stage.TEXT
        self._bare = form.bare and not going_on  # nothing but white space so far
        self._opener = self._at = 0  # characters of `_held`: what opened the call; what of it was read
        self._scanner: JsonScanner | None = None
        self._body = 0  # where the JSON begins
        self._space = ""  # not told yet
        self._told = going_on  # some text
        self._called = False  # since that text

    def push(self, text: str) -> list[str | Call]:
        self._held += text
        found: list[str | Call] = []
        while self._go_on(found):
            pass
        return found

    def finish(self, *, cut: bool = False) -> list[str | Call]:
        """The text ended: what is not a whole call is text. `cut`: before its end, maybe in the midst of a call."""
        found: list[str | Call] = []
        if cut and self._stage is _Stage.CALL and (calls := self._cut_calls()) is not None:
            self._held = self._space = ""
            return [*calls]
        held, self._held = self._held, ""
        ends = _SEPARATOR.fullmatch(held) if self._form.bare else self._form.closer.startswith(held.lstrip())
        if self._stage is not _Stage.AFTER or not ends:
            self._tell(held, found)
        if not self._called and self._space:
            found.append(self._space)
        self._space = ""
        return found

    def _go_on(self, found: list[str | Call]) -> bool:
        """Whether the next stage was reached, and there may be more to do."""
        match self._stage:
            case _Stage.TEXT:
                return self._text(found)
            case _Stage.CALL:
                return self._call(found)
        return self._after()

    def _text(self, found: list[str | Call]) -> bool:
        if self._bare:
            begun = len(self._held) - len(self._held.lstrip())
            if begun == len(self._held):
                return False
            self._bare = False
            if self._held[begun] == "{":
                return self._open(begun)
        start = self._held.find(self._form.opener)
        end = start if start >= 0 else settled(self._held, self._form.opener)
        self._tell(self._held[:end], found)
        self._held = self._held[end:]
        return start >= 0 and self._open(len(self._form.opener))

    def _open(self, opener: int) -> bool:
        self._stage = _Stage.CALL
        self._opener = self._at = opener
        self._scanner = None
        return True

    def _call(self, found: list[str | Call]) -> bool:
        while self._at < len(self._held):
            verdict = self._read(self._held[self._at])
            self._at += 1
            if verdict is Verdict.MORE:
                continue
            calls = self._calls(self._held[self._body : self._at]) if verdict is Verdict.WHOLE else None
            if calls is None:
                end = max(self._opener, 1)
                self._tell(self._held[:end], found)
                self._held, self._stage = self._held[end:], _Stage.TEXT
            else:
                found += calls
                self._called = True
                self._held, self._stage = self._held[self._at :], _Stage.AFTER
            return True
        return False

    def _read(self, char: str) -> Verdict:
        if self._scanner is not None:
            return self._scanner.push(char)
        head = self._held[self._opener : self._at]
        if char == "{" or (char == "[" and not head.strip()):
            self._scanner, self._body = JsonScanner(), self._at
            named = self._form.named and _HEAD.fullmatch(head)
            return self._scanner.push(char) if named or not head.strip() else Verdict.BROKEN
        fits = _OF_HEAD.match(char) if self._form.named else char.isspace()
        return Verdict.MORE if fits and len(head) < MAX_HEAD else Verdict.BROKEN

    def _calls(self, text: str) -> list[Call] | None:
        head = _HEAD.fullmatch(self._held[self._opener : self._body])
        if head is None:
            return calls_in(text, self._names)
        arguments = arguments_of(text)
        return [Call(head[1], arguments)] if arguments is not None and head[1] in self._names else None

    def _cut_calls(self) -> list[Call] | None:
        """What is held, as far as calls are there; nothing where a name is still to come. None: it may be text."""
        if self._scanner is None:
            return []
        head, text = _HEAD.fullmatch(self._held[self._opener : self._body]), self._held[self._body :]
        if head is not None:
            return [Call(head[1], text, whole=False)] if head[1] in self._names else None
        calls = cut_in(text, self._names)
        tagged = self._held.startswith(self._form.opener)
        return calls if calls or tagged else None

    def _after(self) -> bool:
        if self._form.bare:
            separator = _SEPARATOR.match(self._held)
            end = separator.end() if separator else 0
            if end == len(self._held):
                return False
            if self._held[end] == "{":
                return self._open(end)
        rest = self._held.lstrip()
        if self._form.closer.startswith(rest) and rest != self._form.closer:
            return False
        if self._form.closer and rest.startswith(self._form.closer):
            self._held = rest.removeprefix(self._form.closer)
        self._stage = _Stage.TEXT
        return True

    def _tell(self, text: str, found: list[str | Call]) -> None:
        text = self._space + text
        told = text.rstrip()
        self._space = text[len(told) :]
        if told:
            found.append(told.lstrip() if self._called and not self._told else told)
            self._told, self._called = True, False
