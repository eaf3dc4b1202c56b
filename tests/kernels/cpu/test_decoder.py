"""decoder: whole steps of small random models against the same models in float64, in any mix and order of rows."""
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from native_sampling import draw
from tiny_decoder import (
    BLOCKS,
    POISON,
    Row,
    Table,
    alone,
    decoding,
    kv_of,
    logits_of,
    opened,
    random_ids,
    random_model,
    right_logits,
    shuffled,
    step_of,
    traces,
)  # fmt: skip

from hamdam.kernels.cpu import plan
from hamdam.kernels.cpu.plan import NOTHING

SHAPES: dict[str, dict[str, Any]] = {
    "tied": {"tied": True},
    "biased": {"biased": True, "hidden": 80, "dim": 16, "heads": 3, "kv_heads": 1},
    "normed heads": {"normed_heads": True, "dim": 48},
    "window": {"window": 9},
    "odd sizes": {"hidden": 48, "wide": 112, "vocabulary": 33, "heads": 5, "kv_heads": 5, "dim": 16},
    "4 bits": {"bits": 4, "hidden": 96, "tied": True},
    "all at once": {
        "biased": True, "normed_heads": True, "tied": True, "window": 20, "hidden": 112, "wide": 48, "heads": 7,
        "kv_heads": 1, "dim": 80, "vocabulary": 129, "layers": 3, "bits": 4,
    },
}
# Of the size of all of a row's logits, by which groups get 16 bits. Attention rounds its weights to the 8 of bfloat16;
# where a token sees itself alone, its weight is exactly 1. One byte is 7 bits and a sign.
TOLERANCE = {np.inf: 0.05, 3.0: 0.05, 0.0: 5e-3}
TOLERANCE_OF_THE_FIRST = {np.inf: 0.05, 3.0: 0.05, 0.0: 1e-3}
EXACT = pytest.mark.parametrize("exact_above", [np.inf, 3.0, 0.0])  # no group, some, all


def error_of(found: Any, right: Any) -> float:
    return float(np.linalg.norm(found - right) / np.linalg.norm(right))


@EXACT
@pytest.mark.parametrize("name", SHAPES)
def test_logits_are_those_of_the_model_in_float64(name: str, exact_above: float) -> None:
    model = random_model(3, **SHAPES[name])
    [ids] = random_ids(1, 37, below=model.shape.vocabulary)
    right = right_logits(model, ids)
    with decoding(model, exact_above=exact_above) as decoder:
        row = shuffled(0, BLOCKS).row(ids)
        for count in (1, 20, 1, 15):
            drawn = decoder.step(step_of(model.shape, [(row, count)]))
            found = logits_of(decoder, 1)[0]
            tolerance = TOLERANCE if row.done > 1 else TOLERANCE_OF_THE_FIRST
            assert error_of(found, right[row.done - 1]) < tolerance[exact_above]
            assert drawn.tolist() == [found.argmax()]


@pytest.mark.parametrize("name", SHAPES)
def test_rows_of_any_mix_are_those_of_the_model_in_float64(name: str) -> None:
    model = random_model(4, **SHAPES[name])
    several = random_ids(2, 30, 5, 64, 17, below=model.shape.vocabulary)
    right = [right_logits(model, ids) for ids in several]
    with decoding(model) as decoder:
        table = shuffled(1, BLOCKS)
        rows = [table.row(ids) for ids in several]
        for counts in ((29, 1, 0, 3), (0, 1, 60, 1), (1, 3, 3, 0), (0, 0, 1, 13)):
            some = [number for number in range(4) if counts[number]]
            drawn = decoder.step(step_of(model.shape, [(rows[number], counts[number]) for number in some]))
            found = logits_of(decoder, len(some))
            for own, number, id in zip(found, some, drawn, strict=True):
                assert error_of(own, right[number][rows[number].done - 1]) < TOLERANCE[0.0]
                assert id == own.argmax()


@EXACT
@pytest.mark.parametrize(
    "shape",
    [{}, {"window": 70}, {"heads": 6, "kv_heads": 1, "bits": 4}, {"heads": 3, "kv_heads": 3, "window": 5},
     {"heads": 9, "kv_heads": 1, "dim": 80}, {"heads": 2, "kv_heads": 1, "dim": 256, "window": 257}],
)
def test_a_row_has_the_same_bits_whole_in_chunks_token_by_token_and_beside_others(
    shape: dict[str, Any], exact_above: float
) -> None:
    """Through the borders of 16, 64 and 256 tokens."""
    model = random_model(5, **shape)
    several = random_ids(3, 300, 68, 129, 1)
    right = [alone(model, ids, exact_above=exact_above) for ids in several]
    random = np.random.default_rng(0)
    for largest in (1, 7, 90):
        with decoding(model, exact_above=exact_above) as decoder:
            table = shuffled(largest, BLOCKS)
            rows = [table.row(ids) for ids in several]
            found: list[bytes] = [b""] * len(rows)
            while open_rows := [number for number, row in enumerate(rows) if row.done < len(row.ids)]:
                random.shuffle(open_rows)
                some = open_rows[: 1 + random.integers(len(open_rows))] if largest > 1 else open_rows
                counts = [
                    min(1 + int(random.integers(largest)), len(rows[number].ids) - rows[number].done) for number in some
                ]
                decoder.step(step_of(model.shape, [(rows[number], n) for number, n in zip(some, counts, strict=True)]))
                for number, own in zip(some, logits_of(decoder, len(some)), strict=True):
                    found[number] = own.tobytes()
            assert [(own, traces(decoder, row)) for own, row in zip(found, rows, strict=True)] == right


