"""attention: what a step makes of queries, keys and values, against float64 sums of the very same bfloat16 numbers."""
from collections.abc import Sequence

import numpy as np
import pytest
from packed_numbers import Array, address, from_bf16
from tiny_decoder import Row, buffer, kv_of, opened, random_model, shuffled, step_of

from hamdam.kernels.cpu import plan
from hamdam.kernels.cpu.attention import SPLIT, merge
from hamdam.kernels.cpu.decoder import BLOCK, Decoder
from hamdam.kernels.cpu.facts import Step

# Weights of the values are rounded to bfloat16, by 2^-8 at most; scores are sums in float32.
ROUNDING = 2**-8 * 1.02 + 1e-4
CONTEXTS = [1, 2, 3, 16, 17, 63, 64, 65, 129, 255, 256, 257, 258, 511, 513, 700, 1500]
HEADS = [
    (16, 8, 1), (16, 3, 3), (48, 9, 1), (64, 9, 3), (64, 10, 2), (80, 2, 2), (80, 8, 4), (128, 7, 1), (256, 4, 1),
    (256, 12, 2),
]  # fmt: skip


def attended(decoder: Decoder, step: Step) -> Array:
    """[tokens, heads, dim] of the last step's last layer, put together of its splits."""
    shape, tokens = decoder.shape, len(step.ids)
    splits = int(step.positions.max()) // SPLIT + 1
    sums = buffer(decoder, plan.ATTENDED, np.float32, splits, tokens, shape.heads, shape.dim)
    states = buffer(decoder, plan.STATES, np.float32, splits, tokens, shape.heads, 2)
    out = np.full((tokens, shape.heads, shape.dim), np.nan, np.float32)
    for token, position in enumerate(step.positions):
        first = max(0, position + 1 - shape.window) // SPLIT if shape.window else 0
        for head in range(shape.heads):
            merge(
                address(sums) + sums.strides[1] * token + sums.strides[2] * head, sums.strides[0],
                address(states) + states.strides[1] * token + states.strides[2] * head, states.strides[0],
                first, position // SPLIT + 1, shape.dim, address(out[token, head]),
            )
    return out


