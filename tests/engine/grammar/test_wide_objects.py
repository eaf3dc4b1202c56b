"""Objects of very many optional properties: as many as are taken are followed, and one more is refused at once."""
import json
from typing import Any

import pytest

from hamdam.engine.errors import InvalidField
from hamdam.engine.grammar.grammars import Grammars
from hamdam.engine.grammar.json_schema import MAX_OPTIONAL, SchemaError, prepared
from hamdam.engine.grammar.matcher import Matcher
from hamdam.engine.policy.structured_outputs import StructuredOutputs

ANSWER = b'{"k0": [], "k1": {"a": 1}, "k2": 3, "last": "x"}'


def wide(optional: int, *required: str) -> dict[str, Any]:
    names = ["first", *(f"k{number}" for number in range(optional)), "last"]
    left_out = {"first", "last"} - set(required)
    return {
        "type": "object", "properties": {name: True for name in names if name not in left_out},
        "required": list(required),
    }  # fmt: skip


@pytest.mark.parametrize(
    ("required", "most"),
    [((), MAX_OPTIONAL), (("last",), MAX_OPTIONAL * 4 // 3), (("first",), MAX_OPTIONAL * 2),
     (("first", "last"), MAX_OPTIONAL * 2)],
)  # fmt: skip
def test_as_many_as_are_taken_are_followed_and_one_more_is_refused_by_its_place(
    required: tuple[str, ...], most: int
) -> None:
    answer = ANSWER.replace(b"{", b'{"first": 1, ', 1) if "first" in required else ANSWER
    assert followed("json", wide(most, *required), answer)
    with pytest.raises(SchemaError, match=f"{most} properties") as refused:
        prepared({"items": {"anyOf": [wide(3), wide(most + 1, *required)]}})
    assert refused.value.pointer == "/items/anyOf/1/properties"


def test_in_a_grammar_half_as_many_are_taken() -> None:
    half = MAX_OPTIONAL // 2
    assert followed("grammar", f'start: "<" %json {json.dumps(wide(half))} ">"', b"<" + ANSWER + b">")
    with pytest.raises(InvalidField, match=f"{half} properties"):
        followed("grammar", f'start: "<" %json {json.dumps(wide(half + 1))}', b"<")


def followed(kind: str, source: object, answer: bytes) -> bool:
    """Whether it is all of an answer, byte by byte."""
    grammars = Grammars(lambda: [bytes([byte]) for byte in range(256)])
    try:
        own = Matcher([grammars._compile(StructuredOutputs.from_dict({kind: source}))])
    finally:
        grammars.close()
    for end in range(len(answer)):
        own.follow(answer[: end + 1])
        _, [may_end] = Matcher.masks([own])
        if own.fault is not None:
            return False
    return bool(may_end)
