"""TritonOps: the operations on a GPU, each by its kernel in this folder. Plain matrices are multiplied by PyTorch, but
where a row's sum must not depend on how many rows there are."""
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from ..ops import Attention, Rows, Weight
from ..unpacked import Mxfp4
from . import gated, kv_format, paged_attention, quant_linear, rms_norm, sample, store_kv, w16a16


class TritonOps:
    quantised = True
    kv_layout = "layer, block, key | value, head, token, dim; in 8 bits a head's scales behind its codes"

    def __init__(self, *, invariant: bool = False) -> None:
        """invariant: a row's results are the same, to the bit, in any company and however it was cut into steps."""
        self.invariant = invariant

    def pack(self, weight: Tensor) -> Weight:
        return weight

    def linear(self, x: Tensor, weight: Weight, bias: Tensor | None = None) -> Tensor:
        """As Ops.linear; a matrix of kernels/quantized.py is taken as well, and an Mxfp4 one as floats for once."""
        if isinstance(weight, Mxfp4):
            weight = weight.dequantise().to(x.dtype)
        if isinstance(weight, Tensor):
            return w16a16.w16a16(x, weight, bias) if self.invariant else F.linear(x, weight, bias)
        return quant_linear.linear(x, weight, bias, invariant=self.invariant)

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float, *, residual: Tensor | None = None) -> Tensor:
        normed = rms_norm.rms_norm(x, weight, eps, residual=residual)
        assert isinstance(normed, Tensor)  # 8 bits were not asked for
        return normed

    def rotary(self, x: Tensor, cosine: Tensor, sine: Tensor) -> None:
        store_kv.rotary(x, cosine, sine)

    def silu_and_mul(self, gate_up: Tensor) -> Tensor:
        gated_up = gated.silu_and_mul(gate_up)
        assert isinstance(gated_up, Tensor)
        return gated_up

    def gelu_and_mul(self, gate_up: Tensor) -> Tensor:
        gated_up = gated.gelu_and_mul(gate_up)
        assert isinstance(gated_up, Tensor)
        return gated_up

    def new_kv_cache(
        self, layers: int, blocks: int, block_size: int, kv_heads: int, head_dim: int,
        *, dtype: torch.dtype, device: torch.device,
    ) -> Tensor:
        """As Ops.new_kv_cache; of int8 or float8_e4m3fn it holds scales too."""
        return kv_format.new_cache(layers, blocks, block_size, kv_heads, head_dim, dtype=dtype, device=device)

    def store_kv(self, key: Tensor, value: Tensor, cache: Tensor, layer: int, rows: Rows) -> None:
        store_kv.store_kv(key, value, cache, layer, rows.slots)

    def turn_and_store(
        self, query: Tensor, key: Tensor, value: Tensor, cosine: Tensor, sine: Tensor, cache: Tensor, layer: int,
        rows: Rows, *, norms: tuple[Tensor, Tensor, float] | None = None,
    ) -> Tensor:
        """The heads' norms, if any, rotary of query and key, and store_kv in one kernel -> the turned query [T, H, D].

        norms: the weights [D] of queries and of keys, and eps. Query, key and value are not changed.
        """
        return store_kv.turn_and_store(query, key, value, cosine, sine, cache, layer, rows.slots, norms=norms)

    def copy_blocks(self, cache: Tensor, pairs: Sequence[tuple[int, int]]) -> None:
        for source, target in pairs:
            cache[:, target] = cache[:, source]

    def paged_attention(
        self, cache: Tensor, rows: Rows, *, scale: float, window: int | None = None, soft_cap: float | None = None,
        sinks: Tensor | None = None,
    ) -> Attention:
        return paged_attention.paged_attention(
            cache, rows, scale=scale, window=window, soft_cap=soft_cap, sinks=sinks, invariant=self.invariant
        )

    def sample(
        self, logits: Tensor, temperature: Tensor, top_k: Tensor, top_p: Tensor, min_p: Tensor, uniform: Tensor
    ) -> Tensor:
        return sample.sample(logits, temperature, top_k, top_p, min_p, uniform)