@EXACT
def test_three_threads_compute_what_one_does(exact_above: float) -> None:
    model = random_model(6, layers=3, biased=True)
    several = random_ids(4, 70, 3, 20)
    found = []
    for threads in (1, 3):
        with decoding(model, exact_above=exact_above, threads=threads) as decoder:
            table = shuffled(2, BLOCKS)
            rows = [table.row(ids, settings=(0.8, 20, 0.9, 0.01, 0.37)) for ids in several]
            results = []
            for counts in ((60, 1, 18), (9, 1, 1), (1, 1, 0), (0, 0, 1)):
                step = step_of(model.shape, [(row, n) for row, n in zip(rows, counts, strict=True) if n])
                results += [decoder.step(step).tobytes(), logits_of(decoder, len(step.sampled)).tobytes()]
            found.append((results, [traces(decoder, row) for row in rows]))
    assert found[0] == found[1]


def test_steps_of_all_sizes_take_turns() -> None:
    """Buffers that grew for one step are as good for a smaller one and the next larger one."""
    model = random_model(7)
    sizes = (1, 40, 2, 300, 1, 7)
    several = random_ids(5, *sizes)
    with decoding(model, max_tokens=1) as decoder:
        table = shuffled(3, BLOCKS)
        for ids in several:
            row = table.row(ids)
            decoder.step(step_of(model.shape, [(row, len(ids))]))
            assert (logits_of(decoder, 1).tobytes(), traces(decoder, row)) == alone(model, ids)


def test_rows_that_do_not_sample_get_nothing_and_the_others_what_they_get_beside_none() -> None:
    model = random_model(8)
    several = random_ids(6, 9, 10, 11)
    right = [np.frombuffer(alone(model, ids)[0], np.float32) for ids in several]
    with decoding(model) as decoder:
        table = shuffled(4, BLOCKS)
        step = step_of(model.shape, [(table.row(ids), len(ids)) for ids in several], quiet=(0, 2))
        assert decoder.step(step).tolist() == [NOTHING, right[1].argmax(), NOTHING]
        assert np.array_equal(logits_of(decoder, 1)[0], right[1])
        step = step_of(model.shape, [(table.row(several[0]), 9)], quiet=(0,))
        assert decoder.step(step).tolist() == [NOTHING]


def test_banned_ids_are_not_taken_and_only_by_whom_they_are_banned() -> None:
    model = random_model(9)
    [ids] = random_ids(7, 12)
    order = np.frombuffer(alone(model, ids)[0], np.float32).argsort()[::-1].tolist()
    with decoding(model) as decoder:
        table = shuffled(5, BLOCKS)
        rows = [table.row(ids, banned=banned) for banned in ([], order[:1], order[:3], [order[1]])]
        drawn = decoder.step(step_of(model.shape, [(row, len(ids)) for row in rows])).tolist()
        assert drawn == [order[0], order[1], order[3], order[0]]


def test_each_row_is_drawn_by_its_own_settings() -> None:
    model = random_model(9, vocabulary=1000)
    random = np.random.default_rng(0)
    settings = [
        (0.0, 0, 1.0, 0.0, 0.5), (1.0, 0, 1.0, 0.0, 0.999), (0.7, 5, 1.0, 0.0, 0.9), (2.0, 0, 0.8, 0.0, 0.2),
        (1.0, 0, 1.0, 0.3, 0.7), (1.5, 40, 0.9, 0.05, 0.4),
    ]  # fmt: skip
    banned = [random.choice(1000, count, replace=False).tolist() for count in (0, 1, 30, 0, 999, 2)]
    with decoding(model, threads=2) as decoder:
        table = shuffled(5, BLOCKS)
        several = random_ids(7, 3, 4, 5, 6, 7, 8, below=1000)
        rows = [
            table.row(ids, settings=chosen, banned=held)
            for ids, chosen, held in zip(several, settings, banned, strict=True)
        ]
        drawn = decoder.step(step_of(model.shape, [(row, len(row.ids)) for row in rows])).tolist()
        found = logits_of(decoder, 6)
        assert [np.isneginf(own).sum() for own in found] == [len(ids) for ids in banned]
        assert drawn == [draw(own, *chosen) for own, chosen in zip(found, settings, strict=True)]


