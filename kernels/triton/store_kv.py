"""store_kv: heads' norm and rotary turn, and keys and values into the cache, in 8 bits if it holds them. No attention.

One kernel reads what the fused product of a layer left, queries, keys and values, and leaves turned queries and a
filled cache: nothing is written in between. A program takes one head of some tokens.

Bytes of a layer: T (2 H + 2 G) D * itemsize read and written of queries and keys read, 2 T G D * itemsize read, the
same or D + 4 bytes a head written, and 4 T D of cosines and sines for each head, which the L2 cache holds.
Floating-point operations: some 10 a number; it is bound by memory.
"""
from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..kv_codes import LARGEST, SMALLEST
from .kv_format import KvCache, new_cache
from .product import converted
from .variant import Variant, meta


@dataclass(frozen=True, slots=True)
class Tile:
    tokens: int
    warps: int


DECODE, PREFILL = Tile(1, 1), Tile(16, 4)  # up to 16 tokens, more

ROUNDER = tl.constexpr(12582912.0)  # 1.5 * 2^23: added and taken away again it leaves a whole number, ties to even
TOO_SMALL = tl.constexpr(SMALLEST)


@triton.jit
def _e4m3(x):
    """float32, at most 448, to the nearest e4m3's bits, ties to even. In integers, so that every chip can do it."""
    bits = x.to(tl.uint32, bitcast=True)
    size = bits & 0x7FFFFFFF
    normal = ((size + 0x7FFFF + ((size >> 20) & 1)) >> 20) - (120 << 3)
    # 2^14 has as its last place 2^-9, which is e4m3's smallest number.
    subnormal = (size.to(tl.float32, bitcast=True) + 16384.0).to(tl.uint32, bitcast=True) - 0x46800000
    return (((bits >> 24) & 0x80) | tl.where(size < 0x3C800000, subnormal, normal)).to(tl.uint8)


@triton.jit
def _code(x, LARGEST: tl.constexpr):
    return (x + ROUNDER - ROUNDER).to(tl.int8) if LARGEST == 127 else _e4m3(x)


