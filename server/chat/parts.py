"""Parts: what a message consists of beside its text, as the JSON of its row. No events here.

A question's parts are its texts. An answer's are its reasoning; what it says is its `text`.
"""
from collections.abc import Sequence
from typing import Any

Parts = Sequence[dict[str, Any]]


def texts_of(parts: Parts) -> tuple[str, ...]:
    return tuple(part["text"] for part in parts if part["type"] == "input_text")


def reasoning_of(parts: Parts) -> str:
    return "".join(part["text"] for part in parts if part["type"] == "reasoning")


def answer_parts(reasoning: str) -> list[dict[str, Any]]:
    return [{"type": "reasoning", "text": reasoning}] if reasoning else []