def test_a_sequence_goes_on_from_copied_blocks_as_from_its_own() -> None:
    model = random_model(10)
    first, second = random_ids(8, 40, 5)
    whole = first[:37] + second
    with decoding(model) as decoder:
        table = shuffled(6, BLOCKS)
        source, target = table.row(first), table.row(whole)
        decoder.step(step_of(model.shape, [(source, 40)]))
        passed_on = [*target.blocks[:3]]
        decoder.copy_blocks([(source.blocks[0], table.free[-1]), (table.free[-1], passed_on[0])])  # in order
        decoder.copy_blocks(list(zip(source.blocks[1:], passed_on[1:], strict=True)))
        target.done = 37
        decoder.step(step_of(model.shape, [(target, 5)]))
        assert (logits_of(decoder, 1).tobytes(), traces(decoder, target)) == alone(model, whole)


@pytest.mark.parametrize(
    ("heads", "window", "units"),
    # Splits 0 and 1 are shared by 7 tokens that decode, 6, 3, 2 or 1 of them a unit; an eighth row has 9 tokens.
    [(2, 0, 2 * (2 + 2) + 7 + 2), (4, 0, 2 * (3 + 3) + 7 + 3), (6, 0, 2 * (4 + 5) + 7 + 5), (14, 0, 3 * (7 + 9)),
     (4, 300, 3 * (7 + 3))],
)
def test_rows_that_begin_in_the_same_blocks_compute_what_each_does_alone(heads: int, window: int, units: int) -> None:
    model = random_model(10, heads=heads, window=window)
    prefix, *tails = random_ids(8, 512, *[12] * 7, 20)
    with decoding(model, blocks=60, threads=2) as decoder:
        table = shuffled(6, 60)
        first = table.row(prefix)
        decoder.step(step_of(model.shape, [(first, 512)]))
        rows = [Row(prefix + tail, [*first.blocks, *table.row(tail).blocks], done=512) for tail in tails]
        steps = [[1] * 7 + [9], *[[1] * 7 + [1]] * 11]
        for counts in steps:
            decoder.step(step_of(model.shape, list(zip(rows, counts, strict=True))))
            if counts is steps[0]:
                shared = int(decoder._plan[plan.UNITS])
        found = logits_of(decoder, 8)
        for row, own in zip(rows, found, strict=True):
            assert (own.tobytes(), traces(decoder, row)) == alone(model, row.ids[: row.done])
        assert shared == units


@pytest.mark.parametrize("count", [1, 16, 37])
def test_a_sequence_goes_on_from_kv_that_another_runner_computed(count: int) -> None:
    model = random_model(11)
    [ids] = random_ids(9, 60)
    with decoding(model) as one, decoding(model) as other:
        source, target = shuffled(7, BLOCKS).row(ids), shuffled(8, BLOCKS).row(ids)
        one.step(step_of(model.shape, [(source, count)]))
        needed = -(-count // 16)
        for layer in range(model.shape.layers):
            given = np.full((2, 16 * needed, model.shape.kv_heads, model.shape.dim), np.nan, np.float32)
            given[:, :count] = kv_of(one, layer, source)
            keys, values = given.reshape(2, needed, 16, *given.shape[2:])
            other.take_kv(np.array(target.blocks[:needed]), keys, values, layer)
        target.done = count
        other.step(step_of(model.shape, [(target, 60 - count)]))
        assert (logits_of(other, 1).tobytes(), traces(other, target)) == alone(model, ids)


def test_a_step_writes_its_own_slots_and_clears_at_most_one_more() -> None:
    model = random_model(15)
    [ids] = random_ids(13, 21)
    with decoding(model) as decoder:
        row = shuffled(12, BLOCKS).row(ids)
        decoder.step(step_of(model.shape, [(row, 21)]))
        bits = decoder.cache.view(np.uint16)
        untouched = np.ones(BLOCKS, bool)
        untouched[row.blocks] = False
        assert np.all(bits[:, :, untouched] == POISON)
        row.done = 32  # what is behind the row in its last block, too
        keys, values = (np.isnan(x[21:]).reshape(11, -1).all(1) for x in kv_of(decoder, 1, row))
        assert keys.all()
        assert values.tolist() == [False] + [True] * 10  # the slot in a pair with the last one
        assert np.all(kv_of(decoder, 1, row)[1][21] == 0)


def test_closing_twice_is_closing_once() -> None:
    model = random_model(16, layers=1)
    decoder = opened(model, blocks=4, threads=2)
    decoder.close()
    decoder.close()


def test_an_embedding_may_be_of_other_bits_than_the_layers() -> None:
    """As in files whose layers have 4 bits and whose embedding has 8."""
    four, eight = random_model(17, bits=4), random_model(17, bits=8)
    model = replace(
        four, embedding=eight.embedding, head=eight.head,
        weights=replace(four.weights, embedding=eight.weights.embedding, head=eight.weights.head),
    )
    [ids] = random_ids(14, 20)
    with decoding(model) as decoder:
        row = Table([1, 2]).row(ids)
        decoder.step(step_of(model.shape, [(row, 20)]))
        assert error_of(logits_of(decoder, 1)[0], right_logits(model, ids)[-1]) < TOLERANCE[0.0]
