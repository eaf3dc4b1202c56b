"""Tools: what a client offers the model to call, read into the engine's Tools, or refused by a field's name.

    /v1         tools: [{type: "function", function: {name, description?, parameters?, strict?}}]
    WebSocket   tools: [{type: "function", name, description?, parameters?, strict?}]

A refusal names the tool, too: one bad one among twenty is to be found. Whether a schema can be held to, where `strict`
asks for that, the engine says.
"""
import json
import re
from collections.abc import Callable
from typing import Any

from hamdam.engine import Tool

from .errors import ApiError

MAX_TOOLS = 128
MAX_SIZE = 256 << 10  # bytes of all of them
_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_FIELDS = ("name", "description", "parameters", "strict")


def read_tools(given: object, *, part: str | None = None) -> tuple[Tool, ...]:
    """part: the name of the object in a tool that holds what belongs to its function; None: they are its own.

    Raises ApiError.
    """
    if not isinstance(given, list) or len(given) > MAX_TOOLS:
        raise _invalid("tools", f"A list of at most {MAX_TOOLS} tools is needed.")
    tools = tuple(_tool(one, f"tools[{index}]", part) for index, one in enumerate(given))
    seen: set[str] = set()
    for index, tool in enumerate(tools):
        if tool.name in seen:
            raise _invalid(f"tools[{index}]{_inner(part)}.name", f"There are two tools `{tool.name}`.")
        seen.add(tool.name)
    if len(json.dumps(given, ensure_ascii=False).encode("utf-8", "replace")) > MAX_SIZE:
        raise ApiError("too_large", f"All tools together may have at most {MAX_SIZE} bytes.", param="tools")
    return tools


def choose(
    tools: tuple[Tool, ...], choice: object, *, part: str | None = None
) -> tuple[tuple[Tool, ...], tuple[str, ...]]:
    """The tools that an answer may call, and the names of those of which it must call one. part: as above.

    Raises ApiError.
    """
    if choice == "none":
        return (), ()
    if choice in (None, "auto"):
        return tools, ()
    names = tuple(tool.name for tool in tools)
    if choice == "required" and tools:
        return tools, names
    if not isinstance(choice, dict) or choice.get("type") != "function":
        raise _invalid("tool_choice", "One of none, auto, required (where there are tools), or a function's name.")
    function = choice if part is None else choice.get(part)
    name = function.get("name") if isinstance(function, dict) else None
    if name not in names:
        raise _invalid("tool_choice", "There is no such tool.")
    return tools, (name,)


def _tool(given: object, where: str, part: str | None) -> Tool:
    if not isinstance(given, dict):
        raise _invalid(where, "An object is needed.")
    if given.get("type") != "function":
        raise _invalid(f"{where}.type", "This server has tools of type `function` only.")
    function: Any = {name: value for name, value in given.items() if name != "type"}
    if part is not None:
        for name in function.keys() - {part}:
            raise _invalid(f"{where}.{name}", "There is no such field here.")
        where, function = f"{where}.{part}", function.get(part)
        if not isinstance(function, dict):
            raise _invalid(where, "An object is needed.")
    name = name_of(function.get("name"), f"{where}.name")
    refuse = _refusals(where, name)
    for field in function:
        if field not in _FIELDS:
            raise refuse(f".{field}", "there is no such field here")
    if not isinstance(function.get("description") or "", str):
        raise refuse(".description", "a text is needed")
    strict = function.get("strict") or False
    if not isinstance(strict, bool):
        raise refuse(".strict", "true or false is needed")
    _check_parameters(function.get("parameters"), refuse)
    return Tool(name, function.get("description"), function.get("parameters"), strict)


def _check_parameters(given: object, refuse: Callable[[str, str], ApiError]) -> None:
    """That it is a schema of an object; the words in it are for the model, which takes them as they are."""
    if given is None:
        return
    if not isinstance(given, dict):
        raise refuse(".parameters", "a JSON schema is needed, as an object")
    if given.get("type", "object") != "object":
        raise refuse(".parameters.type", "arguments are an object")
    properties, required = given.get("properties", {}), given.get("required", [])
    if not isinstance(properties, dict):
        raise refuse(".parameters.properties", "an object of JSON schemas is needed")
    for name, schema in properties.items():
        if not isinstance(schema, dict | bool):
            raise refuse(f".parameters.properties.{name}", "a JSON schema is needed")
    if not isinstance(required, list) or not all(isinstance(name, str) for name in required):
        raise refuse(".parameters.required", "a list of names is needed")


def _refusals(where: str, tool: str) -> Callable[[str, str], ApiError]:
    return lambda field, why: _invalid(where + field, f"The tool `{tool}`: {why}.")


def _inner(part: str | None) -> str:
    return f".{part}" if part else ""


def _invalid(param: str, why: str) -> ApiError:
    return ApiError("invalid_field", why, param=param[:128])


def name_of(given: object, where: str) -> str:
    """A tool's name. Raises ApiError."""
    if isinstance(given, str) and _NAME.fullmatch(given):
        return given
    raise _invalid(where, "1 to 64 letters, digits, _ and - are needed.")


def arguments_of(arguments: object, where: str) -> str:
    """The text of a call's arguments as a client sends them back. Raises ApiError."""
    if isinstance(arguments, str):
        try:
            if isinstance(json.loads(arguments or "{}", parse_constant=_no_number), dict):
                return arguments or "{}"
        except (ValueError, RecursionError):
            pass
    raise _invalid(where, "The text of a JSON object is needed. A call that was cut with its answer has none.")


def _no_number(name: str) -> None:
    """NaN and the infinities, which Python reads and JSON does not have."""
    raise ValueError(name)
