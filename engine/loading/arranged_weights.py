"""ArrangedWeights: the tensors of some files, a few of them in another order than they are stored in. No arithmetic."""
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

from ..errors import ModelError
from .coded import Coded
from .contents import Weights
from .numbers import Numbers, Quantized


@dataclass(frozen=True, slots=True)
class Change:
    """shape: of what `apply` makes of the stored values, the same numbers, of whatever dtype they are."""

    shape: tuple[int, ...]
    apply: Callable[[NDArray[Any]], NDArray[Any]]


class ArrangedWeights:
    """Implements contents.Weights."""

    def __init__(self, weights: Weights, changes: Mapping[str, Change]) -> None:
        self._weights, self._changes = weights, changes
        self.formats = weights.formats
        self.shapes = {**weights.shapes, **{name: change.shape for name, change in changes.items()}}

    def read(self, name: str, rows: range | None = None) -> Numbers:
        change = self._changes.get(name)
        if change is None:
            return self._weights.read(name, rows)
        dtype, values = self._weights.read(name)
        values = change.apply(values)
        return Numbers(dtype, values if rows is None else values[rows.start : rows.stop])

    def bits(self, name: str) -> int | None:
        return None if name in self._changes else self._weights.bits(name)

    def quantized(self, name: str, rows: range | None = None) -> Quantized | None:
        return None if name in self._changes else self._weights.quantized(name, rows)

    def coded(self, name: str, rows: range | None = None) -> Coded | None:
        return None if name in self._changes else self._weights.coded(name, rows)


def arranged(weights: Weights, changes: Mapping[str, Change]) -> Weights:
    """ModelError where what is to be changed is quantised."""
    changes = {name: change for name, change in changes.items() if name in weights.formats}
    for name in changes:
        if weights.coded(name, range(1)) is not None:
            kind = weights.formats[name]
            raise ModelError(f"{name} is stored as {kind}, which is not supported where its rows have another order")
    return ArrangedWeights(weights, changes) if changes else weights
