"""paged_attention: attention of any mix of rows over a paged KV cache, in one launch. It neither turns nor stores keys.

A program takes a tile: some consecutive queries of one row, times the query heads that share a KV head, so that a key
is read once for all of them. It walks over the row's keys as FlashAttention does (arXiv:2205.14135); they lie in
blocks, found through the row's table. Where there are few tiles, several programs share the keys of each
(arXiv:2311.01282) and attention_parts.py puts together what they leave. Keys that are not the row's own are masked as
they are loaded, so that what lies there, not-a-number included, touches nothing.

Bytes of a layer: for each row once the keys and values of its context, 2 G context times D * itemsize, or D + 4 in
8 bits; queries and results, 2 T H D * itemsize; parts, if any, 8 splits T H (D + 2).
Floating-point operations: 4 T H D times the keys that a query sees on average.
"""
from dataclasses import dataclass, replace

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..ops import Attention, Rows
from .attention_parts import LOG2_E, first_key, mean, merge, merged, row_of, share, tile_of
from .chip import Chip, chip_of
from .kv_format import KvCache
from .product import converted, product


@dataclass(frozen=True, slots=True)
class Tile:
    lines: int  # queries times the heads of a group: lines of the matrix products, a power of two, at least 16
    keys: int  # that a turn of the loop looks at
    warps: int
    stages: int  # a turn's keys are asked for (stages - 1) / 2 turns before, their places in memory as long before that


# For chips with at least so many KiB of shared memory (200: Hopper and Blackwell, 96: Ampere and Ada, 0: AMD) and a
# cache of at least so many bits a number: the tile for a head_dim up to 64, 128 and 256. The first line that fits.
DECODE = {  # a step whose rows have one query each
    (96, 8): (Tile(16, 64, 4, 7), Tile(16, 64, 4, 5), Tile(16, 32, 8, 5)),
    (0, 8): (Tile(16, 64, 4, 2), Tile(16, 64, 4, 2), Tile(16, 32, 4, 2)),
}
PREFILL = {
    (200, 16): (Tile(128, 64, 8, 3), Tile(128, 64, 8, 3), Tile(128, 32, 8, 3)),
    (200, 8): (Tile(128, 64, 8, 3), Tile(128, 64, 8, 3), Tile(128, 16, 8, 3)),
    (96, 16): (Tile(128, 64, 8, 3), Tile(128, 32, 8, 3), Tile(64, 32, 8, 2)),
    (96, 8): (Tile(128, 32, 8, 3), Tile(64, 64, 8, 2), Tile(64, 32, 8, 1)),
    (0, 8): (Tile(128, 32, 4, 2), Tile(128, 32, 4, 2), Tile(64, 16, 4, 2)),
}
INVARIANT = {  # any step that is to be so
    (200, 8): (Tile(64, 64, 4, 5), Tile(64, 32, 8, 3), Tile(64, 32, 8, 5)),
    (96, 16): (Tile(64, 64, 4, 3), Tile(64, 32, 8, 3), Tile(64, 32, 8, 3)),
    (96, 8): (Tile(64, 64, 4, 3), Tile(64, 32, 8, 2), Tile(64, 32, 8, 3)),
    (0, 8): (Tile(64, 32, 4, 2), Tile(64, 32, 4, 2), Tile(64, 16, 4, 2)),
}
FLOAT32 = {(0, 8): (Tile(16, 32, 8, 2), Tile(16, 32, 8, 2), Tile(16, 16, 8, 2))}  # of queries; for tests

CHUNK = 1024  # keys that are summed apart in an invariant step, wherever that is done
DECODE_PROGRAMS, PREFILL_PROGRAMS = 3, 1  # that a processor runs at once: keys are split until there are so many
PARTS_BYTES = 64 << 20  # at most; a step that has more queries than that has enough tiles too


