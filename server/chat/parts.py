"""Parts: what a message consists of beside its text, as the JSON of its row. Rows are tables.py's. No events here.

A question's parts are its texts. An answer's are its reasoning and the calls that it makes; what it says is its `text`.
A message of role `tool` has what came of calls.
"""
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from hamdam.engine import ToolCall

from .client_events import CallOutput
from .protocol import FunctionCall

Parts = Sequence[dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Answered:
    """What an answer has beside its text."""

    reasoning: str = ""
    calls: tuple[ToolCall, ...] = ()

    @classmethod
    def of(cls, parts: Parts) -> "Answered":
        calls = [part for part in parts if part["type"] == "function_call"]
        reasoning = "".join(part["text"] for part in parts if part["type"] == "reasoning")
        return cls(reasoning, tuple(ToolCall(one["call_id"], one["name"], one["arguments"]) for one in calls))

    @property
    def parts(self) -> list[dict[str, Any]]:
        thought = [{"type": "reasoning", "text": self.reasoning}] if self.reasoning else []
        return thought + [
            {"type": "function_call", "call_id": call.id, "name": call.name, "arguments": call.arguments}
            for call in self.calls
        ]

    @property
    def function_calls(self) -> list[FunctionCall]:
        return [FunctionCall(call.id, call.name, call.arguments) for call in self.calls]


ONLY_TEXT = Answered()


def texts_of(parts: Parts) -> tuple[str, ...]:
    return tuple(part["text"] for part in parts if part["type"] == "input_text")


def outputs_of(parts: Parts) -> tuple[CallOutput, ...]:
    found = [part for part in parts if part["type"] == "function_call_output"]
    return tuple(CallOutput(call_id=part["call_id"], output=part["output"]) for part in found)


def question_parts(texts: Iterable[str], outputs: Iterable[CallOutput]) -> list[dict[str, Any]]:
    said = [{"type": "input_text", "text": text} for text in texts]
    return said + [{"type": "function_call_output", "call_id": one.call_id, "output": one.output} for one in outputs]
