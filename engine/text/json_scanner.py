"""JsonScanner: whether a growing text is JSON so far, a character at a time, and where it ends. It builds no value."""
import enum
import re

MAX_DEPTH = 64
MAX_SCALAR = 400  # characters of a number
_SCALAR = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?|true|false|null")
_OF_SCALAR = frozenset("+-.0123456789abcdefghijklmnopqrstuvwxyzE")
_SPACE = frozenset(" \t\n\r")
_HEX = frozenset("0123456789abcdefABCDEF")


class Verdict(enum.Enum):
    MORE = "more"  # JSON so far
    WHOLE = "whole"
    BROKEN = "broken"


class _Wants(enum.Enum):
    VALUE = "a value"
    FIRST_VALUE = "a value or the list's end"
    NAME = "a name"
    FIRST_NAME = "a name or the object's end"
    COLON = "a colon"
    NEXT = "a comma or an end"
    STRING = "the rest of a string"
    ESCAPED = "what is escaped"
    HEX = "a hexadecimal digit"
    SCALAR = "the rest of a number or a word"


class JsonScanner:
    """An object or a list by RFC 8259, which end themselves. After WHOLE or BROKEN it takes no more."""

    def __init__(self) -> None:
        self._wants = _Wants.VALUE
        self._open: list[str] = []  # the ends that are due, the innermost last
        self._is_name = False  # the string
        self._digits = 0  # of an escape, still to come
        self._scalar = ""

    def push(self, char: str) -> Verdict:
        match self._wants:
            case _Wants.STRING:
                return self._string(char)
            case _Wants.ESCAPED:
                return self._escaped(char)
            case _Wants.HEX:
                self._digits -= 1
                return self._expect(_Wants.HEX if self._digits else _Wants.STRING, char in _HEX)
            case _Wants.SCALAR:
                if char in _OF_SCALAR and len(self._scalar) < MAX_SCALAR:
                    self._scalar += char
                    return Verdict.MORE
                if not _SCALAR.fullmatch(self._scalar):
                    return Verdict.BROKEN
                self._wants = _Wants.NEXT
        return Verdict.MORE if char in _SPACE else self._between(char)

    def _between(self, char: str) -> Verdict:
        wants = self._wants
        if wants is _Wants.COLON:
            return self._expect(_Wants.VALUE, char == ":")
        if char in "}]" and wants in (_Wants.NEXT, _Wants.FIRST_NAME, _Wants.FIRST_VALUE):
            if not self._open or self._open.pop() != char:
                return Verdict.BROKEN
            self._wants = _Wants.NEXT
            return Verdict.MORE if self._open else Verdict.WHOLE
        if wants is _Wants.NEXT:
            return self._expect(_Wants.NAME if self._open[-1] == "}" else _Wants.VALUE, char == ",")
        if wants in (_Wants.NAME, _Wants.FIRST_NAME):
            self._is_name = True
            return self._expect(_Wants.STRING, char == '"')
        return self._value(char)

    def _value(self, char: str) -> Verdict:
        if char in "{[":
            self._open.append("}" if char == "{" else "]")
            first = _Wants.FIRST_NAME if char == "{" else _Wants.FIRST_VALUE
            return self._expect(first, len(self._open) <= MAX_DEPTH)
        if char == '"':
            self._is_name = False
            return self._expect(_Wants.STRING, bool(self._open))
        self._scalar = char
        return self._expect(_Wants.SCALAR, char in _OF_SCALAR and bool(self._open))

    def _string(self, char: str) -> Verdict:
        if char == '"':
            self._wants = _Wants.COLON if self._is_name else _Wants.NEXT
        elif char == "\\":
            self._wants = _Wants.ESCAPED
        return self._expect(self._wants, char >= " ")

    def _escaped(self, char: str) -> Verdict:
        self._digits = 4
        return self._expect(_Wants.HEX if char == "u" else _Wants.STRING, char in 'u"\\/bfnrt')

    def _expect(self, wants: _Wants, fits: bool) -> Verdict:
        self._wants = wants
        return Verdict.MORE if fits else Verdict.BROKEN


def is_whole(text: str) -> bool:
    """Whether it is an object or a list, and nothing else."""
    scanner, verdict = JsonScanner(), Verdict.MORE
    for place, char in enumerate(text, 1):
        verdict = scanner.push(char)
        if verdict is not Verdict.MORE:
            return verdict is Verdict.WHOLE and place == len(text)
    return False
