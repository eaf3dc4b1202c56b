"""The block formats of GGUF tensors: sizes, what blocks are made of, and their values, exactly what the format defines.

Not a kernel: this runs once, at load. Formats: https://github.com/ggml-org/ggml/blob/master/src/ggml-common.h
"""
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...errors import ModelError

Bytes = NDArray[np.uint8]
Floats = NDArray[np.float32]


class Scales(NamedTuple):
    """A number for each group of a block: floats [n], or (step - middle) times them; steps: uint8 [n, groups]."""

    floats: NDArray[Any]
    steps: Bytes | None = None
    bits: int = 0  # of a step
    middle: int = 0

    def float32(self) -> Floats:
        """[n, groups]."""
        floats = self.floats.astype(np.float32)[:, None]
        return floats if self.steps is None else floats * (self.steps.astype(np.float32) - self.middle)


class Parts(NamedTuple):
    """What blocks are made of: value = (code - zero) * scale + low, groups following one another, of one size.

    codes: uint8 [n, elements], each 0 … 2^bits - 1. low: None: none. table: what codes stand for, and not code - zero.
    """

    bits: int
    codes: Bytes
    scales: Scales
    low: Scales | None = None
    zero: int = 0
    table: Floats | None = None

    def float32(self) -> Floats:
        """[n, elements]."""
        scales = self.scales.float32()
        values = self.codes.astype(np.float32) - self.zero if self.table is None else self.table[self.codes]
        groups = values.reshape(*scales.shape, -1)
        groups *= scales[..., None]
        if self.low is not None:
            groups += self.low.float32()[..., None]
        return values


@dataclass(frozen=True, slots=True)
class BlockFormat:
    """`parts` takes blocks [n, nbytes]; None where PyTorch has the dtype."""

    name: str
    elements: int
    nbytes: int
    parts: Callable[[Bytes], Parts] | None

    def parts_of(self, blocks: Bytes) -> Parts:
        assert self.parts is not None
        return self.parts(blocks)

    def dequantise(self, blocks: Bytes) -> Floats:
        """Blocks [n, nbytes] -> values [n, elements]."""
        return self.parts_of(blocks).float32()


def block_format(kind: int) -> BlockFormat:
    if kind in _FORMATS:
        return _FORMATS[kind]
    name = f" ({_OTHERS[kind]})" if kind in _OTHERS else ""
    raise ModelError(f"type {kind}{name} is not supported")


def block_named(name: str) -> BlockFormat:
    """name: one that there is."""
    return next(block for block in _FORMATS.values() if block.name == name)


def _halves(blocks: Bytes, start: int) -> NDArray[np.float16]:
    """The fp16 at byte `start` of each block, [n]."""
    return np.ascontiguousarray(blocks[:, start : start + 2]).view("<f2")[:, 0]


def _nibbles(packed: Bytes) -> Bytes:
    """[..., n] bytes to [..., 2 n] values: all low nibbles first, then all high ones."""
    return np.concatenate((packed & 0x0F, packed >> 4), axis=-1)


def _planes(packed: Bytes, bits: int) -> Bytes:
    """[..., n] bytes to [..., 8 / bits, n]: the lowest `bits` of every byte, then the next ones."""
    shifts = np.arange(0, 8, bits, dtype=np.uint8)[:, None]
    planes: Bytes = (packed[..., None, :] >> shifts) & np.uint8((1 << bits) - 1)
    return planes


def _joined(low: Bytes, high: Bytes, bits: int) -> Bytes:
    """Numbers whose lowest `bits` bits are in `low`."""
    return low | high << np.uint8(bits)


def _fifth_bits(blocks: Bytes, start: int) -> Bytes:
    """The 32 bits at byte `start` of each block, one a value: 0 or 16."""
    return np.unpackbits(blocks[:, start : start + 4], axis=1, bitorder="little") * np.uint8(16)


def _q4_0(blocks: Bytes) -> Parts:
    return Parts(4, _nibbles(blocks[:, 2:]), Scales(_halves(blocks, 0)), zero=8)


def _q4_1(blocks: Bytes) -> Parts:
    return Parts(4, _nibbles(blocks[:, 4:]), Scales(_halves(blocks, 0)), Scales(_halves(blocks, 2)))


def _q5_0(blocks: Bytes) -> Parts:
    return Parts(5, _nibbles(blocks[:, 6:]) | _fifth_bits(blocks, 2), Scales(_halves(blocks, 0)), zero=16)


def _q5_1(blocks: Bytes) -> Parts:
    codes = _nibbles(blocks[:, 8:]) | _fifth_bits(blocks, 4)
    return Parts(5, codes, Scales(_halves(blocks, 0)), Scales(_halves(blocks, 2)))


def _q8_0(blocks: Bytes) -> Parts:
    return Parts(8, blocks[:, 2:] ^ np.uint8(0x80), Scales(_halves(blocks, 0)), zero=128)


def _q2_k(blocks: Bytes) -> Parts:
    """scales[16] (low nibble scale, high nibble min), qs[64], d, dmin; 16 groups of 16."""
    steps, codes = blocks[:, :16], _planes(blocks[:, 16:80].reshape(-1, 2, 32), 2)
    scales = Scales(_halves(blocks, 80), steps & np.uint8(15), 4)
    return Parts(2, codes.reshape(-1, 256), scales, Scales(-_halves(blocks, 82), steps >> np.uint8(4), 4))


