"""Sample: one id of one row of logits, as `Ops.sample` (kernels/ops.py) says it. One thread a row; no sort.

What top_k and top_p keep is everything above some logit, and of those equal to it the lower ids: that logit is found by
halving the range of its bits. It is sought among the few tokens that are at least e^-16 as probable as the first, and
only where these do not suffice among all.
"""
import numpy as np

from .lanes import (
    WIDTH,
    div,
    exp,
    fma,
    larger,
    load,
    peek_float,
    peek_int,
    poke_float,
    poke_int,
    splat,
    store,
    sub,
)  # fmt: skip
from .native import native
from .sums import largest, total

BROKEN = -1
LIKELY = 16.0  # of logits over temperature below the largest: tokens looked at first
MINUS = np.float32(-np.inf)
_ZERO = np.float32(0.0)


@native
def sample_row(
    logits: int, vocabulary: int, mask: int, edits: int, divisors: int, added: int, count: int, temperature: float,
    top_k: int, top_p: float, min_p: float, uniform: float, weights: int, kept: int,
) -> int:
    """logits: float32 up to the next multiple of 16, changed here. mask: a bit for each id that may be taken, or 0.
    edits, divisors, added: `count` ids and what their logits become (facts.py).

    weights, kept: room for as many numbers of 4 bytes. Returns the id, or BROKEN where a logit is not finite.
    """
    padded = (vocabulary + WIDTH - 1) // WIDTH * WIDTH
    for i in range(vocabulary, padded):
        poke_float(logits + 4 * i, _ZERO)
    check = splat(_ZERO)
    for at in range(logits, logits + 4 * padded, 4 * WIDTH):
        check = fma(load(at), splat(_ZERO), check)
    if total(check) != _ZERO:
        return BROKEN
    for i in range(vocabulary, padded):
        poke_float(logits + 4 * i, MINUS)
    if mask != 0:
        _mask(logits, vocabulary, mask)
    for i in range(0, 4 * count, 4):
        at = logits + 4 * peek_int(edits + i)
        own, divisor = peek_float(at), peek_float(divisors + i)
        poke_float(at, (own / divisor if own > _ZERO else own * divisor) + peek_float(added + i))
    most = splat(MINUS)
    for at in range(logits, logits + 4 * padded, 4 * WIDTH):
        most = larger(load(at), most)
    top = largest(most)
    if temperature <= 0.0:
        return _first(logits, vocabulary, top)
    _weigh(logits, padded, top, np.float32(temperature), weights)
    if not 0 < top_k < vocabulary:
        top_k = 0
    if top_k > 0 or top_p < 1.0:
        count = _candidates(logits, vocabulary, weights, top, temperature, top_k, top_p, kept)
        if top_k > 0:
            count = _keep(logits, weights, kept, count, float(top_k), False)
        if top_p < 1.0:
            mass = 0.0
            if top_k > 0:
                for i in range(count):
                    mass += peek_float(weights + 4 * peek_int(kept + 4 * i))
            else:
                mass = _mass(weights, padded)
            count = _keep(logits, weights, kept, count, max(top_p * mass, 1e-300), True)
        return _pick_kept(weights, kept, count, min_p, uniform)
    return _pick(weights, vocabulary, padded, min_p, uniform)