@triton.jit
def place(
    query, key, value, turned, cosine, sine, query_norm, key_norm, codes, scales, slots, query_token, query_head,
    key_token, key_head, value_token, value_head, turned_token, turned_head, tokens, eps, HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr, DIM: tl.constexpr, WIDE: tl.constexpr, BLOCK: tl.constexpr, KV_STRIDE: tl.constexpr,
    TOKENS: tl.constexpr, NORMED: tl.constexpr, TURNED: tl.constexpr, LARGEST: tl.constexpr,
):
    """Grid: HEADS + 2 KV_HEADS, tokens. Strides of tokens and heads; codes and scales of one layer as KvCache has them.
    WIDE: half of DIM or more. LARGEST: the largest code, 0 where the cache holds the numbers themselves."""
    head = tl.program_id(0)
    token = tl.program_id(1) * TOKENS + tl.arange(0, TOKENS)
    here = token < tokens
    token = token.to(tl.int64)
    dim = tl.arange(0, WIDE)
    HALF: tl.constexpr = DIM // 2
    mask = here[:, None] & (dim < HALF)[None, :]
    if head < HEADS:
        source = query + token * query_token + head * query_head
    elif head < HEADS + KV_HEADS:
        source = key + token * key_token + (head - HEADS) * key_head
    else:
        source = value + token * value_token + (head - HEADS - KV_HEADS) * value_head
    at = source[:, None] + dim[None, :]
    low = tl.load(at, mask=mask, other=0.0).to(tl.float32)
    high = tl.load(at + HALF, mask=mask, other=0.0).to(tl.float32)

    if head < HEADS + KV_HEADS:
        if NORMED:
            weight = key_norm
            if head < HEADS:
                weight = query_norm
            inside = dim < HALF
            mean = (tl.sum(low * low, 1) + tl.sum(high * high, 1)) / DIM
            factor = tl.rsqrt(mean + eps)[:, None]
            low *= factor * tl.load(weight + dim, mask=inside, other=0.0).to(tl.float32)[None, :]
            high *= factor * tl.load(weight + HALF + dim, mask=inside, other=0.0).to(tl.float32)[None, :]
        if TURNED:
            angle = (token * DIM)[:, None] + dim[None, :]
            cos = tl.load(cosine + angle, mask=mask, other=0.0)
            sin = tl.load(sine + HALF + angle, mask=mask, other=0.0)  # of its halves the first is negative
            low, high = low * cos - high * sin, high * cos + low * sin

    if head < HEADS:
        to = (turned + token * turned_token + head * turned_head)[:, None] + dim[None, :]
        tl.store(to, converted(low, turned.dtype.element_ty), mask=mask)
        tl.store(to + HALF, converted(high, turned.dtype.element_ty), mask=mask)
    elif KV_HEADS > 0:
        slot = tl.load(slots + token, mask=here, other=-1)
        block = slot // BLOCK * (2 * KV_HEADS) + (head - HEADS)  # counted in heads of blocks: keys' before values'
        target = (codes + block * KV_STRIDE + slot % BLOCK * DIM)[:, None] + dim[None, :]
        mask &= (slot >= 0)[:, None]
        if LARGEST > 0:
            finite = tl.sum(low * 0.0, 1) + tl.sum(high * 0.0, 1) == 0.0
            low = tl.where(finite[:, None], low, 0.0)
            high = tl.where(finite[:, None], high, 0.0)
            largest = tl.maximum(tl.max(tl.abs(low), 1), tl.max(tl.abs(high), 1))
            factor = tl.div_rn(tl.zeros_like(largest) + LARGEST, tl.maximum(largest, TOO_SMALL))
            factor = tl.where(largest > TOO_SMALL, factor, 0.0)[:, None]
            tl.store(target, _code(low * factor, LARGEST), mask=mask)
            tl.store(target + HALF, _code(high * factor, LARGEST), mask=mask)
            scale = tl.where(finite, largest * (1.0 / LARGEST), float("nan"))
            tl.store(scales + block * (KV_STRIDE // 4) + slot % BLOCK, scale, mask=slot >= 0)
        else:
            tl.store(target, converted(low, codes.dtype.element_ty), mask=mask)
            tl.store(target + HALF, converted(high, codes.dtype.element_ty), mask=mask)


def turn_and_store(
    query: Tensor, key: Tensor, value: Tensor, cosine: Tensor, sine: Tensor, cache: Tensor, layer: int, slots: Tensor,
    *, norms: tuple[Tensor, Tensor, float] | None = None,
) -> Tensor:
    """As attention_reference.place: query [T, H, D] and key [T, G, D] are normed by `norms` (a weight [D] of each, eps)
    and turned by cosine and sine [T, 1, D], as Ops.rotary says; key and value go into `slots` of a layer, those of a
    negative slot nowhere -> the turned query [T, H, D]. The three may be slices of one tensor; they are not changed."""
    turned = query.new_empty(query.shape)
    _launch(query, key, value, turned, (cosine, sine), norms, cache, layer, slots)
    return turned


def store_kv(key: Tensor, value: Tensor, cache: Tensor, layer: int, slots: Tensor) -> None:
    """As Ops.store_kv."""
    _launch(None, key, value, None, None, None, cache, layer, slots)


def rotary(x: Tensor, cosine: Tensor, sine: Tensor) -> None:
    """As Ops.rotary."""
    _launch(x, None, None, x, (cosine, sine), None, None, 0, None)


def _launch(
    query: Tensor | None, key: Tensor | None, value: Tensor | None, turned: Tensor | None,
    turns: tuple[Tensor, Tensor] | None, norms: tuple[Tensor, Tensor, float] | None, cache: Tensor | None, layer: int,
    slots: Tensor | None,
) -> None:
    some = query if query is not None else key
    assert some is not None
    tokens, _, dim = some.shape
    if tokens == 0:
        return
    codes, scales, block_size, stride, largest = some, None, 1, 0, 0.0
    if cache is not None:
        stored = KvCache.of(cache)
        codes, block_size, stride = stored.codes[layer], stored.codes.shape[4], stored.head_stride
        if stored.scales is not None:
            scales, largest = stored.scales[layer], LARGEST[cache.dtype]
            codes = codes if cache.dtype == torch.int8 else codes.view(torch.uint8)
    tile = DECODE if tokens <= 16 else PREFILL
    heads, kv_heads = 0 if query is None else query.shape[1], 0 if key is None else key.shape[1]
    sources = [some if x is None else x for x in (query, key, value, turned)]
    assert all(x.stride(2) == 1 for x in sources)
    cosine, sine = turns or (None, None)
    query_norm, key_norm, eps = norms or (None, None, 0.0)
    place[heads + 2 * kv_heads, triton.cdiv(tokens, tile.tokens)](
        *sources, cosine, sine, query_norm, key_norm, codes, scales, slots,
        *(stride for x in sources for stride in x.stride()[:2]), tokens, eps, HEADS=heads, KV_HEADS=kv_heads, DIM=dim,
        WIDE=triton.next_power_of_2(dim // 2), BLOCK=block_size, KV_STRIDE=stride, TOKENS=tile.tokens,
        NORMED=norms is not None, TURNED=turns is not None, LARGEST=int(largest),
        num_warps=tile.warps, enable_fp_fusion=False,
    )


def _variants() -> tuple[Variant, ...]:
    heads, kv_heads, dim = 32, 8, 128

    def variant(tokens: int, kv_dtype: torch.dtype, normed: bool) -> Variant:
        qkv = meta(tokens, heads + 2 * kv_heads, dim)
        turns = meta(2, tokens, 1, dim, dtype=torch.float32)
        norms = (meta(dim), meta(dim), 1e-6) if normed else None
        cache = new_cache(1, 64, 16, kv_heads, dim, dtype=kv_dtype, device=torch.device("meta"))
        slots = meta(tokens, dtype=torch.int64)

        def launch() -> None:
            query, key, value = qkv.split((heads, kv_heads, kv_heads), 1)
            turn_and_store(query, key, value, turns[0], turns[1], cache, 0, slots, norms=norms)

        moved = qkv.nbytes + meta(tokens, heads, dim).nbytes + turns.nbytes + tokens * cache[0, 0, :, :, 0].nbytes
        about = f"{', heads normed' if normed else ''}, to {str(kv_dtype).removeprefix('torch.')}"
        return Variant(f"{tokens:,} tokens{about}", launch, moved, 10 * qkv.numel())

    return tuple(
        variant(tokens, kv_dtype, normed)
        for tokens in (16, 2048)
        for kv_dtype in (torch.bfloat16, torch.int8, torch.float8_e4m3fn)
        for normed in (False, True)
    )


VARIANTS = _variants()
