"""attention_variants: the ways in which attention is launched for models that people run, to be compiled and reported.

Not in paged_attention.py as other kernels' are beside them: it has more of them.
"""
from collections.abc import Iterator, Sequence
from functools import partial

import torch

from ..ops import Rows
from .kv_format import new_cache
from .paged_attention import paged_attention
from .variant import TARGETS, Variant, meta


def _variant(
    name: str, counts: Sequence[int], contexts: Sequence[int], *, heads: int = 32, kv_heads: int = 8, dim: int = 128,
    dtype: torch.dtype = torch.bfloat16, kv_dtype: torch.dtype | None = None, window: int | None = None,
    soft_cap: float | None = None, sinks: bool = False, invariant: bool = False,
    tested: tuple[str, ...],
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
    few = tokens == len(counts) and not invariant  # too few lines for HGMMA
    products = {"sm_80": "HMMA", "sm_90": "HMMA" if few else "HGMMA", "sm_100": "HMMA" if few else "UTCHMMA"}
    moved = read * cache[0, 0, :, :, 0].nbytes + 2 * query.nbytes
    claims = {} if dtype == torch.float32 else products
    return Variant(name, launch, moved, 4 * seen * heads * dim, claims=claims, tested=tested)


def _variants() -> Iterator[Variant]:
    many, one, whole, turn = ([1] * 64, [1024] * 64), ([1], [8192]), ([2048], [2048]), ([16], [8192])
    llama, invariant = _variant, partial(_variant, invariant=True)
    gpt_oss = partial(_variant, heads=64, dim=64, sinks=True)  # its layers have in turns a window and none
    gemma = partial(_variant, heads=16, dim=256, soft_cap=50.0)
    sm_90 = ("sm_90",)
    for kv_dtype, about in ((None, ""), (torch.float8_e4m3fn, ", fp8"), (torch.int8, ", int8")):
        tested: tuple[str, ...] = TARGETS if kv_dtype is None else ("sm_80", "sm_90")
        yield llama(f"decode 64 of 1,024{about}", *many, kv_dtype=kv_dtype, tested=tested)
        yield llama(f"decode 1 of 8,192{about}", *one, kv_dtype=kv_dtype, tested=tested)
        yield llama(f"prefill 2,048{about}", *whole, kv_dtype=kv_dtype, tested=tested)
        yield llama(f"prefill 16 of 8,192{about}", *turn, kv_dtype=kv_dtype, tested=tested)
        yield invariant(f"decode 1 of 8,192, invariant{about}", *one, kv_dtype=kv_dtype, tested=tested)
        yield invariant(f"prefill 2,048, invariant{about}", *whole, kv_dtype=kv_dtype, tested=tested)
        tested = sm_90 if kv_dtype is None else ()
        for model, make, window in (("gpt-oss", gpt_oss, 128), ("gemma", gemma, 4096)):
            yield make(f"{model}: decode 64{about}", *many, kv_dtype=kv_dtype, window=window, tested=tested)
            yield make(f"{model}: decode 1{about}", *one, kv_dtype=kv_dtype, tested=tested)
            yield make(f"{model}: prefill{about}", *whole, kv_dtype=kv_dtype, tested=tested)
            yield make(f"{model}: prefill, window{about}", *whole, kv_dtype=kv_dtype, window=window, tested=tested)
    yield llama("decode 64 of 1,024, fp16", *many, dtype=torch.float16, tested=sm_90)
    yield llama("prefill 2,048, fp16", *whole, dtype=torch.float16, tested=sm_90)
    for dim, heads, kv_heads in ((64, 9, 3), (80, 32, 32), (96, 32, 32), (112, 16, 1), (256, 8, 4)):
        of_dim = partial(_variant, dim=dim, heads=heads, kv_heads=kv_heads, tested=sm_90)
        yield of_dim(f"head_dim {dim}: decode 64", *many)
        yield of_dim(f"head_dim {dim}: decode 1", *one)
        yield of_dim(f"head_dim {dim}: prefill", *whole)
    yield llama("decode 1 of 8,192, float32", *one, dtype=torch.float32, tested=sm_90)
    yield llama("prefill 2,048, float32", *whole, dtype=torch.float32, tested=sm_90)


VARIANTS = tuple(_variants())