@native
def _mask(logits: int, vocabulary: int, mask: int) -> None:
    """Most words of a grammar's mask allow nothing at all, or everything: those take no look at each id."""
    for first in range(0, vocabulary, 32):
        word = peek_int(mask + first // 8)
        if word == 0:
            for id in range(first, min(first + 32, vocabulary)):
                poke_float(logits + 4 * id, MINUS)
        elif word != -1:
            for id in range(first, min(first + 32, vocabulary)):
                if (word >> (id - first)) & 1 == 0:
                    poke_float(logits + 4 * id, MINUS)


@native
def _first(logits: int, vocabulary: int, top: float) -> int:
    """The lowest id whose logit is the largest."""
    at = 0
    while largest(load(logits + 4 * at)) != top:
        at += WIDTH
    while peek_float(logits + 4 * at) != top:
        at += 1
    return at


@native
def _weigh(logits: int, padded: int, top: float, temperature: float, weights: int) -> None:
    """Probabilities but for a factor: the largest is 1."""
    first, heat = splat(top), splat(temperature)
    for at in range(0, 4 * padded, 4 * WIDTH):
        store(weights + at, exp(div(sub(load(logits + at), first), heat)))


@native
def _mass(weights: int, padded: int) -> float:
    mass = 0.0
    for at in range(weights, weights + 4 * padded, 4 * WIDTH):
        mass += total(load(at))
    return mass


@native
def _candidates(
    logits: int, vocabulary: int, weights: int, top: float, temperature: float, top_k: int, top_p: float, kept: int
) -> int:
    """Writes the ids among which the kept ones are, ascending, and returns how many."""
    padded = (vocabulary + WIDTH - 1) // WIDTH * WIDTH
    bound = np.float32(top - LIKELY * temperature)
    count, mass = 0, 0.0
    for i in range(0, padded, WIDTH):
        if largest(load(logits + 4 * i)) >= bound:
            for id in range(i, min(i + WIDTH, vocabulary)):
                if peek_float(logits + 4 * id) >= bound:
                    poke_int(kept + 4 * count, np.int32(id))
                    mass += peek_float(weights + 4 * id)
                    count += 1
    enough = count >= top_k if top_k > 0 else mass * (1.0 - 1e-6) >= top_p * _mass(weights, padded)
    if not enough:
        for id in range(vocabulary):
            poke_int(kept + 4 * id, np.int32(id))
        count = vocabulary
    return count


@native
def _key(logits: int, id: int) -> int:
    """The bits of a logit as a number that orders as logits do."""
    bits = np.int64(peek_int(logits + 4 * id))
    if bits == -2147483648:  # -0.0 is 0.0
        return np.int64(0)
    return bits if bits >= 0 else np.int64(-2147483648) - bits - 1


@native
def _keep(logits: int, weights: int, kept: int, count: int, needed: float, by_mass: bool) -> int:
    """Of the ids at `kept` leaves the fewest with the largest logits that hold `needed` of the mass, or are so many."""
    low, high = np.int64(-2147483649), np.int64(2147483648)  # what is above `low` suffices, what is above `high` not
    above = 0.0  # of what is above `high`
    while high - low > 1:
        middle = (low + high) // 2
        held = 0.0
        for i in range(count):
            id = peek_int(kept + 4 * i)
            if _key(logits, id) > middle:
                held += peek_float(weights + 4 * id) if by_mass else 1.0
        if held >= needed:
            low = middle
        else:
            high, above = middle, held
    left = 0  # `high` is the key of the smallest kept: of those equal to it the first ones stay
    for i in range(count):
        id = peek_int(kept + 4 * i)
        key = _key(logits, id)
        if key > high or (key == high and (above < needed or left == 0)):
            if key == high:
                above += peek_float(weights + 4 * id) if by_mass else 1.0
            poke_int(kept + 4 * left, np.int32(id))
            left += 1
    return left


@native
def _pick_kept(weights: int, kept: int, count: int, min_p: float, uniform: float) -> int:
    mass = 0.0
    for i in range(count):
        weight = peek_float(weights + 4 * peek_int(kept + 4 * i))
        mass += weight if weight >= min_p else 0.0
    passed, found = 0.0, peek_int(kept)
    for i in range(count):
        id = peek_int(kept + 4 * i)
        weight = peek_float(weights + 4 * id)
        if weight >= min_p and weight > 0.0:
            passed += weight
            found = id
            if passed > uniform * mass:
                break
    return found


@native
def _pick(weights: int, vocabulary: int, padded: int, min_p: float, uniform: float) -> int:
    """Of all of them: the 16 in which the sum passes, and then the one."""
    if min_p > 0.0:
        for i in range(padded):
            if peek_float(weights + 4 * i) < min_p:
                poke_float(weights + 4 * i, _ZERO)
    target = uniform * _mass(weights, padded)
    passed, found = 0.0, 0
    for i in range(0, padded, WIDTH):
        held = total(load(weights + 4 * i))
        if held > 0.0:
            inner = passed
            for id in range(i, min(i + WIDTH, vocabulary)):
                weight = peek_float(weights + 4 * id)
                if weight > 0.0:
                    inner += weight
                    found = id
                    if inner > target:
                        return id
            passed += held
            if passed > target:
                return found
    return found
