"""JsonObject: a JSON object out of a model's files, its values by kind. It does not know what the keys mean."""
import json
import math
import re
from pathlib import Path
from typing import Any

from ..errors import ModelError
from .values import Values

MAX_BYTES = 64 << 20

_HALF_A_PAIR = re.compile(rb"\\u[dD][89a-fA-F]")  # and mostly the other half follows


class JsonObject(Values):
    __slots__ = ()

    def object(self, key: str) -> "JsonObject | None":
        value = self.values.get(key)
        if value is None:
            return None
        if not isinstance(value, dict):
            raise ModelError(f"{self.source}: {key} is not an object")
        return JsonObject(f"{self.source}: {key}", value)

    def numbers(self, key: str) -> tuple[float, ...]:
        """A list of numbers, () where it is null or absent."""
        value = self.values.get(key)
        if value is None:
            return ()
        if not isinstance(value, list) or not all(type(number) in (int, float) for number in value):
            raise ModelError(f"{self.source}: {key} is not a list of numbers")
        return tuple(map(float, value))


def read_object(path: Path) -> JsonObject:
    """ModelError where the file is not there or is not one JSON object."""
    data = read_bounded(path)
    return parse_object(path.name, data)


def read_bounded(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    except FileNotFoundError as error:
        raise ModelError(f"{path.parent}: {path.name} is missing") from error
    except OSError as error:
        raise ModelError(f"{path}: {error.strerror or error}") from error
    if len(data) > MAX_BYTES:
        raise ModelError(f"{path.name}: larger than {MAX_BYTES >> 20} MiB")
    return data


def parse_object(source: str, data: bytes) -> JsonObject:
    try:
        value = json.loads(
            data, object_pairs_hook=_without_repeats, parse_constant=_no_number, parse_int=_in_64_bits,
            parse_float=_finite,
        )
        if _HALF_A_PAIR.search(data):
            json.dumps(value, ensure_ascii=False).encode()  # half a character is a ValueError here
    except (ValueError, RecursionError) as error:  # nested 1,000 deep is a RecursionError
        raise ModelError(f"{source}: not the JSON it should be ({str(error)[:120]})") from error
    if not isinstance(value, dict):
        raise ModelError(f"{source}: not a JSON object")
    return JsonObject(source, value)


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for key, value in pairs:
        if key in values:
            raise ValueError(f"{key[:80]!r} is there twice")
        values[key] = value
    return values


def _no_number(name: str) -> float:
    raise ValueError(f"{name} is no number")


def _finite(digits: str) -> float:
    if not math.isfinite(number := float(digits)):
        raise ValueError(f"{digits[:40]} is too large")
    return number


def _in_64_bits(digits: str) -> int:
    if len(digits) > 20:
        raise ValueError(f"a number of {len(digits)} digits")
    return int(digits)
