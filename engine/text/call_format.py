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
    """`arguments` is the text of a JSON object, as the model wrote it; of a call that is not `whole` the beginning."""

    name: str
    arguments: str
    whole: bool = True


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


def cut_in(text: str, names: Collection[str]) -> list[Call] | None:
    """The calls in a JSON object or list that breaks off, the last as far as it is there; None: one is none of these.

    One whose name is still to come is left out.
    """
    texts = [text] if text[0] == "{" else _elements(text)
    calls = [_call(one, names) if is_whole(one) else _cut_call(one) for one in texts]
    known = [call for call in calls if call is not None]
    if len(known) < len(calls) or any(call.name not in (*names, "") for call in known):
        return None
    return [call for call in known if call.name]


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


def _cut_call(text: str) -> Call | None:
    """Its name is empty where that is still to come."""
    if text[0] != "{":
        return None
    members = _members(text)
    written = members.get("name", "")
    name = json.loads(written) if written and is_whole(f"[{written}]") else ""
    arguments = members.get("arguments") or members.get("parameters") or ""
    return Call(name, arguments if arguments[:1] == "{" else "", whole=False) if isinstance(name, str) else None


def _members(text: str) -> dict[str, str]:
    """The JSON text of every member of an object; where it breaks off, of the last value what is there."""
    members: dict[str, str] = {}
    at = _next(text, 1)
    while text[at : at + 1] not in ("}", ""):
        end = _end(text, at)
        start = _next(text, _next(text, end) + 1)
        stop = _end(text, start)
        if start < len(text):
            members[json.loads(text[at:end])] = text[start:stop]
        at = _behind_comma(text, stop)
    return members


def _elements(text: str) -> list[str]:
    """The JSON text of every element of a list; where it breaks off, of the last what is there."""
    elements = []
    at = _next(text, 1)
    while text[at : at + 1] not in ("]", ""):
        end = _end(text, at)
        elements.append(text[at:end])
        at = _behind_comma(text, end)
    return elements


def _end(text: str, at: int) -> int:
    """Of the value that begins there."""
    try:
        return json.JSONDecoder().raw_decode(text, at)[1]
    except ValueError:  # it breaks off
        return len(text)


def _behind_comma(text: str, at: int) -> int:
    at = _next(text, at)
    return _next(text, at + 1) if text[at : at + 1] == "," else at


def _next(text: str, at: int) -> int:
    """Where white space ends."""
    found = _AFTER_SPACE.search(text, at)
    return len(text) if found is None else found.start()
