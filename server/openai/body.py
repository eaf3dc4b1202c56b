"""The body of a chat completion, read into a Chat and SamplingParams, or refused by a field's name. No HTTP here.

Three kinds of fields: those we do, those that change nothing as long as they hold nothing, and all others, which are
refused: an option that is silently ignored gives a wrong answer that looks like a right one.
"""
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

import msgspec

from hamdam.engine import Chat, Engine, SamplingParams

from ..chat.refusals import engine_refusals
from ..errors import ApiError
from ..text_format import read_text_format
from ..tools import choose, read_tools
from .messages import Neutral, invalid, read_messages, refuse_others

SAMPLING = frozenset(field.name for field in fields(SamplingParams))
ANYTHING = frozenset({"metadata", "safety_identifier", "prompt_cache_key", "prompt_cache_retention"})  # notes and hints
NEUTRAL: Neutral = {  # the values that ask for nothing; null is one everywhere
    "audio": (),
    "function_call": ("none", "auto"),
    "functions": ([],),
    "modalities": (["text"],),
    "prediction": (),
    "reasoning_effort": (),
    "service_tier": ("auto", "default"),
    "store": (False,),
    "verbosity": (),
    "web_search_options": (),
}
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
        raise invalid("user", f"A text of at most {MAX_USER} characters.")
    tools, parallel = read_tools(given.pop("tools", []), part="function"), given.pop("parallel_tool_calls", True)
    tools, must = choose(tools, given.pop("tool_choice", None), part="function")
    parallel = _flag(parallel, "parallel_tool_calls")
    chat = Chat(tuple(read_messages(given.pop("messages", None))), False, tools, parallel, must)
    stream = _flag(given.pop("stream", False), "stream")
    include_usage = _include_usage(given.pop("stream_options", {}))
    form = read_text_format(given.pop(_FORM, None), _FORM, part="json_schema")
    sampling = {name: given.pop(name) for name in list(given) if name in SAMPLING or name == _NEW_MAX}
    params = _params(engine, form.added_to(sampling, _FORM), form.names)
    if stream and params.prompt_logprobs is not None:
        raise invalid("prompt_logprobs", "Not of an answer that streams.")
    refuse_others(given, NEUTRAL, "")
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
        if "max_tokens" in given:
            raise invalid(_NEW_MAX, "Not together with `max_tokens`.")
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
        raise invalid("stream_options", "An object is needed.")
    for name in options.keys() - {"include_usage", "include_obfuscation"}:
        raise invalid(f"stream_options.{name}", "There is no such option.")
    return _flag(options.get("include_usage") or False, "stream_options.include_usage")


def _flag(value: object, name: str) -> bool:
    if not isinstance(value, bool):
        raise invalid(name, "true or false is needed.")
    return value
