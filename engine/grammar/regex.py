"""Regex: a regular expression read part by part: how large it becomes, and what llguidance must be told otherwise.

It matches nothing, and what it says of an expression that is none is of no account: the compiler refuses that.
"""
import re
from collections.abc import Iterator

MAX_LENGTH = 4096  # characters
MAX_SIZE = 1_000_000  # parts, repetitions written out
_PART = re.compile(
    r"\\[pP]\{[^}]*\}|\\.|\((?:\?(?:P?<[^>]*>|[a-zA-Z-]*:?))?|[)|*+?]|\{\d*(?:,\d*)?\}|.", re.DOTALL
)


class RegexError(ValueError):
    """`str(error)` says what is too large."""


def check_regex(regex: str) -> None:
    """Raises RegexError."""
    if len(regex) > MAX_LENGTH:
        raise RegexError(f"a regular expression of at most {MAX_LENGTH} characters is taken")
    if size(regex) > MAX_SIZE:
        raise RegexError(f"with its repetitions written out it has more than {MAX_SIZE} parts")


def size(regex: str) -> int:
    """How many parts it has when its repetitions are written out, found without doing so."""
    groups = [[0, 0]]  # of each open group: how much it holds, and how much of that its last part is
    for part in _parts(regex):
        group = groups[-1]
        if part.startswith("("):
            groups.append([0, 0])
        elif part == ")" and len(groups) > 1:
            inner = groups.pop()[0]
            groups[-1][0] += inner
            groups[-1][1] = inner
        elif part.startswith("{") and len(part) > 2:
            times = max([int(number) for number in re.findall(r"\d{1,12}", part)], default=1)
            more = group[1] * max(times - 1, 0)
            group[0] += more
            group[1] += more
        elif part not in ("|", "*", "+", "?"):
            group[0] += 1
            group[1] = 1
    return sum(held for held, _ in groups)


def in_a_json_string(regex: str) -> str:
    """The same for llguidance, which takes a class that holds all control characters to hold `"` and `\\` as well: none
    holds U+001F, which no escape of two letters writes."""
    return "".join(
        f"[{part}&&[^\\x1f]]" if part[0] == "[" or part.startswith(("\\p{", "\\P{")) else part
        for part in _parts(regex)
    )


def _parts(regex: str) -> Iterator[str]:
    """Characters and escapes, classes whole, opened and closed groups, repetitions, and `|`."""
    at, closed = 0, True
    while at < len(regex):
        found = _PART.match(regex, at)
        assert found is not None
        end = _class_end(regex, at) if regex[at] == "[" and closed else found.end()
        closed = closed and end > 0  # no end is sought again where one is missing
        end = end or found.end()
        yield regex[at:end]
        at = end


def _class_end(regex: str, at: int) -> int:
    """Classes may hold classes; a `]` right at the beginning is one of the characters. 0: it has none."""
    depth = 0
    while at < len(regex):
        char = regex[at]
        if char == "\\":
            at += 1
        elif char == "[":
            depth += 1
            at += regex[at + 1 : at + 2] == "^"
            at += regex[at + 1 : at + 2] == "]"
        elif char == "]":
            depth -= 1
        at += 1
        if depth == 0:
            return at
    return 0
