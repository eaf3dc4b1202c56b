"""Packed numbers: random matrices and rows as the CPU path has them, and what they stand for in float64. Not a test."""
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hamdam.kernels.cpu import packing
from hamdam.kernels.cpu.packing import HALF, Blocks
from hamdam.kernels.cpu.rows import quantise, row_bytes
from hamdam.kernels.cpu.tiles import GROUP

Array = NDArray[Any]


def address(array: Array) -> int:
    assert array.flags.c_contiguous
    return int(array.ctypes.data)


def random_blocks(random: np.random.Generator, outputs: int, inputs: int, bits: int) -> Blocks:
    """What stands behind the last input is never to be seen."""
    groups = -(-inputs // GROUP)
    scales = random.uniform(-0.02, 0.02, (outputs, groups)).astype(np.float16)
    numbers = random.integers(0, 256, (outputs, groups, GROUP * bits // 8), np.uint8)
    if bits == 8:
        return Blocks(8, numbers, scales)
    return Blocks(4, numbers, scales, random.uniform(-0.2, 0.2, (outputs, groups)).astype(np.float16))


def terms_of(blocks: Blocks) -> tuple[Array, Array]:
    """float64 [outputs, inputs up to whole groups]: numbers times scales, and minima. A weight is their sum."""
    scales = blocks.scales.astype(np.float64)[..., None]
    if blocks.bits == 8:
        numbers = (blocks.numbers.astype(np.float64) - 128) * scales
        return numbers.reshape(len(scales), -1), np.zeros(1)
    nibbles = np.concatenate((blocks.numbers & 15, blocks.numbers >> 4), -1)
    numbers = nibbles * scales
    minima = np.broadcast_to(blocks.minima.astype(np.float64)[..., None], numbers.shape)
    return numbers.reshape(len(scales), -1), minima.reshape(len(scales), -1)


def weights_of(blocks: Blocks, inputs: int) -> Array:
    """float64 [outputs, inputs]."""
    numbers, minima = terms_of(blocks)
    return (numbers + minima)[:, :inputs]


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


def packed(blocks: Blocks, inputs: int) -> packing.Packed:
    return packing.pack(blocks, inputs)


def quantised(x: Array, exact_above: float) -> NDArray[np.uint8]:
    """float32 [rows, inputs] -> uint8 [rows, row_bytes], by rows.py, over poison."""
    inputs = x.shape[1]
    made = np.full((len(x), row_bytes(inputs)), 0xA5, np.uint8)
    for source, target in zip(np.ascontiguousarray(x), made, strict=True):
        quantise(address(source), inputs, exact_above, address(target))
    return made


@dataclass(frozen=True)
class Parts:
    """What rows of whole numbers are made of, [rows, groups] and then what the name says."""

    highs: NDArray[np.int8]  # [.., GROUP]
    biases: NDArray[np.int32]
    scales: NDArray[np.float32]
    sums: NDArray[np.float32]
    exact: NDArray[np.bool_]
    lows: NDArray[np.int8]  # [.., GROUP]
    low_biases: NDArray[np.int32]


def parts_of(made: NDArray[np.uint8], inputs: int) -> Parts:
    groups = -(-inputs // GROUP)
    words = -(-groups // 64)
    sizes = (GROUP * groups, 4 * groups, 4 * groups, 4 * groups, 8 * words, GROUP * groups, 4 * groups)
    *parts, _ = (np.ascontiguousarray(part) for part in np.split(made, np.cumsum(sizes), axis=1))
    kinds = (np.int8, np.int32, np.float32, np.float32, np.uint8, np.int8, np.int32)
    highs, biases, scales, sums, sets, lows, low_biases = (
        part.view(kind) for part, kind in zip(parts, kinds, strict=True)
    )
    exact = np.unpackbits(sets, axis=1, bitorder="little").astype(bool)
    assert not exact[:, groups:].any()
    shape = (len(made), groups, GROUP)
    return Parts(highs.reshape(shape), biases, scales, sums, exact[:, :groups], lows.reshape(shape), low_biases)


def numbers_of(made: NDArray[np.uint8], inputs: int) -> Array:
    """What the rows stand for, float64 [rows, inputs up to whole groups]."""
    parts = parts_of(made, inputs)
    whole = parts.highs + parts.lows.astype(np.float64) / 256
    return (whole * parts.scales.astype(np.float64)[..., None]).reshape(len(made), -1)


def bf16(x: Array) -> Array:
    """Rounded to bfloat16, to the nearest even one, as float64."""
    bits = np.ascontiguousarray(x, np.float32).view(np.uint32).astype(np.uint64)
    rounded = (bits + 0x7FFF + (bits >> 16 & 1)) >> 16 << 16
    return np.where(np.isnan(x), np.nan, rounded.astype(np.uint32).view(np.float32)).astype(np.float64)


def from_bf16(bits: NDArray[np.uint16]) -> NDArray[np.float32]:
    return (bits.astype(np.uint32) << 16).view(np.float32)
