"""The messages of a chat completion, read into ChatMessages, or refused by a field's name. No other field."""
from collections.abc import Mapping
from typing import Any

from hamdam.engine import ChatMessage, ToolCall

from ..errors import ApiError
from ..tools import arguments_of, name_of

ROLES = ("system", "developer", "user", "assistant", "tool")
MAX_MESSAGES = 20_000
MAX_CALLS = 128  # of one message
MAX_ID = 128  # characters
_OF_FUNCTION = ("name", "arguments", "parsed_arguments")  # the last is the official client's own reading of them
Neutral = Mapping[str, tuple[object, ...]]
NEUTRAL: Neutral = {  # the values that ask for nothing; null is one everywhere
    "annotations": ([],),
    "audio": (),
    "function_call": (),
    "refusal": (),
    "tool_calls": ([],),
    "reasoning_content": ("",),
}


def read_messages(given: object) -> list[ChatMessage]:
    """Raises ApiError."""
    if not isinstance(given, list) or not 0 < len(given) <= MAX_MESSAGES:
        raise invalid("messages", f"A list of 1 to {MAX_MESSAGES} messages is needed.")
    messages: list[ChatMessage] = []
    waiting: set[str] = set()  # the ids of calls that were just made and have no result yet
    for index, one in enumerate(given):
        message = _message(one, f"messages[{index}]")
        if message.tool_call_id is None:
            waiting = {call.id for call in message.tool_calls}
        elif message.tool_call_id not in waiting:
            why = "The answer before it makes no such call, or it has its result already."
            raise invalid(f"messages[{index}].tool_call_id", why)
        else:
            waiting.remove(message.tool_call_id)
        messages.append(message)
    return messages


def _message(given: object, where: str) -> ChatMessage:
    if not isinstance(given, dict):
        raise invalid(where, "An object is needed.")
    role = given.get("role")
    if role not in ROLES:
        raise invalid(f"{where}.role", f"One of {', '.join(ROLES)}.")
    others = {k: v for k, v in given.items() if k not in ("role", "content") and v is not None}
    _text(others.pop("name", ""), f"{where}.name")  # a note: the models' templates have no place for it
    reasoning, call_id = "", None
    calls: tuple[ToolCall, ...] = ()
    if role == "assistant":
        others.pop("parsed", None)  # the official client's own reading of the content
        reasoning = _text(others.pop("reasoning_content", ""), f"{where}.reasoning_content")
        calls = _calls(others.pop("tool_calls", []), f"{where}.tool_calls")
    elif role == "tool":
        call_id = _id(others.pop("tool_call_id", None), f"{where}.tool_call_id")
    refuse_others(others, NEUTRAL, f"{where}.")
    content = _content(given.get("content"), f"{where}.content", optional=bool(calls))
    return ChatMessage(role, content, reasoning=reasoning, tool_calls=calls, tool_call_id=call_id)


def _content(given: object, where: str, *, optional: bool) -> str | tuple[str, ...]:
    if isinstance(given, str) or (given is None and optional):
        return given or ""
    if not isinstance(given, list) or not given:
        raise invalid(where, "A text, or a list of text parts, is needed.")
    return tuple(_part(part, f"{where}[{index}]") for index, part in enumerate(given))


def _part(given: object, where: str) -> str:
    if not isinstance(given, dict):
        raise invalid(where, "An object is needed.")
    if given.get("type") != "text":
        kind = given.get("type")
        named = kind if isinstance(kind, str) and kind.isascii() and kind.isidentifier() and len(kind) <= 40 else "this"
        raise invalid(f"{where}.type", f"The model takes text only, {named} is no text.")
    if given.keys() != {"type", "text"} or not isinstance(given["text"], str):
        raise invalid(where, "A text part has `type` and `text`.")
    return given["text"]


def _calls(given: object, where: str) -> tuple[ToolCall, ...]:
    if not isinstance(given, list) or len(given) > MAX_CALLS:
        raise invalid(where, f"A list of at most {MAX_CALLS} calls is needed.")
    calls = tuple(_call(one, f"{where}[{index}]") for index, one in enumerate(given))
    seen: set[str] = set()
    for index, call in enumerate(calls):
        if call.id in seen:
            raise invalid(f"{where}[{index}].id", "Another call of this message has this id.")
        seen.add(call.id)
    return calls


def _call(given: object, where: str) -> ToolCall:
    if not isinstance(given, dict):
        raise invalid(where, "An object is needed.")
    if given.get("type", "function") != "function":
        raise invalid(f"{where}.type", "Only `function` is known.")
    refuse_others({k: v for k, v in given.items() if k not in ("id", "type", "function", "index")}, {}, f"{where}.")
    function = given.get("function")
    if not isinstance(function, dict):
        raise invalid(f"{where}.function", "An object is needed.")
    refuse_others({k: v for k, v in function.items() if k not in _OF_FUNCTION}, {}, f"{where}.function.")
    name = name_of(function.get("name"), f"{where}.function.name")
    arguments = arguments_of(function.get("arguments"), f"{where}.function.arguments")
    return ToolCall(_id(given.get("id"), f"{where}.id"), name, arguments)


def _id(given: object, where: str) -> str:
    if isinstance(given, str) and given.isprintable() and 0 < len(given) <= MAX_ID:
        return given
    raise invalid(where, f"A text of 1 to {MAX_ID} characters is needed.")


def _text(given: object, where: str) -> str:
    if not isinstance(given, str):
        raise invalid(where, "A text is needed.")
    return given


def refuse_others(given: Mapping[str, Any], neutral: Neutral, where: str) -> None:
    """What is left: it is there and asks for nothing, or it is refused."""
    for name, value in given.items():
        if name not in neutral:
            raise invalid(where + name, "There is no such field here.")
        if value not in neutral[name]:
            raise invalid(where + name, "This server does not do that.")


def invalid(param: str, why: str) -> ApiError:
    return ApiError("invalid_field", why, param=param[:128])
