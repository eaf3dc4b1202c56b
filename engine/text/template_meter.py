"""Meter: one render's allowance of steps, text and time, and the makers of text that ask it first. It knows no syntax,
only the values that templates deal in."""
import json
import re
import time
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import jinja2
from jinja2.exceptions import SecurityError
from jinja2.runtime import Undefined

STEP_SECONDS = 1e-6  # of CPU time for a step, on average; a usual machine needs less
MIN_SECONDS = 0.5  # for however few steps
MAX_BITS = 256  # of a number
STEP_CHARS = 1024  # handling that much text counts as one step more

_WIDTH = re.compile(r"%(?:\([^)%]*\))?[^a-zA-Z%]*?(?:\*|[0-9]{3})")


class TemplateLimit(SecurityError):
    """A template asked for more time or space than any chat needs."""


class Meter:
    """One render's allowance. `limit`: characters of one value and of the output; the other bounds grow with it."""

    def __init__(self, limit: int, steps: int) -> None:
        self.limit = limit
        self._steps = steps
        self._next_look = 0
        self._made = self._written = 0
        self._until = time.thread_time() + max(MIN_SECONDS, steps * STEP_SECONDS)

    def step(self, count: int = 1) -> None:
        self._steps -= count
        self._next_look -= count
        if self._next_look <= 0:
            self._next_look = 32
            if self._steps < 0 or time.thread_time() > self._until:
                raise TemplateLimit("the template takes too long")

    def size(self, size: int) -> None:
        """Something of this many characters or items is about to be, or was just, made."""
        self._made += size
        if size > self.limit or self._made > 64 * self.limit:
            raise TemplateLimit("the template makes too long a text")
        self.step(1 + size // STEP_CHARS)

    def write(self, text: str) -> str:
        self._written += len(text)
        self.size(len(text))
        if self._written > 4 * self.limit:  # macros and blocks write into buffers: a text may be written more than once
            raise TemplateLimit("the template writes too much")
        return text

    def each(self, items: Iterable[Any]) -> Iterator[Any]:
        for item in items:
            self.step()
            yield item

    def settled(self, value: Any) -> Any:
        """A generator's items in a list, anything else as it is; paid for by its length."""
        if isinstance(value, Iterator):
            return list(self.each(value))
        if isinstance(value, str | list | tuple | Mapping | range):
            self.size(len(value))
        return value

    def weighed(self, value: Any) -> Any:
        """The same, about to be walked through (compared, hashed, written as JSON): counted as if written out in full,
        since lists that hold each other twice over make a tree that grows with 2 to the power of its depth."""
        if not isinstance(value, list | tuple | Mapping):
            self.step(1 + len(value) // STEP_CHARS if isinstance(value, str) else 1)
            return value
        count, chars, todo = 0, 0, [value]
        while todo:
            item = todo.pop()
            children = list(item) if isinstance(item, list | tuple | Mapping) else []
            children += item.values() if isinstance(item, Mapping) else []
            count += 1 + len(children)
            chars += len(item) if isinstance(item, str) else 0
            if count > self.limit // 8 or chars > self.limit:
                raise TemplateLimit("the template makes too long a list")
            todo.extend(children)
        self.step(1 + count // 16 + chars // STEP_CHARS)
        return value

    def checked(self, value: Any) -> Any:
        """The same, just made: no longer than may be. Tuples are hashed without a word, so they are weighed at once."""
        if isinstance(value, tuple):
            self.weighed(value)
        elif isinstance(value, str | list | Mapping):
            self.size(len(value))
        return value


def check_numbers(operator: str, left: float, right: float) -> None:
    bits = [number.bit_length() if isinstance(number, int) else 64 for number in (left, right)]
    if max(bits) > MAX_BITS or (operator == "**" and (abs(right) > MAX_BITS or bits[0] * abs(right) > MAX_BITS)):
        raise TemplateLimit("the template makes too big a number")


def text_of(value: Any) -> str:
    """As a template prints it. A list is not printed: its Python spelling in a prompt is always a mistake."""
    if isinstance(value, str):
        return value
    if value is None or isinstance(value, int | float | Undefined):
        return str(value)
    raise jinja2.TemplateRuntimeError(f"a {type(value).__name__} is not text")


def replace(meter: Meter, text: Any, old: str, new: str, count: int = -1) -> str:
    whole = text_of(text)
    found = whole.count(old) if count is None or count < 0 else min(whole.count(old), count)
    meter.size(len(whole))
    meter.size(len(whole) + found * max(len(new) - len(old), 0))
    return whole.replace(old, new, -1 if count is None else count)


def join(meter: Meter, separator: str, items: Iterable[Any]) -> str:
    texts = [text_of(item) for item in meter.each(items)]
    meter.size(sum(map(len, texts)) + len(separator) * len(texts))
    return separator.join(texts)


def printf(meter: Meter, form: str, values: Any) -> str:
    if _WIDTH.search(form):
        raise TemplateLimit("the template pads a text too far")
    for value in values.values() if isinstance(values, Mapping) else values if isinstance(values, tuple) else (values,):
        meter.size(len(text_of(value)) * form.count("%"))
    text: str = form % values
    meter.size(len(text))
    return text


def join_filter(meter: Meter, items: Iterable[Any], d: str = "") -> str:
    return join(meter, text_of(d), items)


def format_filter(meter: Meter, form: str, *args: Any, **kwargs: Any) -> str:
    return printf(meter, text_of(form), kwargs or args)


def indent(meter: Meter, value: Any, width: int = 4, first: bool = False, blank: bool = False) -> str:
    """Every line but the first (`first`) and the empty ones (`blank`) goes in by `width` spaces."""
    if width > 64:
        raise TemplateLimit("the template indents too far")
    lines = text_of(value).split("\n")
    meter.size(sum(map(len, lines)) + len(lines) * (1 + width))
    for number in range(0 if first else 1, len(lines)):
        if lines[number] or blank:
            lines[number] = " " * width + lines[number]
    return "\n".join(lines)


def tojson(
    meter: Meter,
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: Any = None,
    sort_keys: bool = False,
) -> str:
    """Unlike Jinja's own, for prompts and not for pages: nothing is escaped for HTML, no letter for ASCII's sake."""
    if (indent or 0) > 16 or len("".join(separators or ())) > 16:
        raise TemplateLimit("the template indents too far")
    meter.weighed(value)
    text = json.dumps(value, ensure_ascii=False, indent=indent, separators=separators, sort_keys=sort_keys)
    meter.size(len(text))
    return text
