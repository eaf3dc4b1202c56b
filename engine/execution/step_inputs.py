"""StepInputs: a batch's facts as tensors on the device, in memory that is kept between steps. It computes nothing.

All that a model reads of a step lies in one piece, so that one copy brings it over and nobody waits for that; and for
one shape it lies in one place, where a recorded graph finds it again.
"""
from collections.abc import Sequence as Ordered
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hamdam.kernels.ops import Rows

from ..config import BLOCK_SIZE
from ..policy.batch import Row
from ..policy.sequence import Sequence

Ints = NDArray[np.int64]
ALIGNED = 16  # numbers: every tensor begins at a multiple of 128 bytes, since kernels are compiled for how they begin


@dataclass(frozen=True, slots=True)
class Step:
    """A batch as tensors on the device."""

    ids: Tensor  # [tokens]
    positions: Tensor  # [tokens]
    sampled: Tensor  # [rows that sample], their numbers
    rows: Rows


@dataclass(frozen=True, slots=True)
class Drawn:
    """What the step before draws, perhaps not computed yet."""

    ids: Tensor  # [rows that drew], on the device
    places: dict[int, int]  # by sequence id


@dataclass(frozen=True, slots=True)
class Shape:
    """How much a step holds, padding included."""

    tokens: int
    rows: int
    sampled: int
    blocks: int  # of a row's table

    @classmethod
    def of(cls, rows: Ordered[Row]) -> "Shape":
        longest = max(row.start + row.count for row in rows)
        return cls(sum(row.count for row in rows), len(rows), sum(row.sample for row in rows), blocks_of(longest))


def blocks_of(tokens: int) -> int:
    return -(-tokens // BLOCK_SIZE)


class StepInputs:
    """`take` is called once a step, and its tensors hold until it is called again."""

    def __init__(self, largest: Shape, device: torch.device) -> None:
        size = _size(largest)
        apart = device.type != "cpu"
        self._host = torch.zeros(size, dtype=torch.int64, pin_memory=apart)
        self._device = torch.zeros(size, dtype=torch.int64, device=device) if apart else self._host
        # What was taken last may still be on its way to the device: it must not be written over.
        self._copied = torch.cuda.Event() if apart else None  # type: ignore[no-untyped-call]
        self._tables: dict[int, tuple[list[int], Ints]] = {}  # by sequence id

    def take(
        self, rows: Ordered[Row], shape: Shape | None = None, *, padding_block: int = 0, drawn: Drawn | None = None
    ) -> Step:
        """With `shape` the step is filled up: with rows of one token each, that are all the same, whose KV lies in
        `padding_block`, which no sequence has. What is computed of them is nobody's. drawn: the step was foreseen, so
        that each row's one id is among these."""
        shape = shape or Shape.of(rows)
        assert _size(shape) <= len(self._host), "the step is larger than the configuration allows"
        if self._copied is not None:
            self._copied.synchronize()
        ids, positions, slots, starts, contexts, sampled, flat = self._parts(self._host, shape)
        tables: Ints = flat.numpy().reshape(shape.rows, shape.blocks)
        padding = shape.rows - len(rows)
        counts = np.array([row.count for row in rows] + [1] * padding)
        ends = np.array([row.start + row.count for row in rows] + [1] * padding)
        for line, table in zip(tables, self._known(rows), strict=False):
            used = table[: shape.blocks]
            line[: len(used)] = used
            line[len(used) :] = padding_block  # not read
        tables[len(rows) :] = padding_block
        starts.numpy()[0] = 0
        np.cumsum(counts, out=starts.numpy()[1:])
        contexts.numpy()[:] = ends
        owner = np.repeat(np.arange(shape.rows), counts)  # of each token, its row
        positions.numpy()[:] = position = np.arange(shape.tokens) + (ends - starts.numpy()[1:])[owner]
        slots.numpy()[:] = tables[owner, position // BLOCK_SIZE] * BLOCK_SIZE + position % BLOCK_SIZE
        if drawn is None:
            given = [id for row in rows for id in row.sequence.ids[row.start : row.start + row.count]]
        else:
            given = [drawn.places[row.sequence.id] for row in rows]
        ids.numpy()[:] = given + [0] * padding
        asked = [index for index, row in enumerate(rows) if row.sample]
        sampled.numpy()[:] = asked + [0] * (shape.sampled - len(asked))
        step = self._over(shape)
        if drawn is not None:
            step.ids.copy_(drawn.ids[step.ids])
        return step

    def _over(self, shape: Shape) -> Step:
        """Brings the numbers to the device; the copy is done before whatever is launched after it reads them."""
        if self._copied is not None:
            size = _size(shape)
            self._device[:size].copy_(self._host[:size], non_blocking=True)
            self._copied.record()
        ids, positions, slots, starts, contexts, sampled, tables = self._parts(self._device, shape)
        return Step(ids, positions, sampled, Rows(starts, contexts, tables.view(shape.rows, shape.blocks), slots))

    def _parts(self, memory: Tensor, shape: Shape) -> list[Tensor]:
        parts, start = [], 0
        for count in _counts(shape):
            parts.append(memory[start : start + count])
            start += _aligned(count)
        return parts

    def _known(self, rows: Ordered[Row]) -> list[Ints]:
        """Each row's table. To make arrays of thousands of block numbers anew would take a good part of a step's time;
        while a sequence runs its table only grows, and when it is taken in again it gets another list."""
        known, self._tables = self._tables, {}
        for row in rows:
            self._tables[row.sequence.id] = _grown(known.get(row.sequence.id), row.sequence)
        return [self._tables[row.sequence.id][1] for row in rows]


def _grown(known: tuple[list[int], Ints] | None, sequence: Sequence) -> tuple[list[int], Ints]:
    blocks = sequence.block_table
    if known is None or known[0] is not blocks:
        return blocks, np.array(blocks, np.int64)
    old = known[1]
    return known if len(old) == len(blocks) else (blocks, np.append(old, blocks[len(old) :]))


def _counts(shape: Shape) -> tuple[int, ...]:
    """ids, positions, slots, starts, contexts, sampled, tables."""
    tokens, rows = shape.tokens, shape.rows
    return tokens, tokens, tokens, rows + 1, rows, shape.sampled, rows * shape.blocks


def _size(shape: Shape) -> int:
    return sum(map(_aligned, _counts(shape)))


def _aligned(count: int) -> int:
    return -(-count // ALIGNED) * ALIGNED
