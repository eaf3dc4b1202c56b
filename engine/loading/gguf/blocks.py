"""The block formats of GGUF tensors: sizes, and dequantisation to float32, value for value what the format defines.

Not a kernel: this runs once, at load. Formats: https://github.com/ggml-org/ggml/blob/master/src/ggml-common.h
"""
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ...errors import ModelError

Bytes = NDArray[np.uint8]
Floats = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class BlockFormat:
    """`dequantise` takes blocks [n, nbytes] and gives values [n, elements]; None where PyTorch has the dtype."""

    name: str
    elements: int
    nbytes: int
    dequantise: Callable[[Bytes], Floats] | None


def block_format(kind: int) -> BlockFormat:
    if kind in _FORMATS:
        return _FORMATS[kind]
    name = f" ({_OTHERS[kind]})" if kind in _OTHERS else ""
    raise ModelError(f"type {kind}{name} is not supported")


def block_named(name: str) -> BlockFormat:
    """name: one that there is."""
    return next(block for block in _FORMATS.values() if block.name == name)


def halves(blocks: Bytes, start: int) -> Floats:
    """The fp16 at byte `start` of each block, as a column."""
    return np.ascontiguousarray(blocks[:, start : start + 2]).view("<f2").astype(np.float32)


def nibbles(packed: Bytes) -> Bytes:
    """[..., n] bytes to [..., 2 n] values: all low nibbles first, then all high ones."""
    return np.concatenate((packed & 0x0F, packed >> 4), axis=-1)


def _planes(packed: Bytes, bits: int) -> Bytes:
    """[..., n] bytes to [..., 8 / bits, n]: the lowest `bits` of every byte, then the next ones."""
    shifts = np.arange(0, 8, bits, dtype=np.uint8)[:, None]
    planes: Bytes = (packed[..., None, :] >> shifts) & np.uint8((1 << bits) - 1)
    return planes


def fifth_bits(blocks: Bytes, start: int) -> Bytes:
    """The 32 bits at byte `start` of each block, one a value: 0 or 16."""
    return np.unpackbits(blocks[:, start : start + 4], axis=1, bitorder="little") * np.uint8(16)


def _q4_0(blocks: Bytes) -> Floats:
    return halves(blocks, 0) * (nibbles(blocks[:, 2:]).astype(np.float32) - 8)


def _q4_1(blocks: Bytes) -> Floats:
    return halves(blocks, 0) * nibbles(blocks[:, 4:]).astype(np.float32) + halves(blocks, 2)


def _q5_0(blocks: Bytes) -> Floats:
    quants = nibbles(blocks[:, 6:]) | fifth_bits(blocks, 2)
    return halves(blocks, 0) * (quants.astype(np.float32) - 16)


def _q5_1(blocks: Bytes) -> Floats:
    quants = nibbles(blocks[:, 8:]) | fifth_bits(blocks, 4)
    return halves(blocks, 0) * quants.astype(np.float32) + halves(blocks, 2)


def _q8_0(blocks: Bytes) -> Floats:
    return halves(blocks, 0) * blocks[:, 2:].view(np.int8).astype(np.float32)


def _q2_k(blocks: Bytes) -> Floats:
    """scales[16] (low nibble scale, high nibble min), qs[64], d, dmin; 16 groups of 16."""
    scales, quants = blocks[:, :16], _planes(blocks[:, 16:80].reshape(-1, 2, 32), 2)
    scale = halves(blocks, 80) * (scales & 0x0F).astype(np.float32)
    least = halves(blocks, 82) * (scales >> 4).astype(np.float32)
    return (scale[..., None] * quants.reshape(-1, 16, 16).astype(np.float32) - least[..., None]).reshape(-1, 256)


def _q3_k(blocks: Bytes) -> Floats:
    """hmask[32] (a clear bit takes 4 away), qs[64], scales[12] (16 of 6 bits, less 32), d; 16 groups of 16."""
    packed = blocks[:, 96:108]
    low = nibbles(packed[:, :8])
    high = _planes(packed[:, 8:], 2).reshape(-1, 16)
    scale = halves(blocks, 108) * ((low | high << 4).astype(np.float32) - 32)
    quants = _planes(blocks[:, 32:96].reshape(-1, 2, 32), 2).reshape(-1, 16, 16).astype(np.float32)
    clear = _planes(blocks[:, :32], 1).reshape(-1, 16, 16) ^ 1
    return (scale[..., None] * (quants - 4 * clear.astype(np.float32))).reshape(-1, 256)


