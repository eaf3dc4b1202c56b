"""What each sampling parameter may be, as JSON Schema, for who describes it. What is refused is SamplingParams' own."""
from collections.abc import Mapping
from typing import Any

from .sampling_params import (
    MAX_ALLOWED,
    MAX_BAD_WORDS,
    MAX_BIASES,
    MAX_N,
    MAX_STOP_IDS,
    MAX_STOP_LENGTH,
    MAX_STOP_STRINGS,
    MAX_TOP_LOGPROBS,
)
from .structured_outputs import MAX_CHOICES

Schema = Mapping[str, Any]
_TEXT: Schema = {"type": "string", "minLength": 1}


def _number(low: float, high: float) -> Schema:
    return {"type": "number", "minimum": low, "maximum": high}


def _integer(low: int, high: int | None = None) -> Schema:
    return {"type": "integer", "minimum": low} | ({} if high is None else {"maximum": high})


def _texts(most: int) -> Schema:
    one = {"type": "string", "minLength": 1, "maxLength": MAX_STOP_LENGTH}
    return {"anyOf": [one, {"type": "array", "maxItems": most, "items": one}]}


def _ids(most: int, least: int = 0) -> Schema:
    return {"type": "array", "minItems": least, "maxItems": most, "items": _integer(0)}


SAMPLING_SCHEMA: Mapping[str, Schema] = {
    "temperature": _number(0, 2),
    "top_p": {"type": "number", "exclusiveMinimum": 0, "maximum": 1},
    "top_k": _integer(0),
    "min_p": _number(0, 1),
    "seed": {"type": "integer"},
    "presence_penalty": _number(-2, 2),
    "frequency_penalty": _number(-2, 2),
    "repetition_penalty": _number(0.01, 10),
    "logit_bias": {"type": "object", "maxProperties": MAX_BIASES, "additionalProperties": _number(-100, 100)},
    "allowed_token_ids": _ids(MAX_ALLOWED, 1),
    "n": _integer(1, MAX_N),
    "max_tokens": _integer(1),
    "min_tokens": _integer(0),
    "ignore_eos": {"type": "boolean"},
    "stop": _texts(MAX_STOP_STRINGS),
    "stop_token_ids": _ids(MAX_STOP_IDS),
    "bad_words": _texts(MAX_BAD_WORDS),
    "include_stop_str": {"type": "boolean"},
    "logprobs": {"type": "boolean"},
    "top_logprobs": _integer(0, MAX_TOP_LOGPROBS),
    "prompt_logprobs": _integer(0, MAX_TOP_LOGPROBS),
    "thinking_budget": _integer(0),
    "structured_outputs": {
        "type": "object",
        "minProperties": 1,
        "maxProperties": 1,
        "additionalProperties": False,
        "properties": {
            "json": {"type": "object", "description": "A JSON schema"},
            "regex": {
                "type": "string", "minLength": 1, "description": "Matched by all of the answer; \\d of any script"
            },
            "choice": {"type": "array", "minItems": 1, "maxItems": MAX_CHOICES, "items": _TEXT},
            "grammar": {"type": "string", "minLength": 1, "description": "Lark, as llguidance has it"},
        },
    },
}
"""Vocabularies bound ids too. `top_logprobs` needs `logprobs`; max_tokens beyond the context are clipped."""
