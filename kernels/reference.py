"""Reference: every operation of Ops in plain PyTorch, on any device: the specification, and fast enough to talk to.

Not tuned to a chip; what is, overrides or replaces it (kernels/onednn.py).
"""
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor

from . import quantized
from .grouped import Grouped, Stacked
from .kv_codes import LARGEST, SCALE_BYTES, as_moved, read, stored
from .ops import Attention, Rows, Weight
from .quantized import FP8_BLOCK, ROWS_AT_ONCE

IN_CACHE = 1 << 20  # numbers of a Grouped matrix that are made floats at a time
GATHERED_TOKENS = 4096  # keys gathered at once: of more, the first have left the processor's cache when they are read
NUCLEUS_GUESSES = (128, 4096)  # so many of the largest logits nearly always hold top_p; to sort all would cost a step


class Reference:
    invariant = False
    quantised = False
    kv_layout = "layer, key | value, block, token, head, dim; in 8 bits a vector's scale behind its codes"

    def __init__(self) -> None:
        self._gathered: Tensor | None = None  # memory for gathered keys and values, reused by all layers and steps

    def pack(self, weight: Tensor) -> Weight:
        return weight

    def linear(self, x: Tensor, weight: Weight, bias: Tensor | None = None) -> Tensor:
        if isinstance(weight, Tensor):
            return F.linear(x, weight, bias)
        out, first = x.new_empty(len(x), weight.shape[0]), 0
        for part in _some_rows(weight):
            own = slice(first, first + part.shape[0])
            some = None if bias is None else bias[own]
            if isinstance(part, Grouped):
                out[:, own] = self.linear(x.float(), part.dequantise(), None if some is None else some.float())
            else:
                out[:, own] = quantized.linear(x, part, some)
            first = own.stop
        return out

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float, *, residual: Tensor | None = None) -> Tensor:
        if residual is not None:
            x = residual.add_(x)
        if weight.dtype != x.dtype:
            return F.rms_norm(x.float(), (x.shape[-1],), weight, eps).to(x.dtype)
        return F.rms_norm(x, (x.shape[-1],), weight, eps)

    def rotary(self, x: Tensor, cosine: Tensor, sine: Tensor) -> None:
        wide = x.float()
        x.copy_(torch.addcmul(wide * cosine, wide.roll(x.shape[-1] // 2, -1), sine))

    def silu_and_mul(self, gate_up: Tensor) -> Tensor:
        gate, up = gate_up.chunk(2, dim=-1)
        return F.silu(gate).mul_(up)

    def gelu_and_mul(self, gate_up: Tensor) -> Tensor:
        gate, up = gate_up.chunk(2, dim=-1)
        return F.gelu(gate, approximate="tanh").mul_(up)

    def new_kv_cache(
        self, layers: int, blocks: int, block_size: int, kv_heads: int, head_dim: int,
        *, dtype: torch.dtype, device: torch.device,
    ) -> Tensor:
        wide = head_dim + SCALE_BYTES if dtype in LARGEST else head_dim
        return torch.empty(layers, 2, blocks, block_size, kv_heads, wide, dtype=dtype, device=device)

    def store_kv(self, key: Tensor, value: Tensor, cache: Tensor, layer: int, rows: Rows) -> None:
        keys, values = as_moved(cache[layer]).flatten(1, 2)  # [slots, kv_heads, head_dim]
        keys.index_copy_(0, rows.slots, stored(key, cache.dtype))
        values.index_copy_(0, rows.slots, stored(value, cache.dtype))

    def turn_and_store(
        self, query: Tensor, key: Tensor, value: Tensor, cosine: Tensor, sine: Tensor, cache: Tensor, layer: int,
        rows: Rows, *, norms: tuple[Tensor, Tensor, float] | None = None,
    ) -> Tensor:
        if norms is not None:
            *weights, eps = norms
            query, key = (self.rms_norm(x, weight, eps) for x, weight in zip((query, key), weights, strict=True))
        self.rotary(query, cosine, sine)
        self.rotary(key, cosine, sine)
        self.store_kv(key, value, cache, layer, rows)
        return query

    def copy_blocks(self, cache: Tensor, pairs: Sequence[tuple[int, int]]) -> None:
        for source, target in pairs:
            cache[:, :, target] = cache[:, :, source]

    def paged_attention(
        self, cache: Tensor, rows: Rows, *, scale: float, window: int | None = None, soft_cap: float | None = None,
        sinks: Tensor | None = None,
    ) -> Attention:
        slots = as_moved(cache).flatten(2, 3)  # [layers, 2, slots, kv_heads, head_dim]
        likely = torch.float32 if cache.dtype in LARGEST else cache.dtype  # of the masks: they are made once for all
        groups = list(_groups(rows, block_size=cache.shape[3], window=window, dtype=likely))
        longest = max(group.slots.numel() for group in groups)
        buffers = self._buffers((2, longest, *slots.shape[3:]), slots)

        def attention(layer: int, query: Tensor) -> Tensor:
            dtype = query.dtype if cache.dtype in LARGEST else torch.promote_types(query.dtype, cache.dtype)
            out = torch.empty_like(query, memory_format=torch.contiguous_format)
            for group in groups:
                gathered = (
                    torch.index_select(kept, 0, group.slots, out=buffer[: group.slots.numel()])
                    for kept, buffer in zip(slots[layer], buffers, strict=True)
                )
                key, value = (read(kept, cache.dtype, dtype) for kept in gathered)
                own = query.index_select(0, group.tokens).to(dtype)
                if soft_cap is None and sinks is None:
                    own = _attend(own, key, value, group, scale)
                else:
                    own_sinks = None if sinks is None else sinks[layer]
                    own = _attend_by_scores(own, key, value, group, scale, soft_cap, own_sinks)
                out.index_copy_(0, group.tokens, own.to(out.dtype))
            return out.flatten(1)

        return attention

    def _buffers(self, shape: tuple[int, ...], like: Tensor) -> Tensor:
        """Uninitialised memory of this shape; the same memory every time, grown when it is too small."""
        size = torch.Size(shape).numel()
        if self._gathered is None or self._gathered.numel() < size or self._gathered.dtype != like.dtype:
            self._gathered = torch.empty(size, dtype=like.dtype, device=like.device)
        return self._gathered[:size].view(shape)

    def sample(
        self, logits: Tensor, temperature: Tensor, top_k: Tensor, top_p: Tensor, min_p: Tensor, uniform: Tensor
    ) -> Tensor:
        ids = logits.argmax(-1)
        settings = zip(*(x.tolist() for x in (temperature, top_k, top_p, min_p, uniform)), strict=True)
        for row, own in enumerate(settings):
            if own[0] > 0:  # row by row, so that no sum is ever split in another way because of a neighbour
                ids[row] = _sample(logits[row].float(), *own)
        return ids


@dataclass(frozen=True, slots=True)
class _Group:
    """Rows attended together: many with one query each and contexts of like length, or a single one with many queries.

    `slots` holds each row's context, padded to the longest with the row's own first slot; the mask hides the padding.
    """

    rows: int
    tokens: Tensor  # [rows * queries]
    slots: Tensor  # [rows * keys]
    mask: Tensor | None  # [rows, 1, queries, keys], to be added to the scores; None where every query sees every key


def _some_rows(weight: Weight) -> Iterator[Weight]:
    """A quantised matrix in parts, so that it is never all there as floats."""
    if isinstance(weight, Stacked):
        for part in weight.parts:
            yield from _some_rows(part)
        return
    most = IN_CACHE if isinstance(weight, Grouped) else ROWS_AT_ONCE
    step = max(FP8_BLOCK, most // weight.shape[1] // FP8_BLOCK * FP8_BLOCK)
    if step >= weight.shape[0]:
        yield weight
        return
    for first in range(0, weight.shape[0], step):
        yield weight.rows(first, first + step)


def _groups(rows: Rows, *, block_size: int, window: int | None, dtype: torch.dtype) -> Iterator[_Group]:
    starts, contexts = rows.query_starts.tolist(), rows.context_lengths.tolist()
    counts = [end - start for start, end in pairwise(starts)]
    device = rows.slots.device
    position = torch.arange(rows.block_tables.shape[1] * block_size, device=device)
    slots = (rows.block_tables[:, :, None] * block_size + position[:block_size]).flatten(1)  # [rows, positions]
    for members in _alike(counts, contexts):
        queries, keys = counts[members[0]], contexts[members[0]]
        index = torch.tensor(members, device=device)
        context = rows.context_lengths[index, None]  # [rows, 1]
        query = torch.arange(queries, device=device)
        last = (context - queries + query)[:, None, :, None]  # the last key that a query sees: itself
        key = position[:keys]
        seen = key <= last if window is None else (key <= last) & (key > last - window)
        yield _Group(
            rows=len(members),
            tokens=(rows.query_starts[index, None] + query).flatten(),
            slots=torch.where(key < context, slots[index, :keys], slots[index, :1]).flatten(),
            mask=None if seen.all() else torch.where(seen, 0.0, -torch.inf).to(dtype),
        )


def _alike(counts: list[int], contexts: list[int]) -> Iterator[list[int]]:
    """Row numbers to attend together, the longest context first. At most a quarter of the gathered keys is padding."""
    decode: list[int] = []
    for row in sorted(range(len(counts)), key=lambda row: -contexts[row]):
        if counts[row] > 1:
            yield [row]
            continue
        if decode:
            longest = contexts[decode[0]]
            if (len(decode) + 1) * longest > GATHERED_TOKENS or contexts[row] < longest * 3 // 4:
                yield decode
                decode = []
        decode.append(row)
    if decode:
        yield decode


def _attend(query: Tensor, key: Tensor, value: Tensor, group: _Group, scale: float) -> Tensor:
    """query [rows * queries, heads, head_dim], key and value [rows * keys, kv_heads, head_dim] -> like query."""
    rows, mask = group.rows, None if group.mask is None else group.mask.to(query.dtype)
    (tokens, heads, dim), kv_heads = query.shape, key.shape[1]
    key, value = (x.view(rows, -1, kv_heads, dim).transpose(1, 2) for x in (key, value))  # [rows, kv_heads, keys, dim]
    if tokens == rows:
        # One query a row: the heads that share a KV head become its queries, which is several times faster.
        shared = query.view(rows, kv_heads, heads // kv_heads, dim)
        out = F.scaled_dot_product_attention(shared, key, value, attn_mask=mask, scale=scale)
        return out.reshape(rows, heads, dim)
    query = query.view(rows, -1, heads, dim).transpose(1, 2)  # [rows, heads, queries, head_dim]
    out = F.scaled_dot_product_attention(query, key, value, attn_mask=mask, scale=scale, enable_gqa=heads != kv_heads)
    return out.transpose(1, 2).reshape(tokens, heads, dim)


def _attend_by_scores(
    query: Tensor, key: Tensor, value: Tensor, group: _Group, scale: float, soft_cap: float | None, sinks: Tensor | None
) -> Tensor:
    """As _attend, in float32, with every score at hand. sinks [heads]."""
    rows, mask = group.rows, group.mask
    (tokens, heads, dim), kv_heads = query.shape, key.shape[1]
    key, value = (x.float().view(rows, -1, kv_heads, 1, dim).permute(0, 2, 3, 1, 4) for x in (key, value))
    # [rows, kv_heads, heads that share one, queries, head_dim]
    shared = query.float().view(rows, -1, kv_heads, heads // kv_heads, dim).permute(0, 2, 3, 1, 4)
    scores = shared @ key.transpose(-1, -2) * scale
    if soft_cap is not None:
        scores = scores.div_(soft_cap).tanh_().mul_(soft_cap)
    if mask is not None:
        scores += mask[:, :, None]
    if sinks is not None:
        column = sinks.float().view(kv_heads, -1, 1, 1).expand(*scores.shape[:-1], 1)
        scores = torch.cat((scores, column), -1)
    weights = scores.softmax(-1)[..., : value.shape[-2]]
    return (weights @ value).permute(0, 3, 1, 2, 4).reshape(tokens, heads, dim).to(query.dtype)


def _sample(logits: Tensor, temperature: float, top_k: int, top_p: float, min_p: float, uniform: float) -> Tensor:
    """One row, float32 [vocabulary] -> its id, a scalar."""
    weights = logits.sub(logits.max()).div_(temperature).exp_()  # probabilities, but for a factor: the largest is 1
    kept = _kept(logits, weights, top_k, top_p)
    if kept is not None:
        weights = weights[kept]
    if min_p > 0:
        weights = weights.where(weights >= min_p, 0)
    passed = weights.cumsum(0, dtype=torch.float64)
    total = passed[-1]
    # Below the total, however the product rounds: the id found is then one whose own weight is above zero.
    target = torch.minimum(uniform * total, total.nextafter(torch.zeros_like(total)))
    found = torch.searchsorted(passed, target, right=True)
    return found if kept is None else kept[found]


def _kept(logits: Tensor, weights: Tensor, top_k: int, top_p: float) -> Tensor | None:
    """The ids, ascending, that top_k and top_p leave; None where that is all of them."""
    vocabulary = logits.shape[0]
    if not 0 < top_k < vocabulary:
        top_k = 0
        if top_p >= 1:
            return None
    whole = weights.sum(dtype=torch.float64)
    for looked_at in (top_k,) if top_k else (*NUCLEUS_GUESSES, vocabulary):
        largest, ids = logits.topk(min(looked_at, vocabulary))
        mass = weights[ids].cumsum(0, dtype=torch.float64)
        needed = top_p * (mass[-1] if top_k else whole)
        if mass[-1] >= needed:
            break
    count = min(int((mass < needed).sum()) + 1, len(largest)) if top_p < 1 else len(largest)
    boundary = largest[count - 1]
    kept = (logits >= boundary).nonzero().flatten()
    if len(kept) > count:  # several equal the smallest that is kept: the lower ids of them stay
        equal = kept[logits[kept] == boundary]
        kept = kept[~torch.isin(kept, equal[count - len(kept) :])]
    return kept
