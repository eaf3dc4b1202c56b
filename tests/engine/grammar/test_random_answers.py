"""Answers of a model of random logits to many schemas: those that end by themselves are valid, says `jsonschema`."""
import asyncio
import json
import random
from collections import Counter
from typing import Any

import jsonschema
from asked import answer, ids_of, structured
from random_runner import random_engine
from random_schemas import random_document

from hamdam.engine import Engine
from hamdam.engine.policy.sequence import Sequence

KEYWORDS: dict[str, dict[str, Any]] = {
    "type": {"type": ["integer", "null"]},
    "enum": {"enum": ["ok", 1, None, [True], {"not": {}}]},
    "const": {"const": {"a": [1, "x"]}},
    "anyOf": {"anyOf": [{"type": "integer"}, {"type": "string", "maxLength": 2}]},
    "allOf": {"allOf": [{"type": "integer", "minimum": 3}, {"maximum": 20}]},
    "oneOf": {"oneOf": [{"type": "integer"}, {"type": "string", "maxLength": 2}]},
    "oneOf, discriminator": {
        "oneOf": [{"$ref": "#/$defs/one"}, {"$ref": "#/$defs/two"}], "discriminator": {"propertyName": "kind"},
        "$defs": {
            "ü": {"const": "two"},
            "one": {"type": "object", "properties": {"kind": {"const": "one"}}, "required": ["kind"]},
            "two": {
                "type": "object", "properties": {"kind": {"const": "two"}, "v": {"$ref": "#/$defs/ü"}},
                "required": ["kind", "v"],
            },
        },
    },
    "$ref, $defs": {"$ref": "#/$defs/a", "$defs": {"a": {"type": "integer"}}},
    "$ref, definitions": {"$ref": "#/definitions/a", "definitions": {"a": {"type": "null"}}, "title": "x"},
    "properties, required": {"type": "object", "properties": {"a": {"type": "null"}}, "required": ["a", "b"]},
    "additionalProperties": {"type": "object", "properties": {"a": {"const": 1}}, "additionalProperties": {"const": 2}},
    "patternProperties": {
        "type": "object", "patternProperties": {"^x": {"const": 1}, "^y": {"const": 2}}, "additionalProperties": False,
    },
    "minProperties": {"type": "object", "additionalProperties": {"const": 1}, "minProperties": 1},
    "minProperties 2": {
        "type": "object", "properties": {"a": {"const": 0}}, "required": ["a"], "additionalProperties": {"const": 1},
        "minProperties": 2,
    },
    "maxProperties": {"type": "object", "additionalProperties": {"const": 1}, "maxProperties": 1},
    "items, minItems, maxItems": {"type": "array", "items": {"type": "boolean"}, "minItems": 2, "maxItems": 3},
    "prefixItems": {"type": "array", "prefixItems": [{"const": 1}, {"const": "b"}], "items": {"type": "null"}},
    "minLength, maxLength": {"type": "string", "minLength": 2, "maxLength": 4},
    "minLength, pattern": {"type": "string", "minLength": 3, "pattern": "^[a-c]+$"},
    "minimum, maximum": {"type": "number", "minimum": 0, "maximum": 1},
    "exclusiveMinimum, exclusiveMaximum": {"type": "integer", "exclusiveMinimum": 3, "exclusiveMaximum": 6},
    "minimum of what is no integer": {"type": "integer", "minimum": 3.5, "maximum": 11.5},
    "multipleOf": {"type": "integer", "multipleOf": 5},
    "multipleOf and bounds": {"type": "number", "multipleOf": 0.5, "minimum": -2, "maximum": 2},
    "no type": {"minLength": 2, "minimum": 5, "minItems": 1, "required": ["a"]},
    **{f"format {name}": {"type": "string", "format": name} for name in ("date", "ipv4", "ipv6", "uuid", "email")},
}


def test_e03_fifty_answers_to_each_keyword_that_is_enforced_are_valid() -> None:
    async def scene() -> None:
        engine = likes_to_close()
        engine.start()
        finished: Counter[str] = Counter()

        async def one(keyword: str, schema: dict[str, Any], seed: int) -> None:
            found = await answer(engine, **structured(json=schema), max_tokens=60, seed=seed)
            assert found.end.reason in ("stop", "length"), (schema, found)
            if found.end.reason == "stop":
                finished[keyword] += 1
                judge(schema).validate(json.loads(found.text))

        await asyncio.gather(*(one(*item, seed) for item in KEYWORDS.items() for seed in range(50)))
        engine.stop()
        assert all(finished[keyword] >= 5 for keyword in KEYWORDS), finished

    asyncio.run(scene())


def judge(schema: dict[str, Any]) -> jsonschema.Draft202012Validator:
    return jsonschema.Draft202012Validator(schema, format_checker=jsonschema.Draft202012Validator.FORMAT_CHECKER)


def likes_to_close(**config: Any) -> Engine:
    def wish(own: Sequence) -> dict[int, float]:
        return dict.fromkeys(closing, 2.0)

    engine = random_engine(wish, max_queued=10_000, **config)
    closing = ids_of(engine, '"}]\\')
    return engine


def test_three_hundred_generated_schemas_are_answered_validly_by_a_model_of_random_logits() -> None:
    drawn = random.Random(0)
    schemas = [random_document(drawn) for _ in range(300)]

    async def scene() -> None:
        engine = likes_to_close()
        engine.start()
        ends: Counter[str] = Counter()

        async def one(seed: int, schema: dict[str, Any]) -> None:
            found = await answer(engine, **structured(json=schema), max_tokens=100, seed=seed)
            ends[found.end.reason] += 1
            if found.end.reason == "stop":
                jsonschema.Draft202012Validator(schema).validate(json.loads(found.text))

        await asyncio.gather(*(one(*item) for item in enumerate(schemas)))
        engine.stop()
        assert ends.keys() <= {"stop", "length"}, ends  # "failed" is a mask that was empty
        assert ends["stop"] > 250

    asyncio.run(scene())
