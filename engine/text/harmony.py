"""Harmony: the messages on channels in which gpt-oss answers, told apart while they stream. No prompt but a begun one.

The prompt ends with `<|start|>assistant`. What follows are messages: a header that names a channel and maybe whom the
message is for, `<|message|>`, and what it says, up to `<|end|>`. On `analysis` the model thinks; on `final` it answers,
and on `commentary` it says what it is about to do, which is for the reader too. What is for a function becomes a call
as it is written by other models. Format: https://github.com/openai/harmony
"""
import json
import re
from collections.abc import Callable, Collection, Mapping

from .call_format import HERMES
from .stop_strings import StopStrings

LETTERS = {"<|start|>": "\ufdd0", "<|channel|>": "\ufdd1", "<|message|>": "\ufdd2", "<|end|>": "\ufdd3"}
"""What its tokens are heard as: letters that no text has, so that an answer about these tokens has none of them."""
ENDS = ("<|return|>", "<|call|>")
"""The tokens that end an answer. `<|end|>` does not: after a thought comes the answer itself."""

FINAL, FUNCTION = "final", "functions."
"""What a message is that answers; and for whom one that calls a function, with its name behind."""

_START, _CHANNEL, _MESSAGE, _END = LETTERS.values()
_AFTER = re.compile(f"[{_START}{_CHANNEL}{_END}]")  # what ends a message
_ANY = re.compile(f"[{_START}-{_END}]")
_CUTS = re.compile(f"([{_START}-{_END}])")
_OPENING, _CLOSING = (_START, _CHANNEL), (_MESSAGE, _END)  # of a header
_FOR = re.compile(rf"\bto=([^\s{_START}-{_END}<]+)")
_LONGEST = 1000  # characters of a header: what goes on without `<|message|>` is none


def speaks_harmony(template: str | None, added: Collection[str]) -> bool:
    """Whether a model does, by its template and its added tokens."""
    return template is not None and "<|channel|>" in template and all(token in added for token in LETTERS)


def as_written(text: str) -> str:
    """What a template writes of a model's messages, as their splitter gives the answer in them."""
    for token, letter in {**LETTERS, "<|call|>": _END}.items():
        text = text.replace(token, letter)
    splitter = HarmonySplitter(calls=True)
    return splitter.push(text)[1] + splitter.finish()[1]


def begun_answer(_prompt: str, reasoning: str, answer: str) -> str:
    """What stands after a prompt where an answer was cut, so that the model goes on there."""
    thought = f"<|channel|>analysis<|message|>{reasoning}" if reasoning else ""
    if not answer:
        return thought
    return f"{thought}{'<|end|><|start|>assistant' if thought else ''}<|channel|>final<|message|>{answer}"


