"""KvCache: how keys and values lie in memory, as they are or in 8 bits. What 8 bits hold is kv_codes.py's.

A cache is one tensor, so that whoever copies, moves or counts blocks need not know what is in them. In the memory of
one layer its blocks lie one after another, in a block the keys before the values, in these the heads, in a head the
tokens, in a token its dimensions: what one program of an attention kernel reads of a block is one piece.

In 8 bits a head's scales lie behind its codes: block_size * head_dim bytes of codes, then block_size * 4 bytes of
scales, which makes (head_dim + 4) bytes a token and head.
"""
from dataclasses import dataclass

import torch
from torch import Tensor

from ..kv_codes import LARGEST, SCALE_BYTES


@dataclass(frozen=True, slots=True)
class KvCache:
    """A cache's parts, as views of it. Index 0 of dimension 2 is the keys, 1 the values."""

    codes: Tensor  # [layers, blocks, 2, kv_heads, block_size, head_dim]
    scales: Tensor | None  # [layers, blocks, 2, kv_heads, block_size] float32; None where the codes are the numbers

    @property
    def head_stride(self) -> int:
        """Codes from a head's first to the next head's, whatever PyTorch says where there is one head only."""
        block_size, head_dim = self.codes.shape[-2:]
        return block_size * (head_dim if self.scales is None else head_dim + SCALE_BYTES)

    @classmethod
    def of(cls, cache: Tensor) -> "KvCache":
        """`cache` as `new_cache` made it."""
        if cache.dtype not in LARGEST:
            return cls(cache, None)
        *_, block_size, wide = cache.shape
        head_dim = wide - SCALE_BYTES
        heads = cache.flatten(-2)  # the last two dimensions say how many bytes there are, not where
        codes, scales = heads.split((block_size * head_dim, block_size * SCALE_BYTES), -1)
        return cls(codes.unflatten(-1, (block_size, head_dim)), scales.view(torch.float32))


def new_cache(
    layers: int, blocks: int, block_size: int, kv_heads: int, head_dim: int, *, dtype: torch.dtype, device: torch.device
) -> Tensor:
    """[layers, blocks, 2, kv_heads, block_size, head_dim], or where dtype is one of 8 bits head_dim + 4; not filled."""
    wide = head_dim + SCALE_BYTES if dtype in LARGEST else head_dim
    return torch.empty(layers, blocks, 2, kv_heads, block_size, wide, dtype=dtype, device=device)
