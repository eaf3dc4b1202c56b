"""A tool that tells the weather, as clients offer it and as a model calls it, at either door. Not a test."""
from typing import Any

FUNCTION = {
    "name": "get_weather",
    "description": "The weather somewhere",
    "parameters": {"type": "object", "properties": {"place": {"type": "string"}}, "required": ["place"]},
}
V1_TOOL = {"type": "function", "function": FUNCTION}
TOOL = {"type": "function"} | FUNCTION
"""As the socket has it."""
ARGUMENTS = '{"place": "تهران\u200c"}'
CALL = f'<tool_call>\n{{"name": "get_weather", "arguments": {ARGUMENTS}}}\n</tool_call>'


def calls_of(run: Any, kind: str = "done") -> list[dict[str, Any]]:
    """The socket's events of the calls that a run makes."""
    return [event for event in run.events if event["type"] == f"response.function_call_arguments.{kind}"]


def output(call: dict[str, Any], text: str) -> dict[str, str]:
    """The socket's input item with what came of a call."""
    return {"type": "function_call_output", "call_id": call["call_id"], "output": text}
