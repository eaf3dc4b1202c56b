"""Packing: a weight matrix in the order in which tiles.py reads it, once, when a model is loaded. NumPy only.

A matrix [outputs, inputs] lies in blocks of 32 outputs times 32 inputs, panel after panel, group after group:
  8 bits: 1024 bytes of weight + 128, then 32 scales;  4 bits: 512 bytes of two weights each, 32 scales, 32 minima.
Scales and minima are float16, an output each, and a weight is number * scale (+ minimum). In bytes come, for each half
of the outputs, for each 4 inputs, the 4 numbers of each of 16 outputs: one register. With 4 bits a byte's low half is
an input of the group's first 16 and its high half the one 16 further on: GGUF's own order, so that its blocks are only
moved, and a model computes with the very weights of its file.
"""
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from .tiles import GROUP, GROUP_BYTES, PANEL

Bytes = NDArray[np.uint8]
HALF = PANEL // 2
Number = TypeVar("Number", bound=np.generic)


@dataclass(frozen=True, slots=True)
class Blocks:
    """Rows of a matrix as whole numbers in groups of 32 inputs.

    numbers: uint8, [rows, groups, 32] of weight + 128 with 8 bits, [rows, groups, 16] of two with 4.
    scales, minima: float16 [rows, groups]; minima only with 4 bits.
    """

    bits: int
    numbers: Bytes
    scales: NDArray[np.float16]
    minima: NDArray[np.float16] | None = None


@dataclass(frozen=True, slots=True)
class Packed:
    """A packed matrix; `data` begins at a multiple of 64 bytes."""

    bits: int
    outputs: int
    inputs: int
    data: Bytes


def from_gguf(name: str, blocks: Bytes) -> Blocks:
    """Blocks of Q4_0, Q4_1 or Q8_0 as a file has them, uint8 [rows, groups, bytes], number for number."""

    def halves(at: int) -> NDArray[np.float16]:
        return np.ascontiguousarray(blocks[..., at : at + 2]).view(np.float16)[..., 0]

    scales = halves(0)
    if name == "Q8_0":
        return Blocks(8, blocks[..., 2:] ^ np.uint8(0x80), scales)
    if name == "Q4_0":
        return Blocks(4, blocks[..., 2:], scales, (scales * np.float16(-8)).astype(np.float16))
    if name == "Q4_1":
        return Blocks(4, blocks[..., 4:], scales, halves(2))
    raise ValueError(f"no packing for {name}")


def from_floats(weights: NDArray[np.float32]) -> Blocks:
    """Rounds float32 [rows, inputs] to 8 bits, a scale for each 32 inputs: the largest becomes 127.

    What is no number, or infinite, makes its group's scale so, and with it all that is computed from the group.
    """
    rows, inputs = weights.shape
    groups = -(-inputs // GROUP)
    if groups * GROUP != inputs:
        weights = np.pad(weights, ((0, 0), (0, groups * GROUP - inputs)))
    values = weights.reshape(rows, groups, GROUP)
    scales = (np.abs(values).max(-1) / 127).astype(np.float16)
    wide = scales.astype(np.float32)[..., None]
    inverse = np.divide(1, wide, out=np.zeros_like(wide), where=wide > 0)
    with np.errstate(invalid="ignore"):
        numbers = np.clip(np.rint(values * inverse), -127, 127).astype(np.int8).view(np.uint8) ^ 0x80
    return Blocks(8, numbers, scales)


def unfilled(bits: int, outputs: int, inputs: int) -> Packed:
    """A matrix of zeros, for `put` to fill."""
    groups, panels = -(-inputs // GROUP), -(-outputs // PANEL)
    return Packed(bits, outputs, inputs, aligned(panels * groups * GROUP_BYTES[bits]))


def put(packed: Packed, blocks: Blocks, first: int, step: int = 1) -> None:
    """Writes rows, 16 at a time, into half panels: `first`, `first + step` and so on; the last may have fewer.

    Gates have step 2 from 0 on, their ups step 2 from 1 on: a panel then holds both sides of 16 products.
    """
    groups = blocks.scales.shape[1]
    data = packed.data.reshape(-1, groups, GROUP_BYTES[packed.bits])
    sides = 3 - step  # with step 1 every other half panel, and then those between
    for start in range(sides):
        panel, side = divmod(first + start, 2)
        numbers = _in_halves(blocks.numbers)[start::sides]
        halves = [_in_halves(part)[start::sides] for part in (blocks.scales, blocks.minima) if part is not None]
        for at in range(0, len(numbers), 64):  # so many, that what is moved stays in the processor's cache
            own = slice(at, min(at + 64, len(numbers)))
            to = data[panel + own.start : panel + own.stop]
            _put(to, side, numbers[own], [part[own] for part in halves])


def _put(to: Bytes, side: int, numbers: Bytes, halves: Sequence[NDArray[np.float16]]) -> None:
    """to [panels, groups, bytes], numbers [panels, 16, groups, bytes], scales and minima [panels, 16, groups]."""
    panels, rows, groups, size = numbers.shape
    steps = size // 4
    words = np.ascontiguousarray(numbers).view(np.uint32).transpose(0, 2, 3, 1)
    to[..., : PANEL * size].view(np.uint32).reshape(panels, groups, 2, steps, rows)[:, :, side] = words
    at = PANEL * size + 2 * HALF * side
    for part in halves:
        own = np.ascontiguousarray(part.swapaxes(1, 2))
        to[..., at : at + 2 * HALF] = own.view(np.uint8)
        at += 2 * PANEL


def pack(blocks: Blocks, inputs: int) -> Packed:
    packed = unfilled(blocks.bits, len(blocks.scales), inputs)
    put(packed, blocks, 0)
    return packed


def _in_halves(rows: NDArray[Number]) -> NDArray[Number]:
    """[rows, …] -> [half panels, 16, …], the last filled up with zeros."""
    missing = -len(rows) % HALF
    whole = np.pad(rows, ((0, missing), *((0, 0),) * (rows.ndim - 1))) if missing else rows
    return whole.reshape(-1, HALF, *rows.shape[1:])


def aligned(size: int) -> Bytes:
    """Zeroed bytes that begin at a multiple of 64."""
    room = np.zeros(size + 64, np.uint8)
    start = -room.ctypes.data % 64
    return room[start : start + size]
