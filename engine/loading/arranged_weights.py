"""ArrangedWeights: the tensors of some files, a few of them in another order than they are stored in. No arithmetic."""
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import ModelError
from ..models.config import ModelConfig
from .coded import Coded
from .contents import Weights
from .held import Held
from .numbers import Numbers, Quantized

_TURNED = re.compile(r"\.self_attn\.[qk]_(?:proj|norm)\.(?:weight|bias)$")


@dataclass(frozen=True, slots=True)
class Change:
    """shape: of what `apply` makes of the stored values, the same numbers, of whatever dtype they are.
    of_rows: only whole rows change places, so that it can be done to a matrix's blocks too."""

    shape: tuple[int, ...]
    apply: Callable[[NDArray[Any]], NDArray[Any]]
    of_rows: bool = False


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
        change = self._changes.get(name)
        return self._weights.bits(name) if change is None or change.of_rows else None

    def quantized(self, name: str, rows: range | None = None) -> Quantized | None:
        change = self._changes.get(name)
        if change is None:
            return self._weights.quantized(name, rows)
        if self.bits(name) is None or (whole := self._weights.quantized(name)) is None:
            return None
        blocks = change.apply(whole.blocks)
        blocks = blocks if rows is None else blocks[rows.start : rows.stop]
        return Quantized(whole.format, blocks, (len(blocks), *whole.shape[1:]))

    def coded(self, name: str, rows: range | None = None) -> Coded | None:
        return None if name in self._changes else self._weights.coded(name, rows)

    def held(self, name: str) -> Held | None:
        return None if name in self._changes else self._weights.held(name)

    def held_bytes(self, name: str) -> int | None:
        return None if name in self._changes else self._weights.held_bytes(name)


def arranged(config: ModelConfig, weights: Weights, changes: Mapping[str, Change] | None = None) -> Weights:
    """With these changes, and those that `config` asks for by a tensor's name. ModelError where what is to be changed
    is stored as numbers of a few bits whose order cannot be."""
    changes = dict(changes or {})
    for name, shape in weights.shapes.items():
        if (change := _halves(config, name, shape)) is not None:
            changes[name] = change
    for name in changes:
        if weights.coded(name, range(1)) is not None:
            kind = weights.formats[name]
            raise ModelError(f"{name} is stored as {kind}, which is not supported where its rows have another order")
    return ArrangedWeights(weights, changes) if changes else weights


def _halves(config: ModelConfig, name: str, shape: tuple[int, ...]) -> Change | None:
    """Where a part of a head turns, the first half of that part with the second: what does not turn goes behind what
    does, a half of it each, so that the first half of the whole head turns with the second. Queries and keys are
    ordered alike, and scores stay what they were."""
    dim, turning = config.head_dim, config.turning
    if turning == dim or not _TURNED.search(name) or not shape or shape[0] % dim:
        return None
    half, rest = turning // 2, (dim - turning) // 2
    first, second, still, other = np.split(np.arange(dim), np.cumsum([half, half, rest]))
    order = np.concatenate((first, still, second, other))

    def ordered(values: NDArray[Any]) -> NDArray[Any]:
        heads = values.reshape(-1, dim, *values.shape[1:])
        return np.ascontiguousarray(heads[:, order].reshape(values.shape))

    return Change(shape, ordered, of_rows=True)
