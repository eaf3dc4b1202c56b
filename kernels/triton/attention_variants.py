"""attention_variants: the ways in which attention is launched for models that people run, to be compiled and reported.

Not in paged_attention.py as other kernels' are beside them: it has more of them.
"""
from collections.abc import Sequence
from functools import partial

import torch

from ..ops import Rows
from .kv_format import new_cache
from .paged_attention import paged_attention
from .variant import Variant, meta


def _variant(
    name: str, counts: Sequence[int], contexts: Sequence[int], *, heads: int = 32, kv_heads: int = 8, dim: int = 128,
    dtype: torch.dtype = torch.bfloat16, kv_dtype: torch.dtype | None = None, window: int | None = None,
    soft_cap: float | None = None, sinks: bool = False, invariant: bool = False,
) -> Variant:
    """Rows of the last `counts` of `contexts` tokens; a model of Llama 8B's heads, where nothing else is said."""
    tokens, width = sum(counts), -(-max(contexts) // 16)
    shapes = (len(counts) + 1,), (len(counts),), (len(counts), width), (tokens,)
    rows = Rows(*(meta(*shape, dtype=torch.int64) for shape in shapes))
    cache = new_cache(1, 64, 16, kv_heads, dim, dtype=kv_dtype or dtype, device=torch.device("meta"))
    query = meta(tokens, heads, dim, dtype=dtype)

    def launch() -> None:
        paged_attention(
            cache, rows, scale=dim**-0.5, window=window, soft_cap=soft_cap, sinks=meta(1, heads) if sinks else None,
            invariant=invariant,
        )(0, query)

    read = sum(min(context, (window or context) + count) for count, context in zip(counts, contexts, strict=True))
    seen = sum(
        min(position, window or position)
        for count, context in zip(counts, contexts, strict=True) for position in range(context - count + 1, context + 1)
    )
    products = {} if dtype == torch.float32 or (tokens == len(counts) and not invariant) else {"sm_90": "HGMMA"}
    moved = read * cache[0, 0, :, :, 0].nbytes + 2 * query.nbytes
    return Variant(name, launch, moved, 4 * seen * heads * dim, claims=products)


def _variants() -> Sequence[Variant]:
    many, one, whole, later = ([1] * 64, [1024] * 64), ([1], [8192]), ([2048], [2048]), ([512], [8192])
    gpt_oss = partial(_variant, heads=64, dim=64, sinks=True)  # its layers have in turns a window and none
    gemma = partial(_variant, heads=16, dim=256, soft_cap=50.0)
    by_dtype = [("", None), (", fp8", torch.float8_e4m3fn), (", int8", torch.int8)]
    return (
        *(_variant(f"decode 64 of 1,024{name}", *many, kv_dtype=kv) for name, kv in by_dtype),
        *(_variant(f"decode 1 of 8,192{name}", *one, kv_dtype=kv) for name, kv in by_dtype),
        *(_variant(f"prefill 2,048{name}", *whole, kv_dtype=kv) for name, kv in by_dtype),
        *(_variant(f"prefill 512 of 8,192{name}", *later, kv_dtype=kv) for name, kv in by_dtype),
        _variant("decode 64 of 1,024, fp16", *many, dtype=torch.float16),
        _variant("prefill 2,048, fp16", *whole, dtype=torch.float16),
        _variant("decode 64 of 1,024, invariant", *many, invariant=True),
        *(_variant(f"decode 1 of 8,192{name}, invariant", *one, kv_dtype=kv, invariant=True) for name, kv in by_dtype),
        *(_variant(f"prefill 2,048{name}, invariant", *whole, kv_dtype=kv, invariant=True) for name, kv in by_dtype),
        *(
            make(f"{kind} of {model}{about}{name}", *rows, kv_dtype=kv, window=window)
            for model, make, length in (("gpt-oss", gpt_oss, 128), ("gemma", gemma, 4096))
            for kind, rows in (("decode 64", many), ("decode 1", one), ("prefill", whole))
            for about, window in (("", None), (", window", length))
            for name, kv in by_dtype
        ),
        *(
            _variant(f"{kind} of head_dim {dim}", *rows, heads=heads, kv_heads=kv_heads, dim=dim)
            for dim, heads, kv_heads in ((64, 9, 3), (80, 32, 32), (96, 32, 32), (112, 16, 1), (256, 8, 4))
            for kind, rows in (("decode 64", many), ("decode 1", one), ("prefill", whole))
        ),
        _variant("decode 1 of 8,192, float32", *one, dtype=torch.float32),
        _variant("prefill 2,048, float32", *whole, dtype=torch.float32),
    )


VARIANTS = _variants()
