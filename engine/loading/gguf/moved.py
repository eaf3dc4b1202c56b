"""moved: blocks of some GGUF types as blocks of 32 of the types that integer arithmetic takes, number for number.

Not dequantisation (blocks.py). Q5_0 and IQ4_NL are whole numbers times a scale, which 8 bits hold exactly. Q4_K's
numbers stay what they are; its scales and minima, products of a float16 and 6 bits, are rounded to float16 again.
"""
from collections.abc import Callable

import numpy as np

from .blocks import Bytes, block_named

BITS = {"Q4_0": 4, "Q4_1": 4, "Q8_0": 8, "Q4_K": 4, "Q5_0": 8, "IQ4_NL": 8}  # that a type's numbers are moved in


def moved(name: str, blocks: Bytes) -> tuple[str, Bytes]:
    """name: one of BITS. blocks: [rows, blocks, bytes] -> one of BLOCK_QUANTISED, and [rows, blocks of 32, bytes]."""
    if name not in _MOVES:
        return name, blocks
    kind, move = _MOVES[name]
    made = move(blocks.reshape(-1, blocks.shape[2]))
    return kind, made.reshape(blocks.shape[0], -1, made.shape[1])


def _in_8_bits(name: str) -> Callable[[Bytes], Bytes]:
    def move(blocks: Bytes) -> Bytes:
        parts = block_named(name).parts_of(blocks)
        numbers = parts.codes.view(np.int8) - np.int8(parts.zero) if parts.table is None else parts.table[parts.codes]
        return np.concatenate((blocks[:, :2], numbers.astype(np.int8).view(np.uint8)), 1)

    return move


def _q4_k(blocks: Bytes) -> Bytes:
    """Each 32 bytes hold a group in their low halves and the next in their high ones."""
    parts = block_named("Q4_K").parts_of(blocks)
    assert parts.low is not None
    made = np.empty((len(blocks), 8, 20), np.uint8)
    for at, numbers in ((0, parts.scales.float32()), (2, parts.low.float32())):
        with np.errstate(over="ignore"):
            made[..., at : at + 2] = numbers.astype("<f2")[..., None].view(np.uint8)
    pairs = blocks[:, 16:].reshape(-1, 4, 2, 16)  # of bytes, each half of a group: its first inputs, its last
    groups = made[..., 4:].reshape(-1, 4, 2, 16)
    groups[:, :, 0] = pairs[:, :, 0] & 0x0F | pairs[:, :, 1] << 4
    groups[:, :, 1] = pairs[:, :, 0] >> 4 | pairs[:, :, 1] & 0xF0
    made[..., 4:] = groups.reshape(-1, 8, 16)
    return made.reshape(-1, 20)


_MOVES: dict[str, tuple[str, Callable[[Bytes], Bytes]]] = {
    "Q5_0": ("Q8_0", _in_8_bits("Q5_0")), "IQ4_NL": ("Q8_0", _in_8_bits("IQ4_NL")), "Q4_K": ("Q4_1", _q4_k),
}  # fmt: skip
