"""prepared: every keyword of a schema is enforced, or refused by its pointer; what is data is not looked into."""
import re
from pathlib import Path
from typing import Any

import pytest

from hamdam.engine.grammar.json_schema import ANNOTATIONS, ENFORCED, FORMATS, MAX_DEPTH, SchemaError, prepared

README = Path(__file__).parents[3] / "README.md"


def pointer(schema: dict[str, Any]) -> str:
    with pytest.raises(SchemaError) as refused:
        prepared(schema)
    return refused.value.pointer


@pytest.mark.parametrize(
    "keyword",
    [
        "not", "if", "then", "else", "contains", "minContains", "maxContains", "dependentRequired", "dependentSchemas",
        "dependencies", "propertyNames", "unevaluatedItems", "unevaluatedProperties", "additionalItems", "$anchor",
        "$dynamicRef", "$dynamicAnchor", "$recursiveRef", "$vocabulary", "id", "nullable", "x-guidance", "made-up",
    ],
)  # fmt: skip
def test_e03_a_keyword_that_is_not_enforced_is_refused_by_its_pointer(keyword: str) -> None:
    assert pointer({keyword: {}}) == f"/{keyword}"
    inside = {"type": "object", "properties": {"a/b~": {"anyOf": [True, {"items": {keyword: {}}}]}}}
    assert pointer(inside) == f"/properties/a~1b~0/anyOf/1/items/{keyword}"
    with pytest.raises(SchemaError, match=re.escape(keyword)):
        prepared({"$defs": {"never used": {keyword: 1}}})


def test_e03_words_inside_of_data_are_no_keywords_and_annotations_pass() -> None:
    data = {"not": 1, "if": {"made-up": [{"uniqueItems": True}]}}
    schema = {
        "const": data, "default": data, "examples": [data], "title": "not", "$comment": "if",
        "$schema": "http://json-schema.org/draft-07/schema#", "deprecated": True, "$id": "https://example.org/x",
    }  # fmt: skip
    assert prepared(schema) == {"const": data}
    prepared({"enum": [data, "not"]})
    prepared({"properties": {"not": True, "if": {"type": "string"}}})


def test_the_readme_lists_exactly_the_keywords_that_are_enforced() -> None:
    lists = dict(re.findall(r"<!-- (keywords|formats|annotations) -->(.*)", README.read_text(encoding="utf-8")))
    named = {kind: {*re.findall(r"`([^`]+)`", text)} for kind, text in lists.items()}
    assert named == {"keywords": ENFORCED, "formats": {*FORMATS}, "annotations": ANNOTATIONS}


@pytest.mark.parametrize(
    ("schema", "at"),
    [
        ({"properties": {"a": "text"}}, "/properties/a"),
        ({"properties": []}, "/properties"),
        ({"items": [{"type": "string"}]}, "/items"),
        ({"type": "text"}, "/type"),
        ({"type": []}, "/type"),
        ({"required": "a"}, "/required"),
        ({"enum": []}, "/enum"),
        ({"enum": "a"}, "/enum"),
        ({"anyOf": []}, "/anyOf"),
        ({"minLength": -1}, "/minLength"),
        ({"minLength": "1"}, "/minLength"),
        ({"maxItems": True}, "/maxItems"),
        ({"maximum": "1"}, "/maximum"),
        ({"minimum": 1e19}, "/minimum"),
        ({"const": 2**60}, "/const"),
        ({"enum": ["a", "b\u0001"]}, "/enum/1"),
        ({"exclusiveMinimum": True}, "/exclusiveMinimum"),
        ({"multipleOf": 0}, "/multipleOf"),
        ({"multipleOf": 999983}, "/multipleOf"),
        ({"pattern": 5}, "/pattern"),
        ({"pattern": "((a{100}){100}){200}"}, "/pattern"),
        ({"patternProperties": {"(a{9999}){9999}": True}}, "/patternProperties/(a{9999}){9999}"),
        ({"format": "made-up"}, "/format"),
        ({"format": "unknown"}, "/format"),
        ({"uniqueItems": True}, "/uniqueItems"),
        ({"$ref": "https://example.org/x.json"}, "/$ref"),
        ({"$ref": "other.json#/a"}, "/$ref"),
        ({"$ref": "#name"}, "/$ref"),
        ({"$ref": "#/$defs/b", "$defs": {"a": {}}}, "/$ref"),
        ({"$ref": "#/enum/0", "enum": [{"type": "string"}]}, "/$ref"),
        ({"properties": {"a": {"$id": "x"}}}, "/properties/a/$id"),
        ({"discriminator": {"propertyName": "kind"}, "oneOf": [True]}, "/discriminator"),
        ({"discriminator": "kind"}, "/discriminator"),
        ({"minimum": 5, "maximum": 3}, "/minimum"),
        ({"exclusiveMinimum": 3, "maximum": 3}, "/exclusiveMinimum"),
        ({"minLength": 5, "maxLength": 3}, "/minLength"),
        ({"minItems": 5, "maxItems": 3}, "/minItems"),
        ({"minProperties": 1, "maxProperties": 0}, "/minProperties"),
        ({"minProperties": 2}, "/minProperties"),
        ({"properties": {"a": {}}, "maxProperties": 1}, "/maxProperties"),
        ({"allOf": [True] * 300}, "/allOf"),
        ({"enum": list(range(6000))}, "/enum"),
        ({"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]}, ""),
        ({"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/a"}}}, ""),
        ({"anyOf": [{"type": "array", "items": {"$ref": "#"}, "minItems": 1}]}, ""),
    ],
)  # fmt: skip
def test_what_is_wrong_is_said_with_its_place(schema: dict[str, Any], at: str) -> None:
    assert pointer(schema) == at