@triton.jit
def _numbers(codes, dtype: tl.constexpr, E4M3_BITS: tl.constexpr):
    """Codes as numbers of another dtype, exactly. E4M3_BITS: they are e4m3 in uint8, for chips that know only the
    latter; put into a float16 the same bits say 2^8 too little, also of what is zero or subnormal."""
    if E4M3_BITS:
        wide = codes.to(tl.uint16)
        codes = (((wide & 0x80) << 8) | ((wide & 0x7F) << 7)).to(tl.float16, bitcast=True)
    return converted(codes, dtype)


@triton.jit
def _unpacked(codes, dtype: tl.constexpr, E4M3_BITS: tl.constexpr, BY_HALVES: tl.constexpr):
    """_numbers. BY_HALVES: of one half of the keys, then the other, which saves a fifth of decode's instructions."""
    if BY_HALVES:
        KEYS: tl.constexpr = codes.shape[0]
        WIDE: tl.constexpr = codes.shape[1]
        one, other = tl.split(tl.permute(tl.reshape(codes, [2, KEYS // 2, WIDE]), [1, 2, 0]))
        both = tl.join(_numbers(one, dtype, E4M3_BITS), _numbers(other, dtype, E4M3_BITS))
        numbers = tl.reshape(tl.permute(both, [2, 0, 1]), [KEYS, WIDE])
    else:
        numbers = _numbers(codes, dtype, E4M3_BITS)
    return numbers


@triton.jit
def _load(place, mask):
    return tl.load(place) if mask is None else tl.load(place, mask=mask, other=0.0)


@triton.jit
def _part(
    begin, end, first_position, last_position, position, query, table, codes, scales, factor, soft_cap, window,
    VALUES: tl.constexpr, BLOCK: tl.constexpr, DIM: tl.constexpr, WIDE: tl.constexpr,
    LINES: tl.constexpr, KEYS: tl.constexpr, DECODE: tl.constexpr, WINDOWED: tl.constexpr, CAPPED: tl.constexpr,
    E4M3_BITS: tl.constexpr, IN_HALF: tl.constexpr, BY_HALVES: tl.constexpr,
):
    """Peak, weight and total (see merged) of the keys from begin, a multiple of KEYS, up to end. factor [LINES]: what
    makes a product of query and key a score in powers of two. IN_HALF: see attend."""
    peak = tl.full([LINES], float("-inf"), tl.float32)
    weight = tl.zeros([LINES], tl.float32)
    total = tl.zeros([LINES, WIDE], tl.float32)
    UNIT: tl.constexpr = 256.0 if E4M3_BITS else 1.0  # of _numbers
    SHIFT: tl.constexpr = 1024.0  # a float16 has more room above 1 than weights need, and none to spare below
    dim = tl.arange(0, WIDE)
    earliest = first_key(first_position, window, WINDOWED)
    # Every query sees every key from `whole` up to `ragged`; a window hides some before, causality some after.
    whole, ragged = begin, begin
    if not DECODE:
        if WINDOWED:
            whole = tl.cdiv(first_key(last_position, window, WINDOWED), KEYS) * KEYS
            whole = tl.minimum(tl.maximum(whole, begin), end)
        ragged = tl.minimum(tl.maximum((first_position + 1) // KEYS * KEYS, whole), end)
    for stretch in tl.static_range(2 if DECODE else (0 if WINDOWED else 1), 3):
        for start in range(
            begin if stretch == 0 else (whole if stretch == 1 else ragged),
            whole if stretch == 0 else (ragged if stretch == 1 else end), KEYS,
        ):
            at = start + tl.arange(0, KEYS)
            stored = None
            if stretch == 1:
                block = tl.load(table + at // BLOCK)
                if WIDE != DIM:
                    stored = (dim < DIM)[None, :]
            else:
                own = (at >= earliest) & (at < end)
                block = tl.load(table + at // BLOCK, mask=own, other=0)
                stored = own[:, None] & (dim < DIM)[None, :]
            block = block.to(tl.int64) * (2 * VALUES)
            place = codes + (block + tl.arange(0, KEYS) % BLOCK * DIM)[:, None] + dim[None, :]
            key = _unpacked(_load(place, stored), query.dtype, E4M3_BITS, BY_HALVES)
            scores = product(query, tl.trans(key))
            if scales is not None:
                of_key = scales + block // 4 + tl.arange(0, KEYS) % BLOCK
                scores *= (_load(of_key, None if stretch == 1 else own) * UNIT)[None, :]
            scaled = factor
            if CAPPED:  # cap * tanh(x / cap), by way of 1 - 2 / (e^2y + 1)
                scores = soft_cap - 2.0 * soft_cap / (tl.exp2(scores * (2.0 / soft_cap * factor)[:, None]) + 1.0)
                scaled = tl.full([LINES], LOG2_E, tl.float32)
            if stretch != 1:
                seen = at[None, :] <= position[:, None]
                if WINDOWED:
                    seen &= at[None, :] > position[:, None] - window
                scores = tl.where(seen, scores, float("-inf"))
            highest = tl.maximum(peak, tl.max(scores, 1) * scaled)
            base = tl.where(highest == float("-inf"), 0.0, highest)
            weights = tl.exp2(tl.fma(scores, scaled[:, None], -base[:, None]))
            kept = tl.exp2(peak - base)
            weight = tl.fma(weight, kept, tl.sum(weights, 1))
            total *= kept[:, None]
            if scales is not None:
                value_scale = _load(of_key + VALUES // 4, None if stretch == 1 else own)
            value = _unpacked(_load(place + VALUES, stored), query.dtype, E4M3_BITS, BY_HALVES)
            if IN_HALF:
                unit = tl.maximum(tl.max(value_scale, 0), 1e-30)
                weights *= (value_scale * (SHIFT / unit))[None, :]
                total = tl.fma(product(converted(weights, value.dtype), value), unit * (UNIT / SHIFT), total)
            else:
                if scales is not None:
                    weights *= (value_scale * UNIT)[None, :]
                total = product(converted(weights, value.dtype), value, total)
            peak = highest
    return peak, weight, total


@triton.jit(do_not_specialize=["table_stride", "rows", "splits", "window"])
def attend(
    query, token_stride, head_stride, codes, scales, tables, table_stride, starts, contexts, sinks, out, parts, weights,
    rows, splits, scale, soft_cap, window, HEADS: tl.constexpr, KV_HEADS: tl.constexpr, DIM: tl.constexpr,
    WIDE: tl.constexpr, BLOCK: tl.constexpr, KV_STRIDE: tl.constexpr, LINES: tl.constexpr, KEYS: tl.constexpr,
    DECODE: tl.constexpr, SPLIT: tl.constexpr, CHUNK: tl.constexpr, WINDOWED: tl.constexpr, CAPPED: tl.constexpr,
    E4M3_BITS: tl.constexpr,
):
    """Grid: tiles, KV heads, splits. query [T, HEADS, DIM] by strides; codes and scales of one layer as KvCache has
    them, KV_STRIDE codes from one head's to the next's; out [T, HEADS, DIM], or with SPLIT parts [splits, T, HEADS,
    DIM] and weights [splits, T, HEADS, 2], float32. CHUNK: 0, or keys that are summed apart.

    Codes of 8 bits are multiplied as bfloat16. Decode, which unpacks many for few products, takes e4m3 as float16, for
    which there is one instruction; its range is short, so a query is divided by its largest number, and the scales of
    a turn's values by their largest.
    """
    GROUP: tl.constexpr = HEADS // KV_HEADS
    QUERIES: tl.constexpr = 1 if DECODE else LINES // GROUP
    tile, kv_head, split = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    if DECODE:
        row = tile
        query_index = 0
    else:
        tile = tl.num_programs(0) - 1 - tile  # from the end, where there is most to do
        row = row_of(tile, starts, rows, QUERIES, 1)
        query_index = (tile - (tl.load(starts + row) // QUERIES + row).to(tl.int32)) * QUERIES
    first, last, past = tile_of(row, query_index, starts, contexts, QUERIES)
    if last < first:
        return
    line = tl.arange(0, LINES)
    index = first + line // GROUP
    head = kv_head * GROUP + line % GROUP
    known = index <= last
    if QUERIES * GROUP < LINES:
        known &= line < QUERIES * GROUP
    token = tl.load(starts + row).to(tl.int32)  # the row's first; what depends on it and more takes 64 bits
    dim = tl.arange(0, WIDE)
    inside = known[:, None] & (dim < DIM)[None, :]
    place = (index * token_stride + head * head_stride)[:, None] + dim[None, :]
    own_query = tl.load(query + token.to(tl.int64) * token_stride + place, mask=inside, other=0.0)
    factor = tl.zeros([LINES], tl.float32) + scale * LOG2_E
    BY_HALVES: tl.constexpr = scales is not None and DECODE and CHUNK == 0 and query.dtype.element_ty != tl.float32
    IN_HALF: tl.constexpr = BY_HALVES and codes.dtype.element_ty != tl.int8
    if IN_HALF:
        numbers = own_query.to(tl.float32)
        largest = tl.maximum(tl.max(tl.abs(numbers), 1), 1e-30)
        own_query = converted(numbers * (1.0 / largest)[:, None], tl.float16)
        factor *= largest
    elif scales is not None and query.dtype.element_ty != tl.float32:
        own_query = converted(own_query, tl.bfloat16)

    table = tables + row.to(tl.int64) * table_stride
    codes += kv_head * KV_STRIDE
    if scales is not None:
        scales += kv_head * (KV_STRIDE // 4)
    start = first_key(past + first, window, WINDOWED) // KEYS * KEYS
    end = past + last + 1
    if CHUNK > 0 and not SPLIT:
        peak = tl.full([LINES], float("-inf"), tl.float32)
        weight = tl.zeros([LINES], tl.float32)
        total = tl.zeros([LINES, WIDE], tl.float32)
        for chunk in range(start // CHUNK, tl.cdiv(end, CHUNK)):
            begin, stop = share(start, end, chunk, splits, KEYS, CHUNK)
            other_peak, other_weight, other_total = _part(
                begin, stop, past + first, past + last, past + index, own_query, table, codes, scales,
                factor, soft_cap, window, KV_HEADS * KV_STRIDE, BLOCK, DIM, WIDE, LINES, KEYS,
                DECODE, WINDOWED, CAPPED, E4M3_BITS, IN_HALF, BY_HALVES,
            )
            peak, weight, total = merged(peak, weight, total, other_peak, other_weight, other_total)
    else:
        begin, stop = start, end
        if SPLIT:
            begin, stop = share(start, end, split, splits, KEYS, CHUNK)
            if begin >= stop:
                return
        peak, weight, total = _part(
            begin, stop, past + first, past + last, past + index, own_query, table, codes, scales,
            factor, soft_cap, window, KV_HEADS * KV_STRIDE, BLOCK, DIM, WIDE, LINES, KEYS,
            DECODE, WINDOWED, CAPPED, E4M3_BITS, IN_HALF, BY_HALVES,
        )
    place = (index * HEADS + head)[:, None] * DIM + dim[None, :]
    if SPLIT:
        begin = (split * tl.load(starts + rows) + token) * HEADS
        tl.store(weights + begin * 2 + (index * HEADS + head) * 2, peak, mask=known)
        tl.store(weights + begin * 2 + (index * HEADS + head) * 2 + 1, weight, mask=known)
        tl.store(parts + begin * DIM + place, total, mask=inside)
    else:
        total = mean(peak, weight, total, sinks, head, known)
        tl.store(out + token.to(tl.int64) * (HEADS * DIM) + place, converted(total, out.dtype.element_ty), mask=inside)


def paged_attention(
    cache: Tensor, rows: Rows, *, scale: float, window: int | None = None, soft_cap: float | None = None,
    sinks: Tensor | None = None, invariant: bool = False,
) -> Attention:
    """As Ops.paged_attention, over a cache as kv_format makes it. A row's context may be 0: its results are zeros.

    soft_cap: scores become cap * tanh(score / cap). sinks [layers, H]: for each head the logit of a key that every
    query sees and whose value is 0 (arXiv:2309.17453). With `invariant` a query's result has the same bits whatever
    else is in the step and however its row was cut into steps: one tile for all, and sums split by a key's position.
    """
    stored = KvCache.of(cache)
    kv_heads, block_size, dim = stored.codes.shape[3:]
    codes, longest = stored.codes, rows.block_tables.shape[1] * block_size
    chip = chip_of(cache)
    e4m3_bits = cache.dtype == torch.float8_e4m3fn and not chip.has_fp8
    if e4m3_bits:
        codes = codes.view(torch.uint8)
    wide = max(16, triton.next_power_of_2(dim))
    count = rows.context_lengths.shape[0]
    room: list[Tensor] = []  # for parts and weights: made by the first layer, used by all

    def attention(layer: int, query: Tensor) -> Tensor:
        tokens, heads, _ = query.shape
        out = query.new_empty(tokens, heads * dim)
        if tokens == 0:
            return out
        group, decode = heads // kv_heads, tokens == count
        bits = 8 * codes.itemsize
        tile = tile_of_step(chip, bits, group, wide, decode=decode, invariant=invariant, dtype=query.dtype)
        queries = 1 if decode else tile.lines // group
        tiles = tokens if decode else tokens // queries + count
        chunk = CHUNK if invariant else 0
        if invariant:
            splits = -(-longest // chunk) if decode else 1
        else:
            programs = chip.processors * (DECODE_PROGRAMS if decode else PREFILL_PROGRAMS)
            wanted = programs // (tiles * kv_heads)
            splits = max(1, min(wanted, longest // tile.keys, PARTS_BYTES // (4 * tokens * heads * dim)))
        if splits > 1 and not room:
            room.extend(query.new_empty(splits, tokens, heads, n, dtype=torch.float32) for n in (dim, 2))
        parts, weights = room or (None, None)
        own_sinks = None if sinks is None else sinks[layer]
        attend[tiles, kv_heads, splits](
            query, query.stride(0), query.stride(1), codes[layer],
            None if stored.scales is None else stored.scales[layer], rows.block_tables, rows.block_tables.stride(0),
            rows.query_starts, rows.context_lengths, own_sinks, out, parts, weights, count, splits, scale,
            soft_cap or 0.0, window or 0, HEADS=heads, KV_HEADS=kv_heads, DIM=dim, WIDE=wide, BLOCK=block_size,
            KV_STRIDE=stored.head_stride, LINES=tile.lines, KEYS=tile.keys, DECODE=decode, SPLIT=splits > 1,
            CHUNK=chunk, WINDOWED=window is not None, CAPPED=soft_cap is not None, E4M3_BITS=e4m3_bits,
            num_warps=tile.warps, num_stages=tile.stages, enable_fp_fusion=False,
        )
        if splits > 1:
            merge[tokens, heads](
                parts, weights, rows.query_starts, rows.context_lengths, own_sinks, out, count, splits, window or 0,
                HEADS=heads, DIM=dim, WIDE=wide, QUERIES=queries, KEYS=tile.keys, DECODE=decode, CHUNK=chunk,
                WINDOWED=window is not None, num_warps=1, enable_fp_fusion=False,
            )
        return out

    return attention


def tile_of_step(
    chip: Chip, bits: int, group: int, wide: int, *, decode: bool, invariant: bool, dtype: torch.dtype
) -> Tile:
    """The table's tile, with lines for at least one query of all heads of a group."""
    table = FLOAT32 if dtype == torch.float32 else INVARIANT if invariant else DECODE if decode else PREFILL
    tiles = next(line for (kib, least), line in table.items() if chip.shared_bytes >= kib << 10 and bits >= least)
    tile = tiles[0 if wide <= 64 else 1 if wide <= 128 else 2]
    return replace(tile, lines=max(tile.lines, triton.next_power_of_2(group)))
