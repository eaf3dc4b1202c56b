"""StructuredOutputs: the form an answer is to have, as its client said it. engine/grammar reads and compiles it."""
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ..errors import InvalidField

FIELD = "structured_outputs"
KINDS = ("json", "regex", "choice", "grammar")
MAX_SOURCE = 64 << 10  # bytes
MAX_CHOICES = 1000
Opening = bytes | int | Callable[[int], str | None]
"""Behind what an answer begins to have its form: a text, a token, or one of which this says what begins behind it: it
is asked of each that is generated, in order and once."""


@dataclass(frozen=True, slots=True)
class StructuredOutputs:
    """`json`: a JSON schema; `choice`: one of some texts, both kept as JSON. `regex`: all of the answer matches it.
    `grammar`: Lark, as llguidance has it. Equal sources are one value: what was compiled of one serves the other."""

    kind: str
    source: str

    @classmethod
    def from_dict(cls, given: object) -> "StructuredOutputs":
        """From a client's object with exactly one of KINDS. Raises InvalidField."""
        if not isinstance(given, dict):
            raise InvalidField(FIELD, f"an object with one of {', '.join(KINDS)} is needed")
        for name in given:
            if name not in KINDS:
                raise InvalidField(f"{FIELD}.{name}", f"there is no such kind; {', '.join(KINDS)} are")
        asked = [(name, value) for name, value in given.items() if value is not None]
        if len(asked) != 1:
            raise InvalidField(FIELD, f"exactly one of {', '.join(KINDS)} is needed")
        [(kind, value)] = asked
        field = f"{FIELD}.{kind}"
        if kind in ("regex", "grammar"):
            if not isinstance(value, str) or not value:
                raise InvalidField(field, "a text is needed")
            source = value
        else:
            _check_value(kind, field, value)
            source = _json(field, value)
        _check_size(field, source)
        return cls(kind, source)


def _check_value(kind: str, field: str, value: object) -> None:
    if kind == "json":
        if not isinstance(value, dict):
            raise InvalidField(field, "a JSON schema is needed, as an object")
    elif not isinstance(value, list) or not 0 < len(value) <= MAX_CHOICES:
        raise InvalidField(field, f"a list of 1 to {MAX_CHOICES} texts is needed")
    elif not all(isinstance(one, str) and one for one in value):
        raise InvalidField(field, "each must be a text that is not empty")


def _json(field: str, value: Any) -> str:
    """In the order that the client gave: properties are answered in it."""
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    except (ValueError, RecursionError) as error:
        raise InvalidField(field, "numbers have to be finite, and it must not be nested too deeply") from error


def _check_size(field: str, source: str) -> None:
    try:
        size = len(source.encode())
    except UnicodeEncodeError as error:
        raise InvalidField(field, f"an unpaired surrogate at character {error.start}") from None
    if size > MAX_SOURCE:
        raise InvalidField(field, f"it has {size} bytes, at most {MAX_SOURCE} are taken")
