"""Assigning a checkpoint's tensors to a model's parameters, each exactly once. It knows no architecture."""
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from hamdam.kernels.ops import Weight
from hamdam.kernels.quantized import W4A16, W8A16
from hamdam.kernels.quantized_whole import stacked

from ..errors import ModelError

LISTED = 5  # names in an error; a wrong checkpoint can have thousands


class Piece(NamedTuple):
    """Some rows of a tensor, which comes piece by piece. `whole`: the shape of all of it."""

    first: int
    values: Tensor
    whole: tuple[int, ...]


Source = Tensor | Piece | W4A16 | W8A16


class Packs(Protocol):
    def pack(self, weight: Tensor) -> Weight: ...


def emptied(parameters: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
    """The same, and they take no memory until `assign` fills them: those of a quantised matrix never do."""
    for parameter in parameters.values():
        parameter.untyped_storage().resize_(0)
    return parameters


def assign(parameters: Mapping[str, Tensor], tensors: Iterable[tuple[str, Source]]) -> "Kept":
    """Copies each tensor over the parameter of its name, converting the dtype; a quantised matrix is kept as it is.

    Raises ModelError where a name comes twice, a shape differs, or names are missing or unexpected: a parameter left as
    it was allocated would answer with garbage, and a tensor left over means that the model is another one.
    """
    fused = {storage.key: storage for storage in _storages(parameters)}
    assigned: dict[str, int] = {}  # rows that came
    unexpected: list[str] = []
    quantised: dict[str, W4A16 | W8A16] = {}
    for name, tensor in tensors:
        parameter = parameters.get(name)
        if parameter is None:
            unexpected.append(name)
            continue
        first, values, shape = tensor if isinstance(tensor, Piece) else (0, tensor, tuple(tensor.shape))
        if assigned.get(name, 0) != first:
            raise ModelError(f"tensor {name} is in the checkpoint twice")
        if shape != parameter.shape:
            wanted = list(parameter.shape)
            raise ModelError(f"tensor {name} has the shape {list(shape)}; the configuration asks for {wanted}")
        assigned[name] = first + values.shape[0]
        if isinstance(values, Tensor):
            fused[_key(parameter)].fill()
            parameter[first : assigned[name]].copy_(values)
        else:
            quantised[name] = values.to(parameter.device)
    missing = [name for name, parameter in parameters.items() if assigned.get(name) != parameter.shape[0]]
    if missing or unexpected:
        found = (("missing", missing), ("unexpected", unexpected))
        listed = "; ".join(f"{what}: {_listing(names)}" for what, names in found if names)
        raise ModelError(f"the checkpoint does not fit its configuration; {listed}")
    return Kept(_joined(fused.values(), parameters, quantised))


class Kept:
    """The matrices all parts of which came quantised, and fit together."""

    def __init__(self, by_storage: dict[int, W4A16 | W8A16]) -> None:
        self._by_storage = by_storage

    def take(self, parameter: Tensor) -> W4A16 | W8A16 | None:
        return self._by_storage.pop(_key(parameter), None)


class Packing:
    """Packs a model's matrices once they are there: a kept one is what it is, another what `ops` makes of it."""

    def __init__(self, ops: Packs, kept: Kept) -> None:
        self._ops, self._kept = ops, kept

    def pack(self, weight: Tensor) -> Weight:
        kept = self._kept.take(weight)
        return self._ops.pack(weight) if kept is None else kept


@dataclass(slots=True)
class _Storage:
    """What one or several parameters lie in: names in the order in which they lie there."""

    key: int
    names: list[str]
    nbytes: int
    of: torch.UntypedStorage

    def fill(self) -> None:
        if self.of.nbytes() < self.nbytes:
            self.of.resize_(self.nbytes)


def _key(parameter: Tensor) -> int:
    """Tells storages apart, those too that have no memory yet."""
    return int(parameter.untyped_storage()._cdata)


def _storages(parameters: Mapping[str, Tensor]) -> Iterator[_Storage]:
    by_key: dict[int, list[tuple[int, str]]] = {}
    for name, parameter in parameters.items():
        by_key.setdefault(_key(parameter), []).append((int(parameter.storage_offset()), name))
    for key, places in by_key.items():
        names = [name for _, name in sorted(places)]
        last = parameters[names[-1]]
        nbytes = int(last.storage_offset() + last.numel()) * last.itemsize
        yield _Storage(key, names, nbytes, last.untyped_storage())


def _joined(
    storages: Iterable[_Storage], parameters: Mapping[str, Tensor], quantised: Mapping[str, W4A16 | W8A16]
) -> dict[int, W4A16 | W8A16]:
    """By storage. Where some of its parts are plain, or of another kind, all of them become plain."""
    found: dict[int, W4A16 | W8A16] = {}
    for storage in storages:
        own = [quantised[name] for name in storage.names if name in quantised]
        if not own:
            continue
        whole = stacked(own) if len(own) == len(storage.names) else None
        if whole is not None:
            found[storage.key] = whole
            continue
        storage.fill()
        for name in storage.names:
            if name in quantised:
                parameters[name].copy_(quantised[name].dequantise())
    return found


def _listing(names: list[str]) -> str:
    more = len(names) - LISTED
    return ", ".join(names[:LISTED]) + (f" and {more} more" if more > 0 else "")