class HarmonySplitter:
    """`push` and `finish` give (reasoning, answer) as a ReasoningSplitter does. Messages of one kind that follow each
    other are paragraphs. Text without any header is an answer."""

    def __init__(self, begun: str | None = None, *, calls: bool = False, in_form: bool = False) -> None:
        """begun: the channel on which the prompt ends; None: on none yet. calls: there are functions to call; without
        them a message for one is a thought. in_form: the answer has a form; what comes before it is a thought, too."""
        self._calls = calls
        self._thoughts = ("analysis", "commentary") if in_form else ("analysis",)  # channels
        self._held = ""
        self._channel = begun  # None: between two messages
        self._closing = ""  # what stands behind the message
        self._last = begun  # channel
        self._said = {"analysis": False, "final": False}

    @property
    def inside(self) -> bool:
        """Whether what comes now is reasoning, as far as can be told: a header after a thought is as much of it."""
        return (self._channel or self._last) == "analysis"

    def push(self, text: str) -> tuple[str, str]:
        self._held += text
        said = {"analysis": "", "final": ""}
        while self._held and (self._channel is not None or self._open(said)):
            assert self._channel is not None
            after = _AFTER.search(self._held)
            end = len(self._held) if after is None else after.start()
            said[self._channel] += self._held[:end].replace(_MESSAGE, "")
            self._held = self._held[end:].removeprefix(_END)
            if after is not None:
                self._close(said)
        return said["analysis"], said["final"]

    def finish(self, *, cut: bool = False) -> tuple[str, str]:
        """The text ended. Half a header is nothing. `cut`: maybe in the midst of a message."""
        said = {"analysis": "", "final": "" if _ANY.search(self._held) else self._held}
        self._held = ""
        if self._channel is not None and not cut:
            self._close(said)
        return said["analysis"], said["final"]

    def _open(self, said: dict[str, str]) -> bool:
        """Reads a header; False where more of it has to come."""
        text = self._held.lstrip()
        headed = not text or text[0] in LETTERS.values() or text.startswith("to=") or "to=".startswith(text)
        header, found, rest = self._held.partition(_MESSAGE)
        if headed and not found and len(header) <= _LONGEST:
            return False
        if headed and len(header) <= _LONGEST:
            self._channel, opening = self._kind(header)
        else:
            self._channel, opening, rest = "final", "", self._held.lstrip("".join(LETTERS.values()))
        self._held, self._last = rest, self._channel
        if self._said[self._channel]:
            said[self._channel] += "\n\n"
        said[self._channel] += opening
        self._said[self._channel] = True
        return True

    def _kind(self, header: str) -> tuple[str, str]:
        """Where a message of this header belongs, and what stands before it."""
        channel = header.rpartition(_CHANNEL)[2].strip() if _CHANNEL in header else "final"
        if (called := _FOR.search(header)) is None:
            return "analysis" if channel.startswith(self._thoughts) else "final", ""
        if not (self._calls and called[1].startswith(FUNCTION)):
            return "analysis", ""
        name = json.dumps(called[1].removeprefix(FUNCTION), ensure_ascii=False)
        self._closing = f"}}\n{HERMES.closer}"
        return "final", f'{HERMES.opener}\n{{"name": {name}, "arguments": '

    def _close(self, said: dict[str, str]) -> None:
        assert self._channel is not None
        said[self._channel] += self._closing
        self._channel, self._closing = None, ""


class MessageStops(StopStrings):
    """They are looked for in what messages say, and not in headers: "final" is the name of a channel, too."""

    def __init__(self, stops: tuple[str, ...] = ()) -> None:
        super().__init__(stops)
        self._header = False

    def push(self, text: str) -> tuple[str, str | None]:
        out = ""
        for piece in _CUTS.split(text):
            if piece in _OPENING or piece in _CLOSING:  # nothing is held back across one
                self._header = piece in _OPENING
            if self._header and piece not in _OPENING:
                out += piece
                continue
            released, matched = super().push(piece)
            out += released
            if matched is not None:
                return out, matched
        return out, None


class Headers:
    """Reads an answer id by id. ids: of LETTERS. data: the bytes of an id."""

    def __init__(self, ids: Mapping[str, int], data: Callable[[int], bytes], *, begun: bool) -> None:
        """begun: the prompt ends in a message; else with the beginning of a header."""
        self._start, self._channel, self._message, self._end = (ids[token] for token in LETTERS)
        self._data = data
        self._header = None if begun else b""

    def read(self, id: int) -> str | None:
        """The header that ends with this id, its channel behind a line break."""
        header = self._header
        if id == self._message:
            self._header = None
            return None if header is None else header.decode("utf-8", "replace")
        if id == self._channel:
            self._header = (header or b"") + b"\n"
        elif id in (self._start, self._end):
            self._header = b""
        elif header is not None:
            self._header = header + self._data(id)
        return None


def messages(
    ids: Mapping[str, int], data: Callable[[int], bytes], *, begun: bool = False
) -> Callable[[int], str | None]:
    """Reads an answer id by id and says which message begins behind each: `final`, or the one it is for. As Headers."""
    headers = Headers(ids, data, begun=begun)

    def read(id: int) -> str | None:
        header = headers.read(id) or ""
        called = _FOR.search(header)
        return called[1] if called is not None else FINAL if _channel_of(header) == FINAL else None

    return read


def thinks(ids: Mapping[str, int], data: Callable[[int], bytes], *, begun: bool) -> Callable[[int], bool]:
    """Reads an answer id by id and says whether the model thinks behind each. begun: in the prompt. As Headers."""
    headers, thinking = Headers(ids, data, begun=begun), begun
    ends = {ids[token] for token in LETTERS if token != "<|message|>"}

    def read(id: int) -> bool:
        nonlocal thinking
        header = headers.read(id) or ""
        begins = _channel_of(header) == "analysis" and _FOR.search(header) is None
        thinking = id not in ends and (thinking or begins)
        return thinking

    return read


def _channel_of(header: str) -> str:
    return "".join(header.rpartition("\n")[2].split()[:1])
