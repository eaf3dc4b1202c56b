"""Assigning a checkpoint's tensors to a model's parameters, each exactly once. It knows no architecture."""
from collections.abc import Iterable, Iterator, Mapping
from itertools import accumulate
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from hamdam.kernels.grouped import Grouped, Stacked
from hamdam.kernels.ops import Weight
from hamdam.kernels.quantized import FP8_BLOCK
from hamdam.kernels.quantized_whole import Form, Stack

from ..errors import ModelError
from ..memory import give_back

LISTED = 5  # names in an error; a wrong checkpoint can have thousands
PACKED = ("_proj.weight", "lm_head.weight")
"""How the names of matrices end that models have packed and may have quantised; an embedding is looked up in."""


class Piece(NamedTuple):
    """Some rows of a tensor, which comes piece by piece. `whole`: the shape of all of it."""

    first: int
    values: Tensor | Form | Grouped
    whole: tuple[int, ...]


Source = Tensor | Piece | Form
MADE_PLAIN = 1 << 20  # numbers of a quantised matrix that become floats at a time


class Packs(Protocol):
    def pack(self, weight: Tensor) -> Weight: ...


def emptied(parameters: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
    """The same, and they take no memory until `assign` fills them: those of a quantised matrix never do."""
    for parameter in parameters.values():
        parameter.untyped_storage().resize_(0)
    return parameters


def assign(parameters: Mapping[str, Tensor], tensors: Iterable[tuple[str, Source]], ops: Packs) -> "Packing":
    """Copies each tensor over the parameter of its name, converting the dtype; a quantised matrix is kept as it is.

    A matrix is packed when the last of its parts is there, so that no more than one is in memory twice. Raises
    ModelError where a name comes twice, a shape differs, or names are missing or unexpected: a parameter left as it was
    allocated would answer with garbage, and a tensor left over means that the model is another one.
    """
    packing = Packing(ops)
    shared = {name: one for one in _shared(parameters) for name in one.parts}
    assigned: dict[str, int] = {}  # rows that came
    unexpected: list[str] = []
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
        shared[name].take(name, first, values)
        if all(assigned.get(part) == len(own) for part, own in shared[name].parts.items()):
            packing.add(shared[name])
            give_back()
    missing = [name for name, parameter in parameters.items() if assigned.get(name) != parameter.shape[0]]
    if missing or unexpected:
        found = (("missing", missing), ("unexpected", unexpected))
        listed = "; ".join(f"{what}: {_listing(names)}" for what, names in found if names)
        raise ModelError(f"the checkpoint does not fit its configuration; {listed}")
    return packing


class _Shared:
    """The parameters that lie in one piece of memory: the parts of a fused matrix, in order, or a single one.

    They stay quantised as long as all that comes is, in forms that one matrix can hold; else all become plain."""

    def __init__(self, key: int, parts: dict[str, Tensor]) -> None:
        self.key, self.parts = key, parts
        counts = [part.shape[0] for part in parts.values()]
        self._first = dict(zip(parts, accumulate(counts, initial=0), strict=False))
        self._stack: Stack | None = Stack(sum(counts))
        self._stacked: list[tuple[str, int, int]] = []  # name, and its rows that are there
        self._grouped: dict[str, Grouped] = {}
        self._rows: dict[str, int] = {}  # of those, that are there

    def take(self, name: str, first: int, values: Tensor | Form | Grouped) -> None:
        parameter = self.parts[name]
        if isinstance(values, Grouped):
            if self._stack is not None and not self._stacked:
                if first == 0:
                    self._grouped[name] = values.room(len(parameter))
                self._grouped[name].put(first, values)
                self._rows[name] = first + values.shape[0]
                return
        elif not isinstance(values, Tensor):
            values = values.to(parameter.device)
            if not self._grouped and self._stack is not None and self._stack.put(self._first[name] + first, values):
                self._stacked.append((name, first, first + values.shape[0]))
                return
        self._become_plain()
        if isinstance(values, Tensor):
            parameter[first : first + len(values)].copy_(values)
        else:
            _copy_floats(values, parameter[first : first + values.shape[0]])

    def packed(self, ops: Packs) -> Weight | None:
        """Once all is there: what stands for the parameters from now on; None where they themselves do."""
        if self._grouped:
            parts = tuple(self._grouped[name] for name in self.parts)
            return parts[0] if len(parts) == 1 else Stacked(parts)
        if self._stack is not None:
            return self._stack.matrix
        if not all(name.endswith(PACKED) for name in self.parts):
            return None
        storage, first = self._storage(), next(iter(self.parts.values()))
        rows, columns = sum(map(len, self.parts.values())), first.shape[1]
        matrix = first.new_empty(0).set_(storage, 0, (rows, columns), (columns, 1))
        packed = ops.pack(matrix)
        if packed is matrix:
            return None
        storage.resize_(0)
        return packed

    def _become_plain(self) -> None:
        self._fill()
        grouped, self._grouped = self._grouped, {}
        for name, matrix in grouped.items():
            end = self._rows[name]
            _copy_floats(matrix.rows(0, end), self.parts[name][:end])
        stack, self._stack = self._stack, None
        if stack is None or stack.matrix is None:
            return
        for name, first, end in self._stacked:
            start = self._first[name]
            _copy_floats(stack.matrix.rows(start + first, start + end), self.parts[name][first:end])

    def _storage(self) -> torch.UntypedStorage:
        return next(iter(self.parts.values())).untyped_storage()

    def _fill(self) -> None:
        """Takes the memory, if that is not done."""
        storage, last = self._storage(), list(self.parts.values())[-1]
        needed = int(last.storage_offset() + last.numel()) * last.itemsize
        if storage.nbytes() < needed:
            storage.resize_(needed)


def _copy_floats(matrix: Form | Grouped, target: Tensor) -> None:
    """Some rows at a time; blocks of FP8 are not cut."""
    rows, columns = matrix.shape
    step = max(1, MADE_PLAIN // columns // FP8_BLOCK) * FP8_BLOCK
    for first in range(0, rows, step):
        end = min(first + step, rows)
        target[first:end].copy_(matrix.rows(first, end).dequantise())


class Packing:
    """Packs a model's matrices once they are there; of those that `assign` has packed it gives what it made."""

    def __init__(self, ops: Packs) -> None:
        self._ops = ops
        self._ready: dict[int, Weight] = {}

    def add(self, shared: _Shared) -> None:
        packed = shared.packed(self._ops)
        if packed is not None:
            self._ready[shared.key] = packed

    def pack(self, weight: Tensor) -> Weight:
        ready = self._ready.pop(_key(weight), None)
        return self._ops.pack(weight) if ready is None else ready

    def looked_up(self, weight: Tensor) -> Weight:
        """The same of one whose rows are taken, which is never packed."""
        return self._ready.pop(_key(weight), weight)


def _shared(parameters: Mapping[str, Tensor]) -> Iterator[_Shared]:
    by_key: dict[int, list[tuple[int, str]]] = {}
    for name, parameter in parameters.items():
        by_key.setdefault(_key(parameter), []).append((int(parameter.storage_offset()), name))
    for key, places in by_key.items():
        yield _Shared(key, {name: parameters[name] for _, name in sorted(places)})


def _key(parameter: Tensor) -> int:
    """Tells storages apart, those too that have no memory yet."""
    return int(parameter.untyped_storage()._cdata)


def _listing(names: list[str]) -> str:
    more = len(names) - LISTED
    return ", ".join(names[:LISTED]) + (f" and {more} more" if more > 0 else "")
