"""What paged_attention and store_kv compute, in plain PyTorch and float32: their specification, readable, not fast."""
import torch
import torch.nn.functional as F
from torch import Tensor

from ..kv_codes import dequantise, quantise
from ..ops import Rows
from .kv_format import KvCache


def attention(
    query: Tensor, cache: Tensor, rows: Rows, layer: int, *, scale: float,
    window: int | None = None, soft_cap: float | None = None, sinks: Tensor | None = None,
) -> Tensor:
    """query [T, H, D] -> [T, H * D] float32. Sinks [H] are logits of a key that everyone sees and whose value is 0.
    A row without context, which is a row of one token, gets zeros."""
    (tokens, heads, dim), parts = query.shape, KvCache.of(cache)
    out = query.new_empty((tokens, heads, dim), dtype=torch.float32)
    starts = rows.query_starts.tolist()
    for row, context in enumerate(rows.context_lengths.tolist()):
        own = slice(starts[row], starts[row + 1])
        if context == 0:
            out[own] = 0
            continue
        key_at = torch.arange(context, device=query.device)
        query_at = key_at[context - (own.stop - own.start) :, None]
        seen = key_at <= query_at if window is None else (key_at <= query_at) & (key_at > query_at - window)
        key, value = _read(parts, rows.block_tables[row], layer, context, heads)  # [heads, context, head_dim]
        scores = query[own].float().transpose(0, 1) @ key.transpose(1, 2) * scale  # [heads, queries, context]
        if soft_cap is not None:
            scores = soft_cap * torch.tanh(scores / soft_cap)
        scores = scores.masked_fill(~seen, -torch.inf)
        if sinks is not None:
            column = sinks.float()[:, None, None].expand(-1, scores.shape[1], 1)
            scores = torch.cat((scores, column), -1)
        weights = scores.softmax(-1)[..., :context]
        out[own] = (weights @ value).transpose(0, 1)
    return out.flatten(1)


def _read(parts: KvCache, table: Tensor, layer: int, context: int, heads: int) -> tuple[Tensor, Tensor]:
    """Keys and values of one row, float32, repeated for each query head that reads them."""
    blocks = table[: -(-context // parts.codes.shape[-2])]
    stored = parts.codes[layer].view(torch.uint8)[blocks].view(parts.codes.dtype) if parts.scales is not None else (
        parts.codes[layer][blocks]
    )
    wide = stored.float() if parts.scales is None else dequantise(stored, parts.scales[layer][blocks])
    # [blocks, 2, kv_heads, block_size, head_dim] -> [2, kv_heads, context, head_dim]
    wide = wide.permute(1, 2, 0, 3, 4).flatten(2, 3)[:, :, :context]
    key, value = wide.repeat_interleave(heads // wide.shape[1], 1)
    return key, value


def place(
    query: Tensor, key: Tensor, value: Tensor, cosine: Tensor, sine: Tensor, cache: Tensor, layer: int, slots: Tensor,
    *, norms: tuple[Tensor, Tensor, float] | None = None,
) -> Tensor:
    """Norms query [T, H, D] and key [T, G, D] by `norms` (weights [D] of either, eps), turns them by cosine and sine
    [T, 1, D] as Ops.rotary does, writes key and value into `slots` of a layer -> the turned query, in its dtype."""
    if norms is not None:
        query, key = (
            F.rms_norm(x.float(), x.shape[-1:], weight.float(), norms[2])
            for x, weight in zip((query, key), norms[:2], strict=True)
        )
    turned, key = (x.float() * cosine + x.float().roll(x.shape[-1] // 2, -1) * sine for x in (query, key))
    store(key, value, cache, layer, slots)
    return turned.to(value.dtype)


def store(key: Tensor, value: Tensor, cache: Tensor, layer: int, slots: Tensor) -> None:
    """Writes key and value [T, G, D] into slots [T]; a token whose slot is negative is written nowhere."""
    parts = KvCache.of(cache)
    kept = slots >= 0
    block_size = parts.codes.shape[-2]
    block, offset = slots[kept] // block_size, slots[kept] % block_size
    for index, x in enumerate((key[kept], value[kept])):
        if parts.scales is None:
            parts.codes[layer, :, index][block, :, offset] = x.to(cache.dtype)
        else:
            codes, scales = quantise(x, cache.dtype)
            parts.codes.view(torch.uint8)[layer, :, index][block, :, offset] = codes.view(torch.uint8)
            parts.scales[layer, :, index][block, :, offset] = scales
