"""Dialect: a schema that was walked, as llguidance is to have it, so that it does what was said. No refusals."""
import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

from .regex import in_a_json_string

ENFORCED_BY_WALKING = frozenset({"discriminator", "uniqueItems"})  # there is nothing left to do about them
_LEAP_DAY = r"(\d\d(0[48]|[2468][048]|[13579][26])|([02468][048]|[13579][26])00)-02-29"
_DATE = rf"^(\d{{4}}-(0[13-9]|1[0-2])-|\d{{4}}-02-([01]|2[0-8])|{_LEAP_DAY})"
STRICTER = {  # what llguidance leaves open: a 29th of February in other years, a 61st second at any time
    "date": (_DATE,), "date-time": (_DATE, "^.{17}[0-5]"), "time": ("^.{6}[0-5]",),
}  # fmt: skip


def written(given: Any, schemas: Mapping[str, Any], keywords: frozenset[str]) -> Any:
    """Without what only describes. schemas: by pointer. keywords: what is enforced."""
    if not isinstance(given, dict):
        return given
    found: dict[str, Any] = {}
    for keyword, value in given.items():
        match keyword:
            case "additionalProperties" | "items":
                found[keyword] = written(value, schemas, keywords)
            case "allOf" | "anyOf" | "oneOf" | "prefixItems":
                found[keyword] = [written(one, schemas, keywords) for one in value]
            case "$defs" | "definitions" | "properties":
                found[keyword] = {name: written(one, schemas, keywords) for name, one in value.items()}
            case "patternProperties":
                names = {in_a_json_string(name): one for name, one in value.items()}
                found[keyword] = {name: written(one, schemas, keywords) for name, one in names.items()}
            case "pattern":
                found[keyword] = in_a_json_string(value)
            case "$ref":
                found[keyword] = "#" + quote(pointer_of(value), safe="/~$")
            case _ if keyword in keywords - ENFORCED_BY_WALKING:
                found[keyword] = value
    parts = [{"pattern": pattern} for pattern in STRICTER.get(given.get("format", ""), ())]
    if told_apart_by(given.get("oneOf", ()), schemas) is not None:  # references llguidance does not follow here
        parts.append({"anyOf": found.pop("oneOf")})
    return found | {"allOf": [*found.get("allOf", []), *parts]} if parts else found


def pointer_of(reference: str) -> str:
    """A reference's pointer, without what a URI has to write in percent."""
    parts = [bytes.fromhex(part[1:]) if part.startswith("%") else part.encode()
             for part in re.split("(%[0-9a-fA-F]{2})", reference[1:])]  # fmt: skip
    return b"".join(parts).decode("utf-8", "replace")


def told_apart_by(branches: Any, schemas: Mapping[str, Any]) -> str | None:
    """The property by which no value has two of the branches: each is an object that requires it to be other texts."""
    targets = [_target(branch, schemas) for branch in branches]
    if not targets or not all(isinstance(one, dict) and one.get("type") == "object" for one in targets):
        return None
    return next((str(name) for name in targets[0].get("properties", {}) if _parts_by(name, targets)), None)


def _parts_by(name: str, branches: list[dict[str, Any]]) -> bool:
    taken: set[str] = set()
    for branch in branches:
        texts = _texts(branch, name)
        if not texts or not taken.isdisjoint(texts):
            return False
        taken |= texts
    return True


def _target(branch: Any, schemas: Mapping[str, Any]) -> Any:
    """The schema that a branch is, or that it refers to."""
    if isinstance(branch, dict) and "$ref" in branch:
        return schemas.get(pointer_of(branch["$ref"]))
    return branch


def _texts(given: dict[str, Any], name: str) -> frozenset[str]:
    """What a property that has to be there may be, if that is one of some texts; else nothing."""
    property = given.get("properties", {}).get(name)
    if not isinstance(property, dict) or name not in given.get("required", ()):
        return frozenset()
    values = property.get("enum", [property.get("const")])
    return frozenset(values) if all(isinstance(value, str) for value in values) else frozenset()
