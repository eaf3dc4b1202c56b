"""Step: one step of the decoder, for any mix of prefill and decode, as one call of compiled code. No Python inside.

All threads run `take_step` and share out each phase by tickets; the next one begins when all pieces of it are done.
Only what a row's own numbers say goes into a row's result, in one order, so that nothing depends on who computes it or
beside whom. A thread may still walk through phases that are over: what others read it writes only in pieces it took.
"""
import numpy as np
from numba import int64

from .attention import SPLIT, attend, merge
from .helping import multiply
from .lanes import add_long, clock, fma, load, peek_double, peek_float, peek_int, poke_float, poke_int, splat, store
from .native import entry, everywhere, native
from .plan import (
    ADDED,
    ATTENDED,
    ATTENTION_NORM,
    BLOCK_BYTES,
    BROKEN_HIDDEN,
    BROKEN_LOGITS,
    BYTES,
    CACHE,
    CLOCKS,
    DIM,
    DIVISORS,
    EDIT_STARTS,
    EDITS,
    EMBEDDING,
    EMBEDDING_BITS,
    FACTORS,
    GATED,
    HEAD_BYTES,
    HEADS,
    HIDDEN,
    IDS,
    KEPT,
    KEY_NORM,
    KV_HEADS,
    LAYER_BYTES,
    LAYER_PRODUCTS,
    LAYERS,
    LOGITS,
    MASK_BYTES,
    MASK_OF,
    MASKS,
    MLP_NORM,
    NORM,
    NOTHING,
    OWNERS,
    PICKING,
    POSITIONS,
    QKV,
    QUERY,
    QUERY_NORM,
    RESULTS,
    ROWS,
    SAMPLED,
    SAMPLES,
    SCRATCH,
    SCRATCH_BYTES,
    SETTINGS,
    STARTS,
    STATES,
    STREAM,
    TABLE_WIDTH,
    TABLES,
    TO_DOWN,
    TO_GATE_UP,
    TO_OUTPUT,
    TO_QKV,
    TOKENS,
    TURNS,
    UNIT,
    UNITS,
    VOCABULARY,
    WIDE,
    WIDE_BYTES,
    WINDOW,
)  # fmt: skip
from .product import ADD, GATE, WRITE, read_row
from .rows import narrow, norm, quantise, rotate, row_bytes, store_key, store_value
from .sample import BROKEN, sample_row
from .sharing import SHARES, clear, finish, next_row, take
from .sums import total
from .team import (
    BUSY,
    CLOSED,
    END,
    INSIDE,
    ORDER,
    add_atomic,
    announce,
    await_empty,
    await_order,
    dismiss,
    enter,
    leave,
    write_atomic,
)  # fmt: skip
from .tiles import PANEL
from .units import share_out

PHASES = 10  # of a layer, at most
_ZERO = np.float32(0.0)


@native
def embed(plan: np.ndarray, board: int, threads: int, phase: int) -> None:
    hidden = plan[HIDDEN]
    token, mine = next_row(board, threads, phase, -1), 0
    while token < plan[TOKENS]:
        id = peek_int(plan[IDS] + 4 * token)
        read_row(plan[EMBEDDING], plan[EMBEDDING_BITS], hidden, id, plan[STREAM] + token * padded(hidden))
        token, mine = next_row(board, threads, phase, token), mine + 1
    finish(board, threads, phase, mine, plan[TOKENS])


@everywhere
def padded(n: int) -> int:
    """Bytes of a row of n float32 that products write 32 at a time."""
    return (n + PANEL - 1) // PANEL * PANEL * 4


@native
def norm_rows(
    plan: np.ndarray, board: int, threads: int, phase: int, weight: int, epsilon: float, bytes: int, scratch: int
) -> None:
    hidden, exact_above = plan[HIDDEN], peek_double(plan[FACTORS] + 16)
    token, mine = next_row(board, threads, phase, -1), 0
    while token < plan[TOKENS]:
        norm(plan[STREAM] + token * padded(hidden), weight, scratch, hidden, epsilon)
        quantise(scratch, hidden, exact_above, bytes + token * row_bytes(hidden))
        token, mine = next_row(board, threads, phase, token), mine + 1
    finish(board, threads, phase, mine, plan[TOKENS])


