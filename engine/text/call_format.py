"""CallFormat: how a model writes the calls of tools, and what of them a JSON text holds. No stream: tool_calls.py."""
import json
import re
from collections.abc import Collection
from dataclasses import dataclass

from .json_scanner import is_whole

_AFTER_SPACE = re.compile(r"[^ \t\n\r]")
_SURROGATE = re.compile("[\ud800-\udfff]")


@dataclass(frozen=True, slots=True)
class Call:
    """`arguments` is the text of a JSON object, as the model wrote it."""

    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class CallFormat:
    """`opener`, then one call as a JSON object or several in a list, then `closer`.

    `named`: the name may also stand before its arguments. `bare`: JSON at the very beginning of an answer is a call
    without any opener, and `;` or `,` may stand between several. `extras` are other tokens that are part of it.
    """

    opener: str
    closer: str = ""
    named: bool = False
    bare: bool = False
    extras: tuple[str, ...] = ()

    @property
    def tags(self) -> tuple[str, ...]:
        return tuple(tag for tag in (self.opener, self.closer, *self.extras) if tag)


HERMES = CallFormat("<tool_call>", "</tool_call>")
"""Of Hermes and Qwen; and in which models without a format of their own are asked to write."""
MISTRAL = CallFormat("[TOOL_CALLS]", named=True, extras=("[ARGS]", "[CALL_ID]"))
LLAMA = CallFormat("<|python_tag|>", bare=True)
FORMATS = (HERMES, MISTRAL, LLAMA)


def calls_in(text: str, names: Collection[str]) -> list[Call] | None:
    """The calls in a whole JSON object or list; None where it is anything but calls of these tools."""
    texts = [text] if text[0] == "{" else _elements(text)
    calls = [_call(one, names) for one in texts]
    found = [call for call in calls if call is not None]
    return found if found and len(found) == len(calls) else None


def arguments_of(text: str) -> str | None:
    """The JSON text of an object of arguments; some models put it into a string once more, or write null for none.

    text: JSON by RFC 8259. What was in a string need not be.
    """
    value = json.loads(text)
    if isinstance(value, str):
        text = value.strip()
        value = json.loads(text) if is_whole(text) else None if text in ("", "null") else text
    if value is None:
        return "{}"
    broken = not isinstance(value, dict) or _SURROGATE.search(json.dumps(value, ensure_ascii=False))
    return None if broken else text.strip()


def _call(text: str, names: Collection[str]) -> Call | None:
    if text[0] != "{":
        return None
    members = _members(text)
    name = json.loads(members.get("name", "null"))
    if not isinstance(name, str) or name not in names:
        return None
    arguments = arguments_of(members.get("arguments") or members.get("parameters") or "{}")
    return Call(name, arguments) if arguments is not None else None


def _members(text: str) -> dict[str, str]:
    """The JSON text of every member of an object that is known to be whole."""
    members: dict[str, str] = {}
    at = _next(text, 1)
    while text[at] != "}":
        name, at = json.JSONDecoder().raw_decode(text, at)
        start = _next(text, _next(text, at) + 1)
        _, at = json.JSONDecoder().raw_decode(text, start)
        members[name] = text[start:at]
        at = _next(text, at)
        at = _next(text, at + 1) if text[at] == "," else at
    return members


def _elements(text: str) -> list[str]:
    """The JSON text of every element of a list that is known to be whole."""
    elements = []
    at = _next(text, 1)
    while text[at] != "]":
        start = at
        _, at = json.JSONDecoder().raw_decode(text, start)
        elements.append(text[start:at])
        at = _next(text, at)
        at = _next(text, at + 1) if text[at] == "," else at
    return elements


def _next(text: str, at: int) -> int:
    found = _AFTER_SPACE.search(text, at)
    assert found is not None  # the end of the object or list at the latest
    return found.start()