def scales_and_mins(packed: Bytes) -> tuple[Floats, Floats]:
    """Q4_K's and Q5_K's 12 bytes: 8 scales and 8 mins of 6 bits; the top two of groups 4 to 7 lie with 0 to 3."""
    first, second, last = packed[:, :4], packed[:, 4:8], packed[:, 8:]
    scales = np.concatenate((first & 0x3F, (last & 0x0F) | (first >> 6) << 4), axis=1)
    mins = np.concatenate((second & 0x3F, (last >> 4) | (second >> 6) << 4), axis=1)
    return scales.astype(np.float32), mins.astype(np.float32)


def _q4_k(blocks: Bytes) -> Floats:
    """d, dmin, 12 bytes of scales, qs[128]; 8 groups of 32."""
    scales, mins = scales_and_mins(blocks[:, 4:16])
    quants = _planes(blocks[:, 16:].reshape(-1, 4, 32), 4).reshape(-1, 8, 32)
    return _scaled_groups(blocks, scales, mins, quants)


def _q5_k(blocks: Bytes) -> Floats:
    """d, dmin, 12 bytes of scales, qh[32] (bit g belongs to group g), qs[128]; 8 groups of 32."""
    scales, mins = scales_and_mins(blocks[:, 4:16])
    quants = _planes(blocks[:, 48:].reshape(-1, 4, 32), 4).reshape(-1, 8, 32)
    return _scaled_groups(blocks, scales, mins, quants | _planes(blocks[:, 16:48], 1) * np.uint8(16))


def _scaled_groups(blocks: Bytes, scales: Floats, mins: Floats, quants: Bytes) -> Floats:
    scale, least = halves(blocks, 0) * scales, halves(blocks, 2) * mins
    return (scale[..., None] * quants.astype(np.float32) - least[..., None]).reshape(-1, 256)


_E2M1 = np.array([0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12], np.float32)  # twice the numbers
IQ4 = np.array((-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113), np.float32)


def _iq4_nl(blocks: Bytes) -> Floats:
    return halves(blocks, 0) * IQ4[nibbles(blocks[:, 2:])]


def _iq4_xs(blocks: Bytes) -> Floats:
    """d, 2 bytes and 4 bytes of scales (8 of 6 bits, less 32; the top two bits first), qs[128]; 8 groups of 32."""
    low = _planes(blocks[:, 4:8], 4).swapaxes(1, 2).reshape(-1, 8)
    high = _planes(blocks[:, 2:4], 2).swapaxes(1, 2).reshape(-1, 8)
    scale = halves(blocks, 0) * ((low | high << 4).astype(np.float32) - 32)
    return (scale[..., None] * IQ4[nibbles(blocks[:, 8:].reshape(-1, 8, 16))]).reshape(-1, 256)


def mxfp4_values(scales: Bytes, codes: Bytes) -> Floats:
    """OCP's microscaling format: scales [...], the exponents of powers of two, codes [..., n] of 4 bits -> [..., n].

    The smallest results are no normal float32; 255, which the format calls no number, is the power that it would be.
    """
    power = np.ldexp(np.float32(1), scales.astype(np.int32) - 128)  # codes are twice what they stand for
    return power[..., None] * _E2M1[codes]


def _mxfp4(blocks: Bytes) -> Floats:
    return mxfp4_values(blocks[:, 0], nibbles(blocks[:, 1:]))


def _q6_k(blocks: Bytes) -> Floats:
    """ql[128], qh[64], scales[16] (int8), d; 16 groups of 16, the quants less 32."""
    low = _planes(blocks[:, :128].reshape(-1, 2, 64), 4).reshape(-1, 8, 32)
    high = _planes(blocks[:, 128:192].reshape(-1, 2, 32), 2).reshape(-1, 8, 32)
    quants = (low | high << 4).reshape(-1, 16, 16).astype(np.float32) - 32
    scale = halves(blocks, 208) * blocks[:, 192:208].view(np.int8).astype(np.float32)
    return (scale[..., None] * quants).reshape(-1, 256)


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
