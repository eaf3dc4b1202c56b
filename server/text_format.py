"""TextFormat: what a client says of its answer's form in OpenAI's words, in the engine's. It checks no schema.

    /v1         response_format: {type: "json_schema", json_schema: {name, schema, strict?, description?}}
    WebSocket   text.format:     {type: "json_schema", name, schema, strict?, description?}

and at both `{type: "json_object"}` and `{type: "text"}`. A schema is always held to, whatever `strict` says.
"""
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from .errors import ApiError

ENGINES = "structured_outputs"
_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")


@dataclass(frozen=True, slots=True)
class TextFormat:
    """structured_outputs: the engine's parameter; None asks for nothing. names: what the client called its parts."""

    structured_outputs: dict[str, Any] | None = None
    names: Mapping[str, str] = field(default_factory=dict)

    def added_to(self, sampling: Mapping[str, Any], field: str) -> dict[str, Any]:
        """Sampling parameters with the form among them. field: the client's name of it. Raises ApiError."""
        if self.structured_outputs is None:
            return dict(sampling)
        if sampling.get(ENGINES) is not None:
            raise _invalid(field, f"Not together with `{ENGINES}`.")
        return {**sampling, ENGINES: self.structured_outputs}


def read_text_format(given: object, where: str, *, part: str | None = None) -> TextFormat:
    """where: the field. part: the name of the object in it that holds what belongs to a schema; None: they are its own.

    Raises ApiError by the field's name.
    """
    if given is None:
        return TextFormat()
    if not isinstance(given, dict):
        raise _invalid(where, "An object is needed.")
    kind = given.get("type")
    rest = {name: value for name, value in given.items() if name != "type"}
    if kind in ("text", "json_object"):
        _refuse(rest, (), where)
        names = {ENGINES: where, f"{ENGINES}.json": where}
        return TextFormat({"json": {"type": "object"}}, names) if kind == "json_object" else TextFormat()
    if kind != "json_schema":
        raise _invalid(f"{where}.type", "One of text, json_object, json_schema.")
    if part is not None:
        _refuse(rest, (part,), where)
        where, rest = f"{where}.{part}", rest.get(part, {})
        if not isinstance(rest, dict):
            raise _invalid(where, "An object is needed.")
    _refuse(rest, ("name", "description", "schema", "strict"), where)
    name = rest.get("name")
    if not (isinstance(name, str) and _NAME.fullmatch(name)):
        raise _invalid(f"{where}.name", "1 to 64 letters, digits, _ and - are needed.")
    if not isinstance(rest.get("description") or "", str):
        raise _invalid(f"{where}.description", "A text is needed.")
    if rest.get("strict") not in (None, True, False):
        raise _invalid(f"{where}.strict", "true or false is needed.")
    if not isinstance(rest.get("schema"), dict):
        raise _invalid(f"{where}.schema", "A JSON schema is needed, as an object.")
    return TextFormat({"json": rest["schema"]}, {ENGINES: where, f"{ENGINES}.json": f"{where}.schema"})


def _refuse(given: dict[str, Any], known: tuple[str, ...], where: str) -> None:
    for name in given:
        if name not in known:
            raise _invalid(f"{where}.{name}", "There is no such field here.")


def _invalid(param: str, why: str) -> ApiError:
    return ApiError("invalid_field", why, param=param[:128])
