"""What is described of sampling parameters holds: a value at a bound is taken, one beyond is refused by its name."""
from dataclasses import fields
from typing import Any

import pytest

from hamdam.engine.errors import InvalidField
from hamdam.engine.policy.sampling_params import SamplingParams
from hamdam.engine.policy.sampling_schema import SAMPLING_SCHEMA

STEP = 0.001  # less than any bound


def within(schema: dict[str, Any]) -> list[Any]:
    """Values at the bounds."""
    match schema.get("type"):
        case "boolean":
            return [True, False]
        case "number" | "integer":
            least = schema["exclusiveMinimum"] + STEP if "exclusiveMinimum" in schema else schema.get("minimum", 5)
            return [least, schema.get("maximum", 5)]
        case "string":
            return ["x", "x" * schema.get("maxLength", 9)]
        case "array":
            item = within(schema["items"])[0]
            return [[item] * schema.get("minItems", 0), [item] * schema["maxItems"]]
        case "object" if "additionalProperties" not in schema:
            return [{}]
        case "object" if "properties" in schema:  # one of them
            return [{name: value} for name, one in schema["properties"].items() for value in within(one)]
        case "object":
            values = within(schema["additionalProperties"])
            return [{str(id): value for id in range(schema["maxProperties"])} for value in values]
    return [value for one in schema["anyOf"] for value in within(one)]


def beyond(schema: dict[str, Any]) -> list[Any]:
    match schema.get("type"):
        case "boolean":
            return [1, "true"]
        case "number" | "integer":
            step = 1 if schema["type"] == "integer" else STEP
            low = [schema["exclusiveMinimum"]] if "exclusiveMinimum" in schema else []
            low += [schema["minimum"] - step] if "minimum" in schema else []
            return [*low, *([schema["maximum"] + step] if "maximum" in schema else []), "5", True]
        case "string":
            return ["", 5, *(["x" * (schema["maxLength"] + 1)] if "maxLength" in schema else [])]
        case "array":
            item = within(schema["items"])[0]
            short = [[item] * (schema["minItems"] - 1)] if schema.get("minItems") else []
            return [*short, [item] * (schema["maxItems"] + 1), *([one] for one in beyond(schema["items"]))]
        case "object" if "additionalProperties" not in schema:
            return ["x", []]
        case "object" if "properties" in schema:
            wrong = [{name: value} for name, one in schema["properties"].items() for value in beyond(one)]
            return [*wrong, {}, {"other": "x"}, {name: within(one)[0] for name, one in schema["properties"].items()}]
        case "object":
            most = {str(id): 0 for id in range(schema["maxProperties"] + 1)}
            return [most, *({"5": one} for one in beyond(schema["additionalProperties"]))]
    return [value for one in schema["anyOf"] for value in beyond(one)]


@pytest.mark.parametrize("name", SAMPLING_SCHEMA)
def test_a_bound_is_taken_and_what_lies_beyond_is_refused_by_name(name: str) -> None:
    also = {"logprobs": True} if name == "top_logprobs" else {}
    for value in within(dict(SAMPLING_SCHEMA[name])):
        SamplingParams.from_dict({name: value} | also)
    for value in beyond(dict(SAMPLING_SCHEMA[name])):
        with pytest.raises(InvalidField) as refusal:
            SamplingParams.from_dict({name: value} | also)
        assert refusal.value.name.partition(".")[0] == name, value


def test_nothing_is_described_that_there_is_not() -> None:
    assert SAMPLING_SCHEMA.keys() <= {field.name for field in fields(SamplingParams)}
