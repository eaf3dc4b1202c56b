"""RandomSchemas: JSON schemas of the keywords that are enforced, drawn and mixed at random. Not a test."""
import random as randomness
from typing import Any

NAMES = ("a", "b", "name", "größe", "x y", 'q"', "\\", "n\nl", "🐈")
WORDS = ("ok", "okay", "🐈", "", 'say "hi"', "tab\t", "\\n")
PATTERNS = ("^[a-f]{1,4}$", "^a|b$", "[0-9]", "^(x|yy)*$", "^\\d{2}-\\w$", "^[^aeiou\"]{0,3}$", "é")


def random_schema(random: randomness.Random, depth: int = 3) -> dict[str, Any]:
    kinds = [_integer, _number, _string, _enum, _const, _plain]
    if depth:
        kinds += [_object, _object, _object, _array, _array, _any_of, _one_of, _all_of, _map]
    schema = random.choice(kinds)(random, depth)
    if random.random() < 0.2:
        schema |= {"title": "a title", "description": "minLength", "default": {"not": 1}, "examples": [{"if": {}}]}
    return schema


def random_document(random: randomness.Random) -> dict[str, Any]:
    """A schema; or a tree of one, which may end at every node."""
    if random.random() < 0.8:
        return random_schema(random)
    branches = {"type": "array", "items": {"$ref": "#/$defs/node"}, "maxItems": random.randint(1, 2)}
    node = {
        "type": "object", "properties": {"v": {"$ref": "#/$defs/leaf"}, "of": branches}, "required": ["v"],
        "additionalProperties": False,
    }  # fmt: skip
    return {"$ref": "#/$defs/node", "$defs": {"leaf": random_schema(random, 1), "node": node}}


def _maybe(random: randomness.Random, **keywords: Any) -> dict[str, Any]:
    return {name: value for name, value in keywords.items() if random.random() < 0.5}


def _integer(random: randomness.Random, _: int) -> dict[str, Any]:
    low = random.randint(-1000, 1000)
    schema = {"type": "integer", **_maybe(random, minimum=low, maximum=low + random.randint(20, 5000))}
    return schema | (_maybe(random, multipleOf=random.choice([2, 5, 7])) if random.random() < 0.5 else {})


def _number(random: randomness.Random, _: int) -> dict[str, Any]:
    low = random.randint(-50, 50) / random.choice([1, 2, 4, 10])
    ends = random.choice([("minimum", "maximum"), ("exclusiveMinimum", "exclusiveMaximum")])
    values = dict(zip(ends, (low, low + random.choice([1, 2.5, 100])), strict=True))
    schema = {"type": "number", **_maybe(random, **values)}
    return schema | (_maybe(random, multipleOf=random.choice([0.5, 0.25, 2])) if random.random() < 0.3 else {})


def _string(random: randomness.Random, _: int) -> dict[str, Any]:
    if random.random() < 0.4:
        return {"type": "string", "pattern": random.choice(PATTERNS), **_maybe(random, maxLength=20)}
    shortest = random.randint(0, 4)
    return {"type": "string", **_maybe(random, minLength=shortest, maxLength=shortest + random.randint(0, 6))}


def _enum(random: randomness.Random, _: int) -> dict[str, Any]:
    values: list[Any] = [*random.sample(WORDS, 3), random.randint(-9, 99), 2.5, None, True, [1, "x"], {"a": [None]}]
    return {"enum": random.sample(values, random.randint(1, 4))}


def _const(random: randomness.Random, _: int) -> dict[str, Any]:
    return {"const": random.choice([*WORDS, 7, -0.125, False, None, [], {}, {"if": {"not": 1}}])}


def _plain(random: randomness.Random, _: int) -> dict[str, Any]:
    return random.choice([{"type": "null"}, {"type": "boolean"}, {"type": ["null", "integer"]}, {"minLength": 2}, {}])


def _object(random: randomness.Random, depth: int) -> dict[str, Any]:
    names = random.sample(NAMES, random.randint(0, 3))
    schema: dict[str, Any] = {"type": "object", "properties": {n: random_schema(random, depth - 1) for n in names}}
    schema |= _maybe(random, required=random.sample(names, random.randint(0, len(names))))
    others = random.choice([None, False, False, False, random_schema(random, 0)])
    return schema if others is None else schema | {"additionalProperties": others}


def _map(random: randomness.Random, depth: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "object", "additionalProperties": random_schema(random, 0)}
    if random.random() < 0.5:
        schema = {
            "type": "object", "additionalProperties": False,
            "patternProperties": {"^x": random_schema(random, 0), "^y.$": random_schema(random, 0)},
        }  # fmt: skip
    return schema | _maybe(random, minProperties=1, maxProperties=2)


def _array(random: randomness.Random, depth: int) -> dict[str, Any]:
    least = random.randint(0, 2)
    schema: dict[str, Any] = {"type": "array", **_maybe(random, minItems=least, maxItems=least + random.randint(0, 2))}
    if random.random() < 0.4:
        schema["prefixItems"] = [random_schema(random, depth - 1) for _ in range(random.randint(1, 2))]
    return schema | _maybe(random, items=random_schema(random, depth - 1))


def _any_of(random: randomness.Random, depth: int) -> dict[str, Any]:
    return {"anyOf": [random_schema(random, depth - 1) for _ in range(random.randint(1, 3))]}


def _one_of(random: randomness.Random, depth: int) -> dict[str, Any]:
    return {
        "oneOf": [
            {
                "type": "object", "properties": {"kind": {"const": kind}, "v": random_schema(random, depth - 1)},
                "required": ["kind"],
            }
            for kind in ("one", "two")
        ]
    }  # fmt: skip


def _all_of(random: randomness.Random, depth: int) -> dict[str, Any]:
    parts: list[dict[str, Any]] = [
        {"type": "object", "properties": {name: random_schema(random, 0)}, **_maybe(random, required=[name])}
        for name in random.sample(NAMES, 2)
    ]
    return {"allOf": parts}
