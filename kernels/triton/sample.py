"""sample: one id a row of logits, as Ops.sample says, on the device and without sorting.

A program makes a row. Probabilities are integers in fixed point, so that every sum of them is exact and no order of
adding, no size of a tile and no neighbour can move an id.

top_k and top_p leave what is above a logit, and of those that equal it the first few. That logit is found bit by bit,
among few candidates: while the largest is looked for each lane keeps its own largest, and the k-th of these, or the
one down to which they hold the mass, bounds the right one from below. What is not below that is nearly always so
little that one tile holds it.
"""
import torch
import triton
import triton.language as tl
from torch import Tensor

from .variant import Variant, meta

LANES = 4096
"""Logits that a program looks at together, and the most candidates that are kept; 16 a thread."""

MOST_LOGITS = 1 << 19
NO_ID = tl.constexpr(1 << 30)
ONE = tl.constexpr(float(1 << 44))
"""The largest probability as an integer. Of half a million of them the sum is below 2⁶³."""


def sample(
    logits: Tensor, temperature: Tensor, top_k: Tensor, top_p: Tensor, min_p: Tensor, uniform: Tensor
) -> Tensor:
    """As Ops.sample. The settings may lie on either device; the ids [R] do not."""
    rows, vocabulary = logits.shape
    assert vocabulary <= MOST_LOGITS
    logits = logits if logits.stride(1) == 1 else logits.contiguous()
    settings = torch.stack((temperature, top_k.double(), top_p, min_p, uniform), 1).to(logits.device)
    lanes = min(LANES, triton.next_power_of_2(vocabulary))
    candidates = torch.empty(rows, 2, lanes, dtype=torch.int32, device=logits.device)
    ids = torch.empty(rows, dtype=torch.int64, device=logits.device)
    if rows:
        _sample[(rows,)](
            logits, settings, candidates, ids, vocabulary, logits.stride(0), lanes, num_warps=max(1, lanes // 256)
        )
    return ids


@triton.jit
def _sample(logits, settings, candidates, ids, vocabulary, stride, LANES: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    logits, candidates, settings = logits + row * stride, candidates + row * 2 * LANES, settings + row * 5
    temperature, top_k = tl.load(settings).to(tl.float32), tl.load(settings + 1).to(tl.int64)
    top_p, min_p = tl.load(settings + 2), tl.load(settings + 3).to(tl.float32)
    few = tl.cast(0, tl.int32)  # 1 once there are candidates to look at instead of the row
    best = tl.full((LANES,), -float("inf"), tl.float32)  # of each lane, and the first id that has it
    best_id = tl.full((LANES,), NO_ID, tl.int32)
    for start in range(0, vocabulary, LANES):
        x, id, _ = _tile(logits, candidates, start, vocabulary, few, LANES)
        better = x > best
        best, best_id = tl.where(better, x, best), tl.where(better, id, best_id)
    largest = tl.max(best, 0)
    found = tl.min(tl.where(best == largest, best_id, NO_ID), 0)
    if temperature > 0:
        limited = (top_k > 0) & (top_k < vocabulary)
        count = vocabulary
        bound, ties = tl.cast(0, tl.uint32), tl.cast(0, tl.int64)
        if limited | (top_p < 1):
            mass = tl.cast(0, tl.int64)
            shares, needed = (best_id < NO_ID).to(tl.int64), top_k
            if not limited:
                mass = _held(logits, candidates, count, few, bound, largest, temperature, True, LANES)
                shares, needed = _share(best, largest, temperature), _part(top_p, mass)
            least = _bound_of(_key(best), shares, needed)
            kept = _gather(logits, candidates, count, few, least, LANES)
            tl.debug_barrier()  # what one thread wrote, others read
            few = (kept <= LANES).to(tl.int32)
            count = tl.where(few == 1, kept, vocabulary)
            if limited:
                bound, above = _bound(logits, candidates, count, few, top_k, largest, temperature, False, LANES)
                ties = top_k - above
                mass = _held(logits, candidates, count, few, bound + 1, largest, temperature, True, LANES)
                mass += ties * _share(_logit(bound), largest, temperature)
            if top_p < 1:
                needed = _part(top_p, mass)
                bound, above = _bound(logits, candidates, count, few, needed, largest, temperature, True, LANES)
                each = tl.maximum(_share(_logit(bound), largest, temperature), 1)
                ties = (needed - above + each - 1) // each
        found = _draw(
            logits, candidates, count, few, bound, ties, largest, temperature, min_p, tl.load(settings + 4), LANES
        )
    tl.store(ids + row, found.to(tl.int64))


@triton.jit
def _tile(logits, candidates, start, count, few, LANES: tl.constexpr):
    """Logits, ids and which are there, from `start` on of the row, or of its candidates where these are `few`."""
    at = start + tl.arange(0, LANES)
    in_row, in_few = at < count * (1 - few), at < count * few
    x = tl.load(logits + at, in_row, other=-float("inf")).to(tl.float32)
    bits, id = tl.load(candidates + at, in_few, other=0), tl.load(candidates + LANES + at, in_few, other=0)
    return tl.where(in_few, bits.to(tl.float32, bitcast=True), x), tl.where(in_few, id, at), at < count


@triton.jit
def _key(x):
    """uint32 in the order of x float32, above 0; both zeros are one."""
    bits = tl.where(x == 0, 0.0, x).to(tl.uint32, bitcast=True)
    return tl.where((bits >> 31) == 1, ~bits, bits | 0x80000000)


@triton.jit
def _logit(key):
    """The float32 whose key it is."""
    return tl.where((key >> 31) == 1, key & 0x7FFFFFFF, ~key).to(tl.float32, bitcast=True)


@triton.jit
def _weight(x, largest, temperature):
    return tl.exp((x - largest) / temperature)


@triton.jit
def _share(x, largest, temperature):
    """A logit's probability, up to a factor, as an integer."""
    return (_weight(x, largest, temperature) * ONE).to(tl.int64)


@triton.jit
def _part(share, mass):
    """At least `share` of `mass`, and not nothing."""
    return tl.maximum(tl.ceil(share * mass.to(tl.float64)).to(tl.int64), 1)


@triton.jit
def _bit(number):
    return tl.cast(1, tl.uint32) << tl.cast(31 - number, tl.uint32)


@triton.jit
def _bound_of(keys, shares, needed):
    """The largest key down to which the shares are `needed`; 0 where all of them are less."""
    bound = tl.cast(0, tl.uint32)
    if tl.sum(shares, 0) >= needed:
        for number in range(32):
            tried = bound | _bit(number)
            bound = tl.where(tl.sum(tl.where(keys >= tried, shares, 0), 0) >= needed, tried, bound)
    return bound


@triton.jit
def _shares(x, here, largest, temperature, BY_MASS: tl.constexpr):
    """What each logit counts: its probability, or 1. 0 where none is."""
    return tl.where(here, _share(x, largest, temperature), 0) if BY_MASS else here.to(tl.int64)


@triton.jit
def _held(
    logits, candidates, count, few, bound, largest, temperature, BY_MASS: tl.constexpr, LANES: tl.constexpr
):
    """What is held by the keys that are `bound` or above: their number, or their mass."""
    total = tl.cast(0, tl.int64)
    for start in range(0, count, LANES):
        x, _, here = _tile(logits, candidates, start, count, few, LANES)
        total += tl.sum(_shares(x, here & (_key(x) >= bound), largest, temperature, BY_MASS), 0)
    return total


@triton.jit
def _bound(
    logits, candidates, count, few, needed, largest, temperature, BY_MASS: tl.constexpr, LANES: tl.constexpr
):
    """The largest key down to which `needed` is held, and what is held above it."""
    bound = tl.cast(0, tl.uint32)
    if few == 1:
        x, _, here = _tile(logits, candidates, 0, count, few, LANES)
        bound = _bound_of(_key(x), _shares(x, here, largest, temperature, BY_MASS), needed)
    else:
        for number in range(32):
            tried = bound | _bit(number)
            held = _held(logits, candidates, count, few, tried, largest, temperature, BY_MASS, LANES)
            bound = tl.where(held >= needed, tried, bound)
    return bound, _held(logits, candidates, count, few, bound + 1, largest, temperature, BY_MASS, LANES)


@triton.jit
def _gather(logits, candidates, count, few, least, LANES: tl.constexpr):
    """Writes logits whose keys are `least` or above, and their ids, in the order of these; returns how many there are.

    Of more than LANES the others are not written.
    """
    kept = tl.cast(0, tl.int32)
    for start in range(0, count, LANES):
        x, id, here = _tile(logits, candidates, start, count, few, LANES)
        mine = (here & (_key(x) >= least)).to(tl.int32)
        new = tl.sum(mine, 0)
        if new > 0:
            at = kept + tl.cumsum(mine, 0) - 1
            mask = (mine > 0) & (at < LANES)
            tl.store(candidates + at, x.to(tl.int32, bitcast=True), mask)
            tl.store(candidates + LANES + at, id, mask)
        kept += new
    return kept


@triton.jit
def _draw(
    logits, candidates, count, few, bound, ties, largest, temperature, min_p, uniform, LANES: tl.constexpr
):
    """The first id at which the shares of what may be taken pass `uniform` of all of them."""
    last_tie = tl.cast(-1, tl.int32)
    if ties > 0:
        last_tie = _passing(
            logits, candidates, count, few, bound, last_tie, ties - 1, largest, temperature, min_p, True, LANES
        )
    total = tl.cast(0, tl.int64)
    for start in range(0, count, LANES):
        x, id, here = _tile(logits, candidates, start, count, few, LANES)
        total += tl.sum(_taken(x, id, here, bound, last_tie, largest, temperature, min_p), 0)
    target = tl.minimum((uniform * total.to(tl.float64)).to(tl.int64), total - 1)
    return _passing(
        logits, candidates, count, few, bound, last_tie, target, largest, temperature, min_p, False, LANES
    )


@triton.jit
def _taken(x, id, here, bound, last_tie, largest, temperature, min_p):
    """The shares of what may be taken, of all else 0."""
    key = _key(x)
    may = here & ((key > bound) | ((key == bound) & (id <= last_tie))) & (_weight(x, largest, temperature) >= min_p)
    return tl.where(may, _share(x, largest, temperature), 0)


@triton.jit
def _passing(
    logits, candidates, count, few, bound, last_tie, target, largest, temperature, min_p, TIES: tl.constexpr,
    LANES: tl.constexpr,
):
    """The first id at which the sum of shares that may be taken, or the number of logits at the bound, is > target."""
    found, start, passed = tl.cast(NO_ID, tl.int32), tl.cast(0, tl.int32), tl.cast(0, tl.int64)
    while (found == NO_ID) & (start < count):
        x, id, here = _tile(logits, candidates, start, count, few, LANES)
        if TIES:
            own = (here & (_key(x) == bound)).to(tl.int64)
        else:
            own = _taken(x, id, here, bound, last_tie, largest, temperature, min_p)
        whole = tl.sum(own, 0)
        if passed + whole > target:
            before = tl.cast(-1, tl.int32)  # the last id up to which the sum is not above: the tile's ids ascend
            for number in range(12, 32):
                tried = before + _bit(number).to(tl.int32)
                before = tl.where(passed + tl.sum(tl.where(id <= tried, own, 0), 0) > target, before, tried)
            found = before + 1
        passed += whole
        start += LANES
    return found


def _variants() -> tuple[Variant, ...]:
    """The logits are read four times: for the largest, for the mass, for the candidates, to draw; from DRAM once."""
    rows, n = 64, 128_256
    logits, doubles = meta(rows, n), meta(rows, dtype=torch.float64)

    def launch() -> Tensor:
        return sample(logits, doubles, meta(rows, dtype=torch.int64), doubles, doubles, doubles)

    return (Variant(f"{rows} x {n}", launch, logits.nbytes, 4 * 8 * logits.numel()),)


VARIANTS = _variants()