def queries_of(decoder: Decoder, tokens: int) -> Array:
    """[tokens, heads, dim] float64, as they were rounded and scaled."""
    shape = decoder.shape
    bits = buffer(decoder, plan.QUERY, np.uint16, shape.kv_heads, tokens, shape.heads // shape.kv_heads, shape.dim)
    return from_bf16(bits).astype(np.float64).swapaxes(0, 1).reshape(tokens, shape.heads, shape.dim)


def assert_right(decoder: Decoder, step: Step, rows: Sequence[Row]) -> None:
    """Every query of the last step against its row's keys and values, read from the cache by their layout."""
    shape = decoder.shape
    found, queries = attended(decoder, step), queries_of(decoder, len(step.ids))
    for number, row in enumerate(rows):
        keys, values = (x.astype(np.float64) for x in kv_of(decoder, 0, row))
        for token in range(step.starts[number], step.starts[number + 1]):
            end = int(step.positions[token]) + 1
            seen = slice(max(0, end - shape.window) if shape.window else 0, end)
            for head in range(shape.heads):
                own = head // (shape.heads // shape.kv_heads)
                scores = keys[seen, own] @ queries[token, head]
                shares = np.exp(scores - scores.max())
                shares /= shares.sum()
                error = np.abs(found[token, head] - shares @ values[seen, own])
                assert np.all(error <= ROUNDING * (shares @ np.abs(values[seen, own])) + 1e-6), (number, token, head)


def remember(decoder: Decoder, row: Row, count: int, random: np.random.Generator) -> None:
    """The first tokens of a row, computed as if by another runner; behind them lies not-a-number."""
    shape, blocks = decoder.shape, -(-count // BLOCK)
    given = np.full((2, blocks * BLOCK, shape.kv_heads, shape.dim), np.nan, np.float32)
    given[:, :count] = random.standard_normal((2, count, shape.kv_heads, shape.dim))
    keys, values = given.reshape(2, blocks, BLOCK, shape.kv_heads, shape.dim)
    decoder.take_kv(np.array(row.blocks[:blocks]), keys, values, 0)
    row.done = count


@pytest.mark.parametrize(("dim", "heads", "kv_heads"), HEADS)
@pytest.mark.parametrize("window", [0, 40])
def test_attention_over_contexts_of_all_lengths_is_that_of_float64(
    dim: int, heads: int, kv_heads: int, window: int
) -> None:
    random = np.random.default_rng(dim + heads)
    model = random_model(dim, layers=1, hidden=32, wide=16, heads=heads, kv_heads=kv_heads, dim=dim, window=window)
    decoder = opened(model, blocks=sum(-(-n // BLOCK) for n in CONTEXTS) + 1)
    table = shuffled(dim, decoder.cache.shape[2])
    rows, counts = [], []
    for context in random.permutation(CONTEXTS):
        row = table.row(random.integers(0, 70, context))
        counts.append(int(min(context, random.choice([1, 1, 2, 5, 9]))))
        if context > counts[-1]:
            remember(decoder, row, context - counts[-1], random)
        rows.append(row)
    step = step_of(model.shape, list(zip(rows, counts, strict=True)))
    decoder.step(step)
    assert_right(decoder, step, rows)
    decoder.close()


@pytest.mark.parametrize("window", [1, 2, 16, 63, 64, 65, 256, 300])
def test_a_window_hides_what_lies_before_it(window: int) -> None:
    random = np.random.default_rng(window)
    model = random_model(window, layers=1, hidden=32, wide=16, heads=6, kv_heads=2, dim=64, window=window)
    decoder = opened(model, blocks=80)
    table = shuffled(window, 80)
    rows, counts = [], (1, 70, 3, 8, 1)
    for count, context in zip(counts, (1, 70, 64, 320, 513), strict=True):
        row = table.row(random.integers(0, 70, context))
        if context > count:
            remember(decoder, row, context - count, random)
        rows.append(row)
    step = step_of(model.shape, list(zip(rows, counts, strict=True)))
    decoder.step(step)
    assert_right(decoder, step, rows)
    decoder.close()


@pytest.mark.parametrize("chunk", [1, 3, 5])
@pytest.mark.parametrize("window", [0, 100])
def test_a_step_s_own_tokens_see_those_before_them_and_none_after(chunk: int, window: int) -> None:
    """A whole context of 300, in steps of 100 and a few."""
    random = np.random.default_rng(chunk)
    model = random_model(chunk, layers=1, hidden=32, wide=16, heads=4, kv_heads=2, dim=32, window=window)
    decoder = opened(model, blocks=22)
    row = shuffled(chunk, 22).row(random.integers(0, 70, 300))
    while row.done < 300:
        step = step_of(model.shape, [(row, min(100 + chunk, 300 - row.done))])
        decoder.step(step)
        assert_right(decoder, step, [row])
    decoder.close()


@pytest.mark.parametrize("spoilt", ["keys", "values"])
@pytest.mark.parametrize("count", [1, 64, 128, 256, 299])
def test_keys_or_values_that_are_no_numbers_are_not_overlooked(spoilt: str, count: int) -> None:
    """Also where they are all that a query sees of a whole chunk, or of a whole split."""
    random = np.random.default_rng(count)
    model = random_model(0, layers=1, hidden=32, wide=16, heads=4, kv_heads=2, dim=32)
    decoder = opened(model, blocks=22)
    row = shuffled(0, 22).row(random.integers(0, 70, 300))
    keys, values = random.standard_normal((2, 19, BLOCK, 2, 32)).astype(np.float32)
    (keys if spoilt == "keys" else values).reshape(-1, 2, 32)[:count] = np.nan
    decoder.take_kv(np.array(row.blocks), keys, values, 0)
    row.done = 299
    step = step_of(model.shape, [(row, 1)])
    decoder.step(step)
    assert np.isnan(attended(decoder, step)).all()
    decoder.close()


def test_scores_far_apart_and_far_from_0_leave_the_largest() -> None:
    model = random_model(0, layers=1, hidden=32, wide=16, heads=2, kv_heads=1, dim=16)
    decoder = opened(model, blocks=22)
    row = shuffled(0, 22).row([7] * 300)
    keys, values = np.random.default_rng(0).standard_normal((2, 19, BLOCK, 1, 16)).astype(np.float32) * 1000
    decoder.take_kv(np.array(row.blocks), keys, values, 0)
    row.done = 299
    step = step_of(model.shape, [(row, 1)])
    decoder.step(step)
    assert_right(decoder, step, [row])
    decoder.close()
