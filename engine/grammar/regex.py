"""Regex: how large a regular expression becomes when its repetitions are written out, found before anybody does so.

It matches nothing, and what it says of an expression that is none is of no account: the compiler refuses that.
"""
import re

MAX_LENGTH = 4096  # characters
MAX_SIZE = 1_000_000  # parts, repetitions written out
_PART = re.compile(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|\((?:\?[^:)]*:?)?|[)|*+?]|\{\d*(?:,\d*)?\}|.", re.DOTALL)


class RegexError(ValueError):
    """`str(error)` says what is too large."""


def check_regex(regex: str) -> None:
    """Raises RegexError."""
    if len(regex) > MAX_LENGTH:
        raise RegexError(f"a regular expression of at most {MAX_LENGTH} characters is taken")
    if _size(regex) > MAX_SIZE:
        raise RegexError(f"with its repetitions written out it has more than {MAX_SIZE} parts")


def _size(regex: str) -> int:
    """Of each open group: how much it holds so far, and how much of that its last part is."""
    open_groups = [[0, 0]]
    for part in _PART.findall(regex):
        group = open_groups[-1]
        if part.startswith("("):
            open_groups.append([0, 0])
        elif part == ")" and len(open_groups) > 1:
            inner = open_groups.pop()[0]
            open_groups[-1][0] += inner
            open_groups[-1][1] = inner
        elif part.startswith("{") and len(part) > 2:
            times = max([int(number) for number in re.findall(r"\d{1,12}", part)], default=1)
            more = group[1] * max(times - 1, 0)
            group[0] += more
            group[1] += more
        elif part not in ("|", "*", "+", "?"):
            group[0] += 1
            group[1] = 1
    return sum(held for held, _ in open_groups)
