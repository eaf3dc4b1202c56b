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

import numpy as np
from numpy.typing import NDArray

from .tiles import GROUP, GROUP_BYTES, PANEL

Bytes = NDArray[np.uint8]
HALF = PANEL // 2


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


def joined(parts: Sequence[Blocks]) -> Blocks:
    """One matrix above the other. All have as many bits."""
    if len(parts) == 1:
        return parts[0]
    minima = [part.minima for part in parts if part.minima is not None]
    return Blocks(
        parts[0].bits,
        np.concatenate([part.numbers for part in parts]),
        np.concatenate([part.scales for part in parts]),
        np.concatenate(minima) if minima else None,
    )


def side_by_side(gate: Blocks, up: Blocks) -> Blocks:
    """16 rows of the one, 16 of the other, and so on: a panel then holds both sides of 16 products."""
    order = np.arange(2 * len(gate.scales)).reshape(2, -1, HALF).swapaxes(0, 1).reshape(-1)
    both = joined((gate, up))
    minima = None if both.minima is None else both.minima[order]
    return Blocks(both.bits, both.numbers[order], both.scales[order], minima)


def pack(blocks: Blocks, inputs: int) -> Packed:
    rows, groups = blocks.scales.shape
    panels = -(-rows // PANEL)
    data = aligned(panels * groups * GROUP_BYTES[blocks.bits]).reshape(panels, groups, -1)
    steps = blocks.numbers.shape[-1] // 4
    for start in range(0, panels, 64):  # so many at a time, that what is moved stays in the processor's cache
        some = slice(start * PANEL, (start + 64) * PANEL)
        words = np.ascontiguousarray(_whole(blocks.numbers[some])).view(np.uint32)
        to = data[start : start + 64]
        to[..., : PANEL * 4 * steps].view(np.uint32).reshape(len(to), groups, 2, steps, HALF)[:] = words.reshape(
            len(to), 2, HALF, groups, steps
        ).transpose(0, 3, 1, 4, 2)
        at = PANEL * 4 * steps
        for halves in (blocks.scales, blocks.minima):
            if halves is not None:
                own = np.ascontiguousarray(_whole(halves[some]).reshape(len(to), PANEL, groups).swapaxes(1, 2))
                to[..., at : at + 2 * PANEL] = own.view(np.uint8)
                at += 2 * PANEL
    return Packed(blocks.bits, rows, inputs, data.reshape(-1))


def _whole(rows: NDArray[np.generic]) -> NDArray[np.generic]:
    """With rows of zeros up to a whole number of panels."""
    missing = -len(rows) % PANEL
    return np.pad(rows, ((0, missing), *((0, 0),) * (rows.ndim - 1))) if missing else rows


def aligned(size: int) -> Bytes:
    """Zeroed bytes that begin at a multiple of 64."""
    room = np.zeros(size + 64, np.uint8)
    start = -room.ctypes.data % 64
    return room[start : start + size]
