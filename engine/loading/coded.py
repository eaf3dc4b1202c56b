"""Coded: rows of a matrix as numbers of a few bits with scales, whatever format they came in. It opens no file.

Exact: what `float32` gives is (code - zero) * scale, rounded once.
"""
import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .numbers import Floats, Quantized

RUN = 32  # inputs of a block of Q4_1 and Q8_0


def _e4m3() -> Floats:
    """float8_e4m3fn by its bits: 4 of exponent, 3 of fraction, no infinity (https://arxiv.org/abs/2209.05433)."""
    bits = np.arange(256)
    exponent, fraction = bits >> 3 & 15, bits & 7
    size = np.where(exponent == 0, fraction * 2.0**-9, (8 + fraction) * 2.0 ** (exponent - 10.0))
    size[[0x7F, 0xFF]] = np.nan
    return np.where(bits & 0x80, -size, size).astype(np.float32)


E4M3 = _e4m3()


@dataclass(frozen=True, slots=True)
class Coded:
    """weight[o, i] = (codes[o, i] - zeros[o, groups[i]]) * scales[o, groups[i]].

    codes: uint8 [rows, in], whole numbers 0 … 2^bits - 1, or float8_e4m3fn where there are no zeros.
    scales: float32 [rows, number of groups]. zeros: float32 like them, whole numbers; None: codes are floats.
    size, groups: `size` inputs, one after another, have a group; or int [in] of groups, where they are scattered.
    block: outputs that share scales; 1: each has its own.
    scales_dtype: one of DTYPES that has the scales exactly. centred: the format has no other zeros than 2^(bits - 1).
    """

    bits: int
    codes: NDArray[np.uint8]
    scales: Floats
    zeros: Floats | None
    size: int
    groups: NDArray[np.int64] | None = None
    block: int = 1
    scales_dtype: str = "F32"
    centred: bool = False

    def float32(self) -> Floats:
        """[rows, in]."""
        if self.zeros is None:
            values = E4M3[self.codes]
        else:
            values = self.codes.astype(np.float32)
            values -= self._spread(self.zeros)
        with np.errstate(all="ignore"):  # a scale that is no number shows in the logits
            values *= self._spread(self.scales)
        return values

    def blocks(self) -> Quantized | None:
        """As blocks of Q4_1 or Q8_0, code for code; None where they cannot say it.

        The scale is rounded to float16, which the files' own mostly are; so is Q4_1's minimum, -zero * scale, which is
        exact for the zeros of symmetric formats, 8 being a power of two.
        """
        if self.zeros is None or not in_runs(self.groups, self.size, self.codes.shape[1]):
            return None
        rows, inputs = self.codes.shape
        runs = -(-inputs // RUN)
        codes = self.codes if inputs == runs * RUN else np.pad(self.codes, ((0, 0), (0, runs * RUN - inputs)))
        first = (np.arange(runs) * RUN // self.size) if self.groups is None else self.groups[::RUN]
        scales, zeros = self.scales[:, first], self.zeros[:, first]
        if self.bits <= 4:
            blocks = np.empty((rows, runs, 20), np.uint8)
            blocks[..., :2] = _halves(scales)
            blocks[..., 2:4] = _halves(-zeros * scales)
            pairs = codes.reshape(rows, runs, 2, RUN // 2)
            np.bitwise_or(pairs[:, :, 0], pairs[:, :, 1] << 4, out=blocks[..., 4:])
            return Quantized("Q4_1", blocks, (rows, inputs))
        if not (zeros == 128).all():
            return None
        blocks = np.empty((rows, runs, 34), np.uint8)
        blocks[..., :2] = _halves(scales)
        np.bitwise_xor(codes.reshape(rows, runs, RUN), np.uint8(0x80), out=blocks[..., 2:])
        return Quantized("Q8_0", blocks, (rows, inputs))

    def _spread(self, numbers: Floats) -> Floats:
        """[rows, groups] -> [rows, in], or what is broadcast to it."""
        if numbers.shape[1] == 1:
            return numbers
        if self.groups is not None:
            return numbers[:, self.groups]
        return np.repeat(numbers, self.size, 1)[:, : self.codes.shape[1]]


def in_runs(groups: NDArray[np.int64] | None, size: int, inputs: int) -> bool:
    """Whether the inputs of each whole run of RUN have one group."""
    if groups is None:
        return size % RUN == 0 or size >= inputs
    runs = np.pad(groups, (0, -len(groups) % RUN), mode="edge").reshape(-1, RUN)
    return bool((runs == runs[:, :1]).all())


def _halves(numbers: Floats) -> NDArray[np.uint8]:
    """[rows, groups] as float16 -> their bytes [rows, groups, 2]."""
    with np.errstate(over="ignore"):
        return np.ascontiguousarray(numbers).astype("<f2")[..., None].view(np.uint8)


def words_of(numbers: range, bits: int) -> tuple[range, slice]:
    """The words of a row that hold these numbers of `bits` bits, and which they are of all that those words hold."""
    width, count = _run(bits)
    first, end = numbers.start // count, -(-numbers.stop // count)
    return range(first * width, end * width), slice(numbers.start - first * count, numbers.stop - first * count)


def unpacked(words: NDArray[Any], bits: int) -> NDArray[np.uint8]:
    """int32 […, words] -> the numbers of `bits` bits that they hold, […, numbers], from the lowest bit on.

    A number of 3 bits may begin in one word and end in the next: 32 of them lie in 3 words.
    """
    width, count = _run(bits)
    wide = np.ascontiguousarray(words).view(np.uint32)
    wide = wide.reshape(*wide.shape[:-1], -1, width)
    numbers = np.empty((*wide.shape[:-1], count), np.uint8)
    mask = np.uint32((1 << bits) - 1)
    for at in range(count):
        word, shift = divmod(at * bits, 32)
        number = wide[..., word] >> np.uint32(shift)
        if shift + bits > 32:
            number |= wide[..., word + 1] << np.uint32(32 - shift)
        numbers[..., at] = number & mask
    return numbers.reshape(*words.shape[:-1], -1)


def _run(bits: int) -> tuple[int, int]:
    """How many words hold whole numbers together, and how many those are."""
    width = bits // math.gcd(bits, 32)
    return width, 32 * width // bits
