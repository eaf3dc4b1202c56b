"""The body of a chat completion, read into a Chat and SamplingParams, or refused by a field's name. No HTTP here.

Three kinds of fields: those we do, those that change nothing as long as they hold nothing, and all others, which are
refused: an option that is silently ignored gives a wrong answer that looks like a right one.
"""
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

import msgspec

from hamdam.engine import Chat, ChatMessage, Engine, SamplingParams

from ..chat.refusals import engine_refusals
from ..errors import ApiError
from ..text_format import read_text_format

SAMPLING = frozenset(field.name for field in fields(SamplingParams))
ANYTHING = frozenset({"metadata", "safety_identifier", "prompt_cache_key", "prompt_cache_retention"})  # notes and hints
NEUTRAL: dict[str, tuple[object, ...]] = {  # the values that ask for nothing; null is one everywhere
    "audio": (),
    "function_call": ("none", "auto"),
    "functions": ([],),
    "modalities": (["text"],),
    "parallel_tool_calls": (True, False),
    "prediction": (),
    "reasoning_effort": (),
    "service_tier": ("auto", "default"),
    "store": (False,),
    "tool_choice": ("none", "auto"),
    "tools": ([],),
    "verbosity": (),
    "web_search_options": (),
}
NEUTRAL_IN_MESSAGE: dict[str, tuple[object, ...]] = {
    "annotations": ([],),
    "audio": (),
    "function_call": (),
    "refusal": (),
    "tool_calls": ([],),
}
ROLES = ("system", "developer", "user", "assistant")
MAX_MESSAGES = 20_000
MAX_USER = 512  # characters


@dataclass(frozen=True, slots=True)
class Asked:
    chat: Chat
    params: SamplingParams
    names: Mapping[str, str]  # of parts of params, as the client called them
    stream: bool
    include_usage: bool
    user: str | None


def read_body(body: bytes, engine: Engine) -> Asked:
    """Raises ApiError. Takes a while for megabytes: called off the event loop."""
    given = _object(body)
    for name in [name for name, value in given.items() if value is None or name in ANYTHING]:
        del given[name]
    model, user = given.pop("model", "default"), given.pop("user", None)
    if model not in ("default", engine.model_name):
        raise ApiError("model_not_found", "This server has no such model.", param="model")
    if user is not None and not (isinstance(user, str) and len(user) <= MAX_USER):
        raise _invalid("user", f"A text of at most {MAX_USER} characters.")
    chat = Chat(tuple(_messages(given.pop("messages", None))))
    stream = _flag(given.pop("stream", False), "stream")
    include_usage = _include_usage(given.pop("stream_options", {}))
    form = read_text_format(given.pop(_FORM, None), _FORM, part="json_schema")
    sampling = {name: given.pop(name) for name in list(given) if name in SAMPLING or name == _NEW_MAX}
    params = _params(engine, form.added_to(sampling, _FORM), form.names)
    _refuse_others(given, NEUTRAL, "")
    return Asked(chat, params, form.names, stream, include_usage, user)


_NEW_MAX = "max_completion_tokens"
_FORM = "response_format"


def _object(body: bytes) -> dict[str, Any]:
    try:
        given = msgspec.json.decode(body)
    except (msgspec.DecodeError, RecursionError) as error:
        raise ApiError("invalid_json", "The body is not JSON, or it is nested too deeply.") from error
    if not isinstance(given, dict):
        raise ApiError("invalid_json", "The body is not a JSON object.")
    return given


def _params(engine: Engine, given: dict[str, Any], names: Mapping[str, str]) -> SamplingParams:
    """`max_completion_tokens` is the later name of `max_tokens`; a refusal speaks of the one that was sent."""
    renamed = _NEW_MAX in given
    if renamed:
        given["max_tokens"] = given.pop(_NEW_MAX)
    try:
        with engine_refusals(names=names):
            return engine.sampling_params(given)
    except ApiError as error:
        if renamed and error.param == "max_tokens":
            error.param = _NEW_MAX
        raise


def _include_usage(options: object) -> bool:
    if not isinstance(options, dict):
        raise _invalid("stream_options", "An object is needed.")
    for name in options.keys() - {"include_usage", "include_obfuscation"}:
        raise _invalid(f"stream_options.{name}", "There is no such option.")
    return _flag(options.get("include_usage") or False, "stream_options.include_usage")


def _messages(given: object) -> list[ChatMessage]:
    if not isinstance(given, list) or not 0 < len(given) <= MAX_MESSAGES:
        raise _invalid("messages", f"A list of 1 to {MAX_MESSAGES} messages is needed.")
    return [_message(message, f"messages[{index}]") for index, message in enumerate(given)]


def _message(given: object, where: str) -> ChatMessage:
    if not isinstance(given, dict):
        raise _invalid(where, "An object is needed.")
    role, content = given.get("role"), given.get("content")
    if role not in ROLES:
        raise _invalid(f"{where}.role", f"One of {', '.join(ROLES)}.")
    others = {k: v for k, v in given.items() if k not in ("role", "content", "name") and v is not None}
    reasoning = others.pop("reasoning_content", "") if role == "assistant" else ""
    if not isinstance(reasoning, str):
        raise _invalid(f"{where}.reasoning_content", "A text is needed.")
    _refuse_others(others, NEUTRAL_IN_MESSAGE, f"{where}.")
    if isinstance(content, str):
        return ChatMessage(role, content, reasoning=reasoning)
    if not isinstance(content, list) or not content:
        raise _invalid(f"{where}.content", "A text, or a list of text parts, is needed.")
    parts = tuple(_part(part, f"{where}.content[{index}]") for index, part in enumerate(content))
    return ChatMessage(role, parts, reasoning=reasoning)


def _part(given: object, where: str) -> str:
    if not isinstance(given, dict):
        raise _invalid(where, "An object is needed.")
    if given.get("type") != "text":
        kind = given.get("type")
        named = kind if isinstance(kind, str) and kind.isascii() and kind.isidentifier() and len(kind) <= 40 else "this"
        raise _invalid(f"{where}.type", f"The model takes text only, {named} is no text.")
    if given.keys() != {"type", "text"} or not isinstance(given["text"], str):
        raise _invalid(where, "A text part has `type` and `text`.")
    return given["text"]


def _refuse_others(given: dict[str, Any], neutral: dict[str, tuple[object, ...]], where: str) -> None:
    for name, value in given.items():
        if name not in neutral:
            raise _invalid(where + name, "There is no such field here.")
        if value not in neutral[name]:
            raise _invalid(where + name, "This server does not do that.")


def _flag(value: object, name: str) -> bool:
    if not isinstance(value, bool):
        raise _invalid(name, "true or false is needed.")
    return value


def _invalid(param: str, why: str) -> ApiError:
    return ApiError("invalid_field", why, param=param[:128])
