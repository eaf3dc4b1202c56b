"""attention_parts: how a row's keys are shared out among programs, and the kernel that puts their parts together.

A part is what attention over some of the keys leaves for each query and head: the largest score, the sum of the
weights and the weighted sum of the values. Parts are merged in the order of the keys. Where the work goes to which
program is said here once, for the kernel that makes the parts (paged_attention) and the one that merges them.
"""
import triton
import triton.language as tl

from .product import converted

LOG2_E = tl.constexpr(1.4426950408889634)


@triton.jit
def row_of(item, starts, rows, SHARE: tl.constexpr, EXTRA: tl.constexpr):
    """The last row r with starts[r] // SHARE + r * EXTRA <= item. With EXTRA 1 that is the row of a tile of SHARE
    queries: these numbers leave every row room for its tiles, and some for one that stays empty."""
    low, high = 0, rows
    while high - low > 1:
        middle = (low + high) // 2
        if tl.load(starts + middle) // SHARE + middle * EXTRA <= item:
            low = middle
        else:
            high = middle
    return low


@triton.jit
def tile_of(row, query, starts, contexts, QUERIES: tl.constexpr):
    """Of the tile that holds this query of a row: its first and last query, and how many tokens the row has before."""
    count = (tl.load(starts + row + 1) - tl.load(starts + row)).to(tl.int32)
    first = query // QUERIES * QUERIES
    last = tl.minimum(first + QUERIES, count) - 1
    return first, last, tl.load(contexts + row).to(tl.int32) - count


@triton.jit
def first_key(position, window, WINDOWED: tl.constexpr):
    return tl.maximum(position - window + 1, 0) if WINDOWED else 0


@triton.jit
def share(start, end, split, splits, KEYS: tl.constexpr, CHUNK: tl.constexpr):
    """The keys of one split: a chunk counted from key 0, or an equal share of what is seen."""
    if CHUNK > 0:
        begin = split * CHUNK
        return tl.maximum(start, begin), tl.minimum(end, begin + CHUNK)
    size = tl.cdiv(tl.cdiv(end - start, KEYS), splits) * KEYS
    return start + split * size, tl.minimum(end, start + (split + 1) * size)


@triton.jit
def merged(peak, weight, total, other_peak, other_weight, other_total):
    """Two parts of a sum over keys as one: the largest score, the weights' sum and the weighted sum of the values.
    An empty part changes no bit, and written as `fma` it rounds alike in every kernel that uses it."""
    both = tl.maximum(peak, other_peak)
    base = tl.where(both == float("-inf"), 0.0, both)
    mine, others = tl.exp2(peak - base), tl.exp2(other_peak - base)
    weight = tl.fma(other_weight, others, weight * mine)
    return both, weight, tl.fma(other_total, others[:, None], total * mine[:, None])


@triton.jit
def mean(peak, weight, total, sinks, head, known):
    """The weighted mean of the values. A sink is one more weight, of a value that is 0. Who saw nothing gets 0."""
    if sinks is not None:
        sink = tl.load(sinks + head, mask=known, other=float("-inf")).to(tl.float32) * LOG2_E
        peak, weight, total = merged(peak, weight, total, sink, 1.0, 0.0)
    return total * (1.0 / tl.where(weight == 0.0, 1.0, weight))[:, None]


@triton.jit(do_not_specialize=["rows", "splits", "window"])
def merge(
    parts, weights, starts, contexts, sinks, out, rows, splits, window, HEADS: tl.constexpr, DIM: tl.constexpr,
    WIDE: tl.constexpr, QUERIES: tl.constexpr, KEYS: tl.constexpr, DECODE: tl.constexpr, CHUNK: tl.constexpr,
    WINDOWED: tl.constexpr,
):
    """Grid: tokens, heads. Puts together what `attend` left in parts and weights, in the order of the keys."""
    token, head = tl.program_id(0), tl.program_id(1) + tl.arange(0, 1)
    row = token if DECODE else row_of(token, starts, rows, 1, 0)
    query_index = token - tl.load(starts + row).to(tl.int32)
    first, last, past = tile_of(row, query_index, starts, contexts, QUERIES)
    start = first_key(past + first, window, WINDOWED) // KEYS * KEYS
    end = past + last + 1
    if CHUNK > 0:
        low, high = start // CHUNK, tl.cdiv(end, CHUNK)
    else:
        _, size = share(0, end - start, 0, splits, KEYS, CHUNK)
        low, high = 0, tl.cdiv(end - start, tl.maximum(size, 1))
    dim = tl.arange(0, WIDE)
    inside = (dim < DIM)[None, :]
    peak = tl.full([1], float("-inf"), tl.float32)
    weight = tl.zeros([1], tl.float32)
    total = tl.zeros([1, WIDE], tl.float32)
    tokens = tl.load(starts + rows)
    for split in range(low, high):
        place = (split * tokens + token) * HEADS + head
        other_total = tl.load(parts + place[:, None] * DIM + dim[None, :], mask=inside, other=0.0)
        other_peak, other_weight = tl.load(weights + place * 2), tl.load(weights + place * 2 + 1)
        peak, weight, total = merged(peak, weight, total, other_peak, other_weight, other_total)
    total = mean(peak, weight, total, sinks, head, head < HEADS)
    place = (token * HEADS + head).to(tl.int64)
    tl.store(out + place[:, None] * DIM + dim[None, :], converted(total, out.dtype.element_ty), mask=inside)
