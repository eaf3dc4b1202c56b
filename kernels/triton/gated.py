"""gated: silu_and_mul and gelu_and_mul, the activations between two linears, with int8 or fp8 rows as a choice."""
from functools import partial

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..quantized import LARGEST, QuantizedRows
from .product import converted
from .quantise import store_quantised
from .variant import FP8_TARGETS, Variant, meta

TILE = 2048  # numbers of a row that a program makes, where no scale needs the whole of it


def silu_and_mul(gate_up: Tensor, *, out_dtype: torch.dtype | None = None) -> Tensor | QuantizedRows:
    """As Ops.silu_and_mul. With out_dtype int8 or float8_e4m3fn the product, not rounded before, as quantise_rows."""
    return _gated(gate_up, out_dtype, gelu=False)


def gelu_and_mul(gate_up: Tensor, *, out_dtype: torch.dtype | None = None) -> Tensor | QuantizedRows:
    """As Ops.gelu_and_mul, with out_dtype as above."""
    return _gated(gate_up, out_dtype, gelu=True)


def _gated(gate_up: Tensor, out_dtype: torch.dtype | None, *, gelu: bool) -> Tensor | QuantizedRows:
    count, n = gate_up.shape[0], gate_up.shape[1] // 2
    quantised = out_dtype is not None
    out = torch.empty(count, n, dtype=out_dtype or gate_up.dtype, device=gate_up.device)
    scales = torch.empty(count if quantised else 0, dtype=torch.float32, device=gate_up.device)
    width = triton.next_power_of_2(n) if quantised else min(TILE, triton.next_power_of_2(n))
    if count:
        _activate[(count, triton.cdiv(n, width))](
            gate_up, out, scales, n, gate_up.stride(0), width, gelu, LARGEST[out_dtype] if out_dtype else 0,
            num_warps=max(1, min(16, width // 512)),
        )
    return QuantizedRows(out, scales) if quantised else out


@triton.jit
def _activate(gate_up, out, scales, n, stride, WIDTH: tl.constexpr, GELU: tl.constexpr, LARGEST: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * WIDTH + tl.arange(0, WIDTH)[None, :]
    mask = column < n
    gate = tl.load(gate_up + row * stride + column, mask, other=0.0).to(tl.float32)
    up = tl.load(gate_up + row * stride + n + column, mask, other=0.0).to(tl.float32)
    if GELU:
        # 0.5 (1 + tanh z) is sigmoid(2 z): one exponential, and none that overflows to infinity over infinity
        inner = 1.5957691216057308 * (gate + 0.044715 * gate * gate * gate)
        product = gate * tl.sigmoid(inner) * up
    else:
        product = gate * tl.sigmoid(gate) * up
    if LARGEST:
        at = tl.arange(0, 1)[:, None] + row
        store_quantised(product, out + row * n + column, scales + at, mask, at >= 0, LARGEST)
    else:
        tl.store(out + row * n + column, converted(product, out.dtype.element_ty), mask)


def _variants() -> tuple[Variant, ...]:
    tokens, n = 64, 14336
    gate_up = meta(tokens, 2 * n)
    return (
        Variant("silu, 64 x 14336", partial(silu_and_mul, gate_up), gate_up.nbytes * 3 // 2, 5 * tokens * n),
        Variant("gelu, 64 x 14336", partial(gelu_and_mul, gate_up), gate_up.nbytes * 3 // 2, 9 * tokens * n),
        Variant(
            "silu, 64 x 14336, int8 out", partial(silu_and_mul, gate_up, out_dtype=torch.int8),
            gate_up.nbytes + tokens * (n + 4), 8 * tokens * n,
        ),
        Variant(
            "silu, 64 x 14336, fp8 out", partial(silu_and_mul, gate_up, out_dtype=torch.float8_e4m3fn),
            gate_up.nbytes + tokens * (n + 4), 8 * tokens * n, FP8_TARGETS,
        ),
    )


VARIANTS = _variants()
