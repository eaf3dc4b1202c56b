"""quantized_files: 4-bit weights as AWQ, GPTQ and GGUF store them, made into W4A16. Opens no file: takes its tensors.

Nothing is rounded on the way, and nothing is dequantised: nibbles move, zeros become what W4A16 knows.
"""
import torch
from torch import Tensor

from .quantized import W4A16, pack_int4

AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)
"""Which of a word's 8 outputs its nibbles hold, from the lowest on (https://github.com/casper-hansen/AutoAWQ)."""

SMALLEST_HALF = 2.0**-14
"""Smaller numbers have fewer bits in float16."""


def from_awq(qweight: Tensor, qzeros: Tensor, scales: Tensor) -> W4A16:
    """qweight [in, out / 8], qzeros [groups, out / 8] int32, scales [groups, out] float16: (q - zero) * scale."""
    q, zeros = (_nibbles(words)[..., torch.tensor(AWQ_ORDER).argsort()].flatten(1) for words in (qweight, qzeros))
    return W4A16(pack_int4(q.T), scales.contiguous(), _unless_all_eight(zeros))


def from_gptq(
    qweight: Tensor, qzeros: Tensor, scales: Tensor, g_idx: Tensor | None = None, *, version: int = 1
) -> W4A16:
    """qweight [in / 8, out], qzeros [groups, out / 8] int32, scales [groups, out]: (q - zero) * scale.

    g_idx: [in], the group of each input; None: they follow one another. Version 1 of the format, which nearly all
    files have, stores each zero less one (https://github.com/AutoGPTQ/AutoGPTQ).
    """
    q = _nibbles(qweight.T).flatten(1)  # [out, in]
    zeros = _nibbles(qzeros).flatten(1) + (1 if version == 1 else 0)
    permutation = None
    if g_idx is not None and not bool((g_idx.diff() >= 0).all()):
        permutation = g_idx.argsort(stable=True)
        q = q[:, permutation]
    return W4A16(pack_int4(q), scales.contiguous(), _unless_all_eight(zeros), permutation)


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


def _nibbles(words: Tensor) -> Tensor:
    """[…] int32 -> […, 8] of 0 … 15, the lowest first."""
    return words[..., None] >> torch.arange(0, 32, 4, device=words.device) & 15


def _unless_all_eight(zeros: Tensor) -> Tensor | None:
    """[groups, out], or None for the symmetric formats: what needs no zeros need not read them."""
    return None if bool((zeros == 8).all()) else zeros.to(torch.uint8).contiguous()
