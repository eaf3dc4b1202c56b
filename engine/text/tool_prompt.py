"""Tools in a prompt: what a template is given of them; and words of ours, for a template that knows none. No stream."""
import hashlib
import json
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from ..chat import ChatMessage, Tool, ToolCall
from .call_format import HERMES, Call, CallFormat
from .tool_calls import CallParser

PROBE = Tool("Qfunction", "Qdescription", {"type": "object", "properties": {"probed": {"type": "string"}}})
"""By which it is found out how a template speaks of tools."""
NO_PARAMETERS: Mapping[str, Any] = {"type": "object", "properties": {}}
_INSTRUCTIONS = """You can call functions. To call one, write its name and its arguments as JSON between tags:
<tool_call>
{"name": "…", "arguments": {…}}
</tool_call>
What it gives comes back between <tool_response> and </tool_response>. Where you need no function, just answer.
The functions, with the JSON schema of their arguments:
"""


def tool_variables(tools: Sequence[Tool]) -> list[dict[str, Any]]:
    """As templates expect it: OpenAI's shape."""
    return [{"type": "function", "function": _function(tool)} for tool in tools]


def call_variables(call: ToolCall) -> dict[str, Any]:
    """A call in the same shape, but for its arguments, which are an object."""
    function = {"name": call.name, "arguments": json.loads(call.arguments)}
    return {"id": short_id(call.id), "type": "function", "function": function}


def short_id(call_id: str) -> str:
    """Nine letters and digits, which is what Mistral's templates insist on. A client's own text never gets there."""
    return hashlib.sha256(call_id.encode()).hexdigest()[:9]


def in_words(messages: Sequence[ChatMessage], tools: Sequence[Tool]) -> list[ChatMessage]:
    """The conversation without tools: they are described in a system message, calls and results are texts."""
    said: list[ChatMessage] = []
    results: list[str] = []
    for message in messages:
        if message.role == "tool":
            results.append(f"<tool_response>\n{text_of(message)}\n</tool_response>")
            continue
        said += _results(results)
        results = []
        said.append(_call_in_words(message) if message.tool_calls else message)
    said += _results(results)
    if not tools:
        return said
    schemas = "\n".join(json.dumps(_function(tool), ensure_ascii=False) for tool in tools)
    return [*said, ChatMessage("system", _INSTRUCTIONS + schemas)]


def one_by_one(messages: Sequence[ChatMessage]) -> list[ChatMessage]:
    """Each call in a message of its own, its result behind it: of several some templates write the first alone."""
    said: list[ChatMessage] = []
    rest = deque(messages)
    while rest:
        message = rest.popleft()
        if len(message.tool_calls) < 2:
            said.append(message)
            continue
        results = []
        while rest and rest[0].role == "tool":
            results.append(rest.popleft())
        for call in message.tool_calls:
            said.append(replace(message, tool_calls=(call,), token_ids=None))
            said += [result for result in results if result.tool_call_id == call.id]
            message = replace(message, content="", reasoning="")
        known = {call.id for call in message.tool_calls}
        said += [result for result in results if result.tool_call_id not in known]
    return said


def read_back(form: CallFormat, text: str) -> list[Call]:
    """The calls of the probe in what a template wrote."""
    parser = CallParser(form, {PROBE.name})
    return [part for part in (*parser.push(text), *parser.finish()) if isinstance(part, Call)]


def text_of(message: ChatMessage) -> str:
    return message.content if isinstance(message.content, str) else "".join(message.content)


def _function(tool: Tool) -> dict[str, Any]:
    parameters = dict(tool.parameters if tool.parameters is not None else NO_PARAMETERS)
    return {"name": tool.name, "description": tool.description or "", "parameters": parameters}


def _results(texts: list[str]) -> list[ChatMessage]:
    """One message of the user's: roles that alternate are all that some templates take."""
    return [ChatMessage("user", "\n".join(texts))] if texts else []


def _call_in_words(message: ChatMessage) -> ChatMessage:
    texts = [text_of(message)] if text_of(message) else []
    for call in message.tool_calls:
        told = json.dumps({"name": call.name, "arguments": json.loads(call.arguments)}, ensure_ascii=False)
        texts.append(f"{HERMES.opener}\n{told}\n{HERMES.closer}")
    return replace(message, content="\n".join(texts), tool_calls=())