@native
def turn_rows(
    plan: np.ndarray, layer: np.ndarray, cache: int, board: int, threads: int, phase: int, epsilon: float, scale: float
) -> None:
    """Queries turned, scaled and laid out for attention; keys turned, and both keys and values stored."""
    tokens = plan[TOKENS]
    piece = max(1, min(16, tokens // (threads * 4)))  # tokens of a block share its lines: best one thread writes them
    first, mine = take(board, phase) * piece, 0
    while first < tokens:
        for token in range(first, min(first + piece, tokens)):
            turn_token(plan, layer, cache, token, epsilon, scale)
        first, mine = take(board, phase) * piece, mine + 1
    finish(board, threads, phase, mine, (tokens + piece - 1) // piece)


@native
def turn_token(
    plan: np.ndarray, layer: np.ndarray, cache: int, token: int, epsilon: float, scale: float
) -> None:
    heads, kv_heads, dim = plan[HEADS], plan[KV_HEADS], plan[DIM]
    group = heads // kv_heads
    row, position = peek_int(plan[OWNERS] + 4 * token), peek_int(plan[POSITIONS] + 4 * token)
    block = peek_int(plan[TABLES] + 4 * (row * plan[TABLE_WIDTH] + position // 16))
    turns, slot = plan[TURNS] + 4 * dim * token, position % 16
    x = plan[QKV] + token * padded((heads + 2 * kv_heads) * dim)
    for head in range(heads + kv_heads):
        at = x + 4 * head * dim
        own = layer[QUERY_NORM] if head < heads else layer[KEY_NORM]
        if own != 0:
            norm(at, own, at, dim, epsilon)
        rotate(at, turns, dim, scale if head < heads else 1.0)
        if head < heads:
            place = ((head // group) * plan[TOKENS] + token) * group + head % group
            narrow(at, plan[QUERY] + 2 * dim * place, dim)
    last = not goes_on(plan, token, position, block)
    for head in range(kv_heads):
        to = cache + block * plan[BLOCK_BYTES] + head * plan[HEAD_BYTES]
        key, value = x + 4 * dim * (heads + head), x + 4 * dim * (heads + kv_heads + head)
        narrow(key, key, dim)
        store_key(key, to, slot, dim)
        narrow(value, value, dim)
        store_value(value, to + 32 * dim, slot, dim, last)


@native
def goes_on(plan: np.ndarray, token: int, position: int, block: int) -> bool:
    """Whether the next token of the step is written behind this one, be it of the same row or of one in its blocks."""
    following = token + 1
    if following == plan[TOKENS] or peek_int(plan[POSITIONS] + 4 * following) != position + 1:
        return False
    row = peek_int(plan[OWNERS] + 4 * following)
    return peek_int(plan[TABLES] + 4 * (row * plan[TABLE_WIDTH] + (position + 1) // 16)) == block


@native
def attend_rows(plan: np.ndarray, cache: int, board: int, threads: int, phase: int, scratch: int) -> None:
    heads, kv_heads, dim, tokens = plan[HEADS], plan[KV_HEADS], plan[DIM], plan[TOKENS]
    group = heads // kv_heads
    limits = scratch
    results, states, room = scratch + 64, scratch + 64 + 24 * dim, scratch + 128 + 24 * dim
    # A thread takes all KV heads of a unit, which lie side by side, or one where there are too few units for that.
    together = kv_heads if plan[UNITS] >= threads * SHARES else 1
    ticket, mine = take(board, phase) * together, 0
    while ticket < plan[UNITS] * kv_heads:
        unit = plan[UNIT] + 16 * (ticket // kv_heads)
        token, count, split, row = peek_int(unit), peek_int(unit + 4), peek_int(unit + 8), peek_int(unit + 12)
        first = split * SPLIT
        last = peek_int(plan[POSITIONS] + 4 * (token + count - 1))
        end = min(last + 1, first + SPLIT)
        if plan[WINDOW] > 0:
            first = max(first, peek_int(plan[POSITIONS] + 4 * token) + 1 - plan[WINDOW])
        table = plan[TABLES] + 4 * row * plan[TABLE_WIDTH]
        for head in range(ticket % kv_heads, ticket % kv_heads + together):
            base = cache + head * plan[HEAD_BYTES]
            following = base + plan[HEAD_BYTES] if head + 1 < ticket % kv_heads + together else 0
            done = 0  # of count * group queries, six at a time at most
            while done < count * group:
                rows = min(6, count * group - done)
                for one in range(rows):
                    poke_int(limits + 4 * one, peek_int(plan[POSITIONS] + 4 * (token + (done + one) // group)))
                queries = plan[QUERY] + 2 * dim * ((head * tokens + token) * group + done)
                attend(rows, queries, 2 * dim, dim, limits, plan[WINDOW], table, base, plan[BLOCK_BYTES], first, end,
                       following, results, states, room)
                for one in range(rows):
                    owner, own = token + (done + one) // group, head * group + (done + one) % group
                    place = (split * tokens + owner) * heads + own
                    for i in range(0, 4 * dim, 64):
                        store(plan[ATTENDED] + 4 * dim * place + i, load(results + 4 * dim * one + i))
                    poke_float(plan[STATES] + 8 * place, peek_float(states + 8 * one))
                    poke_float(plan[STATES] + 8 * place + 4, peek_float(states + 8 * one + 4))
                done += rows
        ticket, mine = take(board, phase) * together, mine + 1
    finish(board, threads, phase, mine, plan[UNITS] * kv_heads // together)


@native
def merge_rows(plan: np.ndarray, board: int, threads: int, phase: int, bytes: int, scratch: int) -> None:
    heads, dim, tokens = plan[HEADS], plan[DIM], plan[TOKENS]
    exact_above = peek_double(plan[FACTORS] + 16)
    token, mine = next_row(board, threads, phase, -1), 0
    while token < tokens:
        position = peek_int(plan[POSITIONS] + 4 * token)
        first = max(0, position + 1 - plan[WINDOW]) // SPLIT if plan[WINDOW] > 0 else 0
        for head in range(heads):
            place = token * heads + head
            merge(plan[ATTENDED] + 4 * dim * place, 4 * dim * tokens * heads, plan[STATES] + 8 * place,
                  8 * tokens * heads, first, position // SPLIT + 1, dim, scratch + 4 * dim * head)
        quantise(scratch, heads * dim, exact_above, bytes + token * row_bytes(heads * dim))
        token, mine = next_row(board, threads, phase, token), mine + 1
    finish(board, threads, phase, mine, tokens)


@native
def quantise_gated(plan: np.ndarray, board: int, threads: int, phase: int, bytes: int) -> None:
    wide, exact_above = plan[WIDE], peek_double(plan[FACTORS] + 16)
    token, mine = next_row(board, threads, phase, -1), 0
    while token < plan[TOKENS]:
        quantise(plan[GATED] + token * padded(wide), wide, exact_above, bytes + token * row_bytes(wide))
        token, mine = next_row(board, threads, phase, token), mine + 1
    finish(board, threads, phase, mine, plan[TOKENS])


@native
def last_rows(plan: np.ndarray, board: int, threads: int, phase: int, epsilon: float, scratch: int) -> None:
    """Each row's last token: whether it is finite, and where the row samples, its norm as whole numbers."""
    hidden, exact_above = plan[HIDDEN], peek_double(plan[FACTORS] + 16)
    row, mine = take(board, phase), 0
    while row < plan[ROWS]:
        x = plan[STREAM] + (peek_int(plan[STARTS] + 4 * (row + 1)) - 1) * padded(hidden)
        check = splat(_ZERO)
        for i in range(0, 4 * hidden, 64):
            check = fma(load(x + i), splat(_ZERO), check)
        poke_int(plan[RESULTS] + 4 * row, np.int32(NOTHING if total(check) == _ZERO else BROKEN_HIDDEN))
        for sample in range(plan[SAMPLES]):
            if peek_int(plan[SAMPLED] + 4 * sample) == row:
                norm(x, plan[NORM], scratch, hidden, epsilon)
                quantise(scratch, hidden, exact_above, plan[BYTES] + sample * row_bytes(hidden))
        row, mine = take(board, phase), mine + 1
    finish(board, threads, phase, mine, plan[ROWS])


@native
def sample_rows(plan: np.ndarray, board: int, threads: int, phase: int, which: int) -> None:
    vocabulary = plan[VOCABULARY]
    size = padded(vocabulary)
    weights = plan[PICKING] + 2 * size * which
    sample, mine = take(board, phase), 0
    while sample < plan[SAMPLES]:
        row, kept = peek_int(plan[SAMPLED] + 4 * sample), peek_int(plan[KEPT] + 4 * sample)
        if kept >= 0:
            logits, copy = plan[LOGITS] + sample * size, plan[LOGITS] + (plan[SAMPLES] + kept) * size
            for i in range(0, size, 64):
                store(copy + i, load(logits + i))
        first, end = peek_int(plan[EDIT_STARTS] + 4 * sample), peek_int(plan[EDIT_STARTS] + 4 * (sample + 1))
        own, masked = plan[SETTINGS] + 40 * sample, peek_int(plan[MASK_OF] + 4 * sample)
        mask = plan[MASKS] + plan[MASK_BYTES] * masked if masked >= 0 else 0
        id = sample_row(
            plan[LOGITS] + sample * size, vocabulary, mask, plan[EDITS] + 4 * first, plan[DIVISORS] + 4 * first,
            plan[ADDED] + 4 * first, end - first, peek_double(own), int(peek_double(own + 8)), peek_double(own + 16),
            peek_double(own + 24), peek_double(own + 32), weights, weights + size,
        )
        poke_int(plan[RESULTS] + 4 * row, np.int32(BROKEN_LOGITS if id == BROKEN else id))
        sample, mine = take(board, phase), mine + 1
    finish(board, threads, phase, mine, plan[SAMPLES])


@native
def tick(plan: np.ndarray, which: int, kind: int, since: int) -> int:
    """Books the time since then on a kind of phase (plan.PHASES); one thread does, which also waited for the others."""
    now = clock()
    if which == 0:
        add_long(plan[CLOCKS] + 8 * kind, now - since)
    return now


@native
def take_step(
    plan: np.ndarray, layers: np.ndarray, products: np.ndarray, board: int, threads: int, which: int, order: int
) -> None:
    """plan, layers, products: as plan.py says. Every thread of the team calls it with its own number `which`; one that
    comes late may return before the step's end, the first one does not."""
    hidden, wide, dim, tokens = plan[HIDDEN], plan[WIDE], plan[DIM], plan[TOKENS]
    query, qkv = plan[HEADS] * dim, (plan[HEADS] + 2 * plan[KV_HEADS]) * dim
    epsilon, scale = peek_double(plan[FACTORS]), peek_double(plan[FACTORS] + 8)
    scratch = plan[SCRATCH] + which * plan[SCRATCH_BYTES]
    stream, stream_row, bytes, wide_bytes = plan[STREAM], padded(hidden), plan[BYTES], plan[WIDE_BYTES]
    crew = threads  # of the phases that take no longer than waiting for each other, where there is one row
    if tokens == 1:  # each for itself, and behind the row that is the head's
        crew, bytes = 1, bytes + (1 + which) * row_bytes(max(hidden, query))
        wide_bytes += which * row_bytes(wide)
    now = clock()
    embed(plan, board, threads, 0)
    now = tick(plan, which, 0, now)
    phase = 1
    for index in range(plan[LAYERS]):
        layer, cache, own = layers[index], plan[CACHE] + index * plan[LAYER_BYTES], index * LAYER_PRODUCTS
        norm_rows(plan, board, crew, phase, layer[ATTENTION_NORM], epsilon, bytes, scratch)
        now = tick(plan, which, 1, now)
        if not multiply(plan, products, own + TO_QKV, board, order, threads, which, phase + 1, bytes, tokens,
                        WRITE, plan[QKV], padded(qkv)):
            return
        now = tick(plan, which, 2, now)
        turn_rows(plan, layer, cache, board, threads, phase + 2, epsilon, scale)
        now = tick(plan, which, 3, now)
        attend_rows(plan, cache, board, threads, phase + 3, scratch)
        now = tick(plan, which, 4, now)
        merge_rows(plan, board, crew, phase + 4, bytes, scratch)
        now = tick(plan, which, 5, now)
        if not multiply(plan, products, own + TO_OUTPUT, board, order, threads, which, phase + 5, bytes, tokens,
                        ADD, stream, stream_row):
            return
        now = tick(plan, which, 6, now)
        norm_rows(plan, board, crew, phase + 6, layer[MLP_NORM], epsilon, bytes, scratch)
        now = tick(plan, which, 7, now)
        if not multiply(plan, products, own + TO_GATE_UP, board, order, threads, which, phase + 7, bytes, tokens,
                        GATE, plan[GATED], padded(wide)):
            return
        now = tick(plan, which, 8, now)
        quantise_gated(plan, board, crew, phase + 8, wide_bytes)
        now = tick(plan, which, 9, now)
        if not multiply(plan, products, own + TO_DOWN, board, order, threads, which, phase + 9, wide_bytes, tokens,
                        ADD, stream, stream_row):
            return
        now = tick(plan, which, 10, now)
        phase += PHASES
    last_rows(plan, board, threads, phase, epsilon, scratch)
    now = tick(plan, which, 11, now)
    if not multiply(plan, products, plan[LAYERS] * LAYER_PRODUCTS, board, order, threads, which, phase + 1,
                    plan[BYTES], plan[SAMPLES], WRITE, plan[LOGITS], padded(plan[VOCABULARY])):
        return
    now = tick(plan, which, 12, now)
    sample_rows(plan, board, threads, phase + 2, which)
    tick(plan, which, 13, now)


@entry
def run_step(
    plan: np.ndarray, layers: np.ndarray, products: np.ndarray, board: int, threads: int, which: int, order: int
) -> None:
    """Thread 0 opens the step numbered `order`, takes part in it, and returns when it is done; whoever is still in it
    has nothing left to do there, but looks at what it was given. Another thread takes part in every step from now on,
    and returns when the team ends."""
    if which == 0:
        clear(board, plan[LAYERS] * PHASES + 4)
        share_out(plan)
        announce(board, ORDER, order)
        take_step(plan, layers, products, board, threads, which, order)
        write_atomic(board + ORDER, np.int32(CLOSED))
        return
    order = await_order(board, CLOSED)
    while order != END:
        add_atomic(board + BUSY, np.int32(1))
        if enter(board, order):
            take_step(plan, layers, products, board, threads, which, order)
        leave(board, INSIDE)
        leave(board, BUSY)
        order = await_order(board, order)


def compile_step() -> None:
    """Compiles all that Python calls, and with it all the rest; or loads what was compiled."""
    run_step.compile((int64[::1], int64[:, ::1], int64[:, ::1], int64, int64, int64, int64))  # type: ignore[attr-defined]
    await_empty.compile((int64, int64))  # type: ignore[attr-defined]
    dismiss.compile((int64,))  # type: ignore[attr-defined]