def test_what_may_end_or_is_never_needed_may_need_itself() -> None:
    may_end = {"anyOf": [{"$ref": "#"}, {"type": "null"}]}
    tree = {"type": "object", "properties": {"next": may_end}, "required": ["next"]}
    assert prepared(tree) == tree
    prepared({"type": "array", "items": {"$ref": "#"}})
    prepared({"$defs": {"never": {"$ref": "#/$defs/never"}}, "type": "string"})


def test_a_reference_may_write_in_percent_what_a_uri_cannot_hold() -> None:
    prepared({"$ref": "#/$defs/a%20b%5B%C3%A9", "$defs": {"a b[é": {"type": "string"}}})
    prepared({"$ref": "#/$defs/a~1b", "$defs": {"a/b": {"type": "string"}}})


KINDS = {
    kind: {"type": "object", "properties": {"kind": {"const": kind}, "v": {"$ref": "#/$defs/ü"}}, "required": ["kind"]}
    for kind in ("one", "two")
}


def test_branches_that_refer_to_objects_of_different_kinds_are_alternatives() -> None:
    union = {"oneOf": [{"$ref": "#/$defs/one"}, {"$ref": "#/$defs/two"}]}
    schema = union | {"discriminator": {"propertyName": "kind"}, "$defs": KINDS | {"ü": {"type": "null"}}}
    found = prepared(schema)
    assert found["allOf"] == [{"anyOf": union["oneOf"]}] and "oneOf" not in found
    assert found["$defs"]["one"]["properties"]["v"] == {"$ref": "#/$defs/%C3%BC"}
    for other in ({"kind": {"type": "string"}}, {"kind": {"enum": ["one", "two"]}}, {}):
        two = KINDS["two"] | {"properties": other | {"v": True}}
        assert "oneOf" in prepared(union | {"$defs": {"one": KINDS["one"], "two": two, "ü": True}})
    optional = {"one": KINDS["one"], "two": KINDS["two"] | {"required": []}, "ü": True}
    assert "oneOf" in prepared(union | {"$defs": optional})


def test_a_schema_is_bounded_in_depth_and_in_size() -> None:
    deep: dict[str, Any] = {}
    for _ in range(MAX_DEPTH + 1):
        deep = {"items": deep}
    assert pointer(deep) == "/items" * (MAX_DEPTH + 1)
    wide = {"properties": {f"p{number}": {"type": "string"} for number in range(3000)}}
    assert pointer(wide).startswith("/properties/p")


def test_a_pointer_is_shown_shortened_and_without_control_characters() -> None:
    with pytest.raises(SchemaError) as refused:
        prepared({"properties": {"\n" + "x" * 1000: 5}})
    assert "\n" not in str(refused.value) and len(str(refused.value)) < 300
