"""quantized_gguf: 4-bit weights as GGUF stores them, made into W4A16. Opens no file: takes its blocks.

Nothing is dequantised: nibbles move, and of scales only Q4_K's may be rounded, to float16.
"""
import torch
from torch import Tensor

from .quantized import W4A16, pack_int4

SMALLEST_HALF = 2.0**-14
"""Smaller numbers have fewer bits in float16."""


def from_gguf(blocks: Tensor, kind: str) -> W4A16:
    """blocks [out, in / elements, bytes] uint8 of "Q4_0", "Q4_1" or "Q4_K", as ggml-common.h has them."""
    make = {"Q4_0": _from_q4_0, "Q4_1": _from_q4_1, "Q4_K": _from_q4_k}[kind]
    return make(blocks)


def _from_q4_0(blocks: Tensor) -> W4A16:
    """d float16, 16 bytes: low nibbles, then high ones. d (q - 8)."""
    return W4A16(_packed(blocks[..., 2:]), _halves(blocks[..., :2]))


def _from_q4_1(blocks: Tensor) -> W4A16:
    """d, m float16, 16 bytes as Q4_0's. d q + m."""
    return W4A16(_packed(blocks[..., 4:]), _halves(blocks[..., :2]), _halves(blocks[..., 2:4]))


def _from_q4_k(blocks: Tensor) -> W4A16:
    """d, dmin float16, 12 bytes: 8 scales and 8 mins of 6 bits, 4 times 32 bytes: two groups each. d s q - dmin m."""
    packed = blocks[..., 4:16].to(torch.int32)
    first, second, third = packed[..., :4], packed[..., 4:8], packed[..., 8:]
    scale = torch.cat((first & 63, third & 15 | first >> 6 << 4), -1)  # [out, blocks, 8]
    least = torch.cat((second & 63, third >> 4 | second >> 6 << 4), -1)
    d, dmin = (_halves(blocks[..., at : at + 2]).T[..., None].float() for at in (0, 2))
    scales, zeros = (x.flatten(1).T.contiguous() for x in (d * scale, -dmin * least))
    if all(bool(((x == 0) | (x.abs() >= SMALLEST_HALF)).all()) for x in (scales, zeros)):
        scales, zeros = scales.half(), zeros.half()
    return W4A16(_packed(blocks[..., 16:].reshape(*blocks.shape[:2], 4, 32)), scales, zeros)


def _packed(data: Tensor) -> Tensor:
    """[out, …, n] bytes, each n of them 2 n nibbles, the low ones first -> W4A16's packed."""
    q = torch.cat((data & 15, data >> 4), -1).flatten(1)
    return pack_int4(q)


def _halves(data: Tensor) -> Tensor:
    """[out, groups, 2] bytes -> [groups, out] float16."""
    return data.contiguous().view(torch.float16)[..., 0].T.contiguous()