def _q3_k(blocks: Bytes) -> Parts:
    """hmask[32] (a clear bit takes 4 away), qs[64], scales[12] (16 of 6 bits, less 32), d; 16 groups of 16."""
    packed = blocks[:, 96:108]
    steps = _joined(_nibbles(packed[:, :8]), _planes(packed[:, 8:], 2).reshape(-1, 16), 4)
    codes = _planes(blocks[:, 32:96].reshape(-1, 2, 32), 2).reshape(-1, 256)
    third = _planes(blocks[:, :32], 1).reshape(-1, 256)
    return Parts(3, _joined(codes, third, 2), Scales(_halves(blocks, 108), steps, 6, 32), zero=4)


def _q4_k(blocks: Bytes) -> Parts:
    """d, dmin, 12 bytes of scales, qs[128]; 8 groups of 32."""
    return _with_mins(blocks, 4, _planes(blocks[:, 16:].reshape(-1, 4, 32), 4).reshape(-1, 256))


def _q5_k(blocks: Bytes) -> Parts:
    """d, dmin, 12 bytes of scales, qh[32] (bit g belongs to group g), qs[128]; 8 groups of 32."""
    low = _planes(blocks[:, 48:].reshape(-1, 4, 32), 4).reshape(-1, 256)
    return _with_mins(blocks, 5, _joined(low, _planes(blocks[:, 16:48], 1).reshape(-1, 256), 4))


def _with_mins(blocks: Bytes, bits: int, codes: Bytes) -> Parts:
    """12 bytes: 8 scales and 8 mins of 6 bits; the top two of groups 4 to 7 lie with 0 to 3."""
    first, second, last = blocks[:, 4:8], blocks[:, 8:12], blocks[:, 12:16]
    scales = np.concatenate((first & np.uint8(63), _joined(last & np.uint8(15), first >> np.uint8(6), 4)), axis=1)
    mins = np.concatenate((second & np.uint8(63), _joined(last >> np.uint8(4), second >> np.uint8(6), 4)), axis=1)
    return Parts(bits, codes, Scales(_halves(blocks, 0), scales, 6), Scales(-_halves(blocks, 2), mins, 6))


def _q6_k(blocks: Bytes) -> Parts:
    """ql[128], qh[64], scales[16] (int8), d; 16 groups of 16, the quants less 32."""
    low = _planes(blocks[:, :128].reshape(-1, 2, 64), 4).reshape(-1, 8, 32)
    high = _planes(blocks[:, 128:192].reshape(-1, 2, 32), 2).reshape(-1, 8, 32)
    scales = Scales(_halves(blocks, 208), blocks[:, 192:208] ^ np.uint8(0x80), 8, 128)
    return Parts(6, _joined(low, high, 4).reshape(-1, 256), scales, zero=32)


_IQ4 = np.array((-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113), np.float32)
_E2M1 = np.array([0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12], np.float32)  # twice the numbers


def _iq4_nl(blocks: Bytes) -> Parts:
    return Parts(4, _nibbles(blocks[:, 2:]), Scales(_halves(blocks, 0)), table=_IQ4)


def _iq4_xs(blocks: Bytes) -> Parts:
    """d, 2 bytes and 4 bytes of scales (8 of 6 bits, less 32; the top two bits first), qs[128]; 8 groups of 32."""
    low = _planes(blocks[:, 4:8], 4).swapaxes(1, 2).reshape(-1, 8)
    high = _planes(blocks[:, 2:4], 2).swapaxes(1, 2).reshape(-1, 8)
    codes = _nibbles(blocks[:, 8:].reshape(-1, 8, 16)).reshape(-1, 256)
    return Parts(4, codes, Scales(_halves(blocks, 0), _joined(low, high, 4), 6, 32), table=_IQ4)


def _mxfp4(blocks: Bytes) -> Parts:
    """OCP's microscaling format: the exponent of a power of two, and 32 numbers.

    The smallest results are no normal float32; 255, which the format calls no number, is the power that it would be.
    """
    power = np.ldexp(np.float32(1), blocks[:, 0].astype(np.int32) - 128)  # codes are twice what they stand for
    return Parts(4, _nibbles(blocks[:, 1:]), Scales(power), table=_E2M1)


_FORMATS = {
    0: BlockFormat("F32", 1, 4, None),
    1: BlockFormat("F16", 1, 2, None),
    30: BlockFormat("BF16", 1, 2, None),
    2: BlockFormat("Q4_0", 32, 18, _q4_0),
    3: BlockFormat("Q4_1", 32, 20, _q4_1),
    6: BlockFormat("Q5_0", 32, 22, _q5_0),
    7: BlockFormat("Q5_1", 32, 24, _q5_1),
    8: BlockFormat("Q8_0", 32, 34, _q8_0),
    10: BlockFormat("Q2_K", 256, 84, _q2_k),
    11: BlockFormat("Q3_K", 256, 110, _q3_k),
    12: BlockFormat("Q4_K", 256, 144, _q4_k),
    13: BlockFormat("Q5_K", 256, 176, _q5_k),
    14: BlockFormat("Q6_K", 256, 210, _q6_k),
    20: BlockFormat("IQ4_NL", 32, 18, _iq4_nl),
    23: BlockFormat("IQ4_XS", 256, 136, _iq4_xs),
    39: BlockFormat("MXFP4", 32, 17, _mxfp4),
}

_OTHERS = {
    9: "Q8_1", 15: "Q8_K", 16: "IQ2_XXS", 17: "IQ2_XS", 18: "IQ3_XXS", 19: "IQ1_S", 21: "IQ3_S",
    22: "IQ2_S", 24: "I8", 25: "I16", 26: "I32", 27: "I64", 28: "F64", 29: "IQ1_M", 34: "TQ1_0",
    35: "TQ2_0", 40: "NVFP4",
}  # fmt: skip
