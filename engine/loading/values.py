"""Values: what a model's files say, by key and of the kind that is asked for. It knows neither formats nor meanings."""
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from ..errors import ModelError

T = TypeVar("T", int, float, bool, str)


@dataclass(frozen=True, slots=True)
class Values:
    source: str  # what to name in an error
    values: Mapping[str, Any]

    def find(self, key: str, kind: type[T]) -> T | None:
        """The value of `key`; None where it is null or absent. A value of another kind is a ModelError."""
        value = self.values.get(key)
        if value is None:
            return None
        if kind is float and type(value) is int:
            return kind(value)
        if type(value) is not kind:
            raise ModelError(f"{self.source}: {key} is not a {kind.__name__}")
        return value

    def need(self, key: str, kind: type[T]) -> T:
        value = self.find(key, kind)
        if value is None:
            raise ModelError(f"{self.source}: {key} is missing")
        return value
