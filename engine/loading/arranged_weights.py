"""ArrangedWeights: the tensors of some files, a few of them in another order than they are stored in. No arithmetic."""
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..models.config import ModelConfig
from .coded import Coded
from .contents import Weights
from .numbers import Numbers, Quantized

Read = Callable[[str, range | None], Quantized | None]
_TURNED = re.compile(r"\.self_attn\.[qk]_(?:proj|norm)\.(?:weight|bias)$")


@dataclass(frozen=True, slots=True)
class Change:
    """shape: of what `apply` makes of the stored values, the same numbers, of whatever dtype they are.
    unit: so many whole rows, one after another, change places among themselves, which can be done to some units at a
    time and to a matrix's blocks, codes and scales too; None: all numbers may."""

    shape: tuple[int, ...]
    apply: Callable[[NDArray[Any]], NDArray[Any]]
    unit: int | None = None


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
        units, wanted = _units(change, rows)
        dtype, values = self._weights.read(name, units)
        return Numbers(dtype, change.apply(values)[wanted])

    def bits(self, name: str) -> int | None:
        change = self._changes.get(name)
        return self._weights.bits(name) if change is None or change.unit is not None else None

    def quantized(self, name: str, rows: range | None = None) -> Quantized | None:
        return self._quantized(self._weights.quantized, name, rows)

    def blocks(self, name: str, rows: range | None = None) -> Quantized | None:
        return self._quantized(self._weights.blocks, name, rows)

    def coded(self, name: str, rows: range | None = None) -> Coded | None:
        change = self._changes.get(name)
        if change is None:
            return self._weights.coded(name, rows)
        units, wanted = _units(change, rows)
        if change.unit is None or (stored := self._weights.coded(name, units)) is None:
            return None
        zeros = None if stored.zeros is None else change.apply(stored.zeros)[wanted]
        codes, scales = (change.apply(x)[wanted] for x in (stored.codes, stored.scales))
        return replace(stored, codes=codes, scales=scales, zeros=zeros, block=1)  # outputs that shared scales are apart

    def kept_bytes(self, name: str) -> int | None:
        change = self._changes.get(name)
        return self._weights.kept_bytes(name) if change is None or change.unit is not None else None

    def _quantized(self, read: Read, name: str, rows: range | None) -> Quantized | None:
        change = self._changes.get(name)
        if change is None:
            return read(name, rows)
        units, wanted = _units(change, rows)
        if change.unit is None or (stored := read(name, units)) is None:
            return None
        blocks = change.apply(stored.blocks)[wanted]
        return Quantized(stored.format, blocks, (len(blocks), *stored.shape[1:]))


def _units(change: Change, rows: range | None) -> tuple[range | None, slice]:
    """What is to be read for these rows of what was changed, and which of it they are."""
    if rows is None or change.unit is None:
        return None, slice(None) if rows is None else slice(rows.start, rows.stop)
    first = rows.start // change.unit * change.unit
    units = range(first, -(-rows.stop // change.unit) * change.unit)
    return units, slice(rows.start - first, rows.stop - first)


def arranged(config: ModelConfig, weights: Weights, changes: Mapping[str, Change] | None = None) -> Weights:
    """With these changes, and those that `config` asks for by a tensor's name."""
    changes = dict(changes or {})
    for name, shape in weights.shapes.items():
        if (change := _halves(config, name, shape)) is not None:
            changes[name] = change
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

    return Change(shape, ordered, unit=dim)
