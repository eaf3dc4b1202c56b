"""Packed numbers: random matrices and rows as the CPU path has them, and what they stand for in float64. Not a test."""
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hamdam.kernels.cpu import packing, rows
from hamdam.kernels.cpu.packing import Blocks
from hamdam.kernels.cpu.product import row_bytes
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


def packed(blocks: Blocks, inputs: int) -> packing.Packed:
    return packing.pack(blocks, inputs)


def quantised(x: Array, passes: int) -> NDArray[np.uint8]:
    """float32 [rows, inputs] -> uint8 [rows, row_bytes], by rows.py, over poison."""
    inputs = x.shape[1]
    groups = -(-inputs // GROUP)
    made = np.full((len(x), row_bytes(inputs, passes)), 0xA5, np.uint8)
    quantise = rows.quantise_one if passes == 1 else rows.quantise_two
    for source, target in zip(np.ascontiguousarray(x), made, strict=True):
        quantise(address(source), inputs, address(target), address(target) + GROUP * groups * passes)
    return made


def numbers_of(made: NDArray[np.uint8], inputs: int, passes: int) -> Array:
    """What the rows stand for, float64 [rows, inputs up to whole groups]."""
    groups = -(-inputs // GROUP)
    bytes = made[:, : GROUP * groups * passes].view(np.int8)
    numbers = bytes.reshape(len(made), groups, passes, GROUP).astype(np.float64)
    scales = scales_of(made, inputs, passes).astype(np.float64)
    whole = numbers[:, :, 0] if passes == 1 else 256 * numbers[:, :, 0] + numbers[:, :, 1]
    return (whole * scales[..., None]).reshape(len(made), -1)


def scales_of(made: NDArray[np.uint8], inputs: int, passes: int) -> NDArray[np.float32]:
    """[rows, groups], or [rows, 1] with two passes."""
    groups = -(-inputs // GROUP)
    at = GROUP * groups * passes + 8 * groups
    return np.ascontiguousarray(made[:, at : at + 4 * (groups if passes == 1 else 1)]).view(np.float32)


def bf16(x: Array) -> Array:
    """Rounded to bfloat16, to the nearest even one, as float64."""
    bits = np.ascontiguousarray(x, np.float32).view(np.uint32).astype(np.uint64)
    rounded = (bits + 0x7FFF + (bits >> 16 & 1)) >> 16 << 16
    return np.where(np.isnan(x), np.nan, rounded.astype(np.uint32).view(np.float32)).astype(np.float64)


def from_bf16(bits: NDArray[np.uint16]) -> NDArray[np.float32]:
    return (bits.astype(np.uint32) << 16).view(np.float32)
