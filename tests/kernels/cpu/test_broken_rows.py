"""A row with what is no number in it is told so, whatever became of the numbers; its neighbours never notice."""
import numpy as np
import pytest
from tiny_decoder import (
    BLOCKS,
    Row,
    alone,
    decoding,
    kv_of,
    logits_of,
    random_ids,
    random_model,
    shuffled,
    step_of,
    traces,
    with_broken_row,
)  # fmt: skip

from hamdam.kernels.cpu.plan import BROKEN_HIDDEN, BROKEN_LOGITS, NOTHING

EXACT = pytest.mark.parametrize("exact_above", [np.inf, 3.0, 0.0])  # no group, some, all
BROKEN_ID = 69


@EXACT
@pytest.mark.parametrize("bits", [0x7E00, 0x7C00, 0x7FFF, 0xFFFF])
@pytest.mark.parametrize("at", [0, 20, 24])
def test_what_is_no_number_breaks_its_own_row_and_no_other(at: int, bits: int, exact_above: float) -> None:
    """Wherever in the row it arose: the tokens after it see it."""
    model = with_broken_row(random_model(12), BROKEN_ID, bits)
    several = random_ids(10, 25, 25, 25, 30, below=BROKEN_ID)
    right = [np.frombuffer(alone(model, ids, exact_above=exact_above)[0], np.float32) for ids in several]
    for number in (1, 2):
        several[number][at] = BROKEN_ID
    with decoding(model, exact_above=exact_above) as decoder:
        table = shuffled(9, BLOCKS)
        rows = [table.row(ids) for ids in several]
        drawn = decoder.step(step_of(model.shape, [(row, len(row.ids)) for row in rows], quiet=(2, 3))).tolist()
        assert drawn == [right[0].argmax(), BROKEN_LOGITS, BROKEN_HIDDEN, NOTHING]
        assert np.array_equal(logits_of(decoder, 2)[0], right[0])
        for row in (rows[0], rows[3]):
            assert all(np.isfinite(x).all() for layer in range(2) for x in kv_of(decoder, layer, row))


@pytest.mark.parametrize("broken", [63, 64, 128, 256])
@pytest.mark.parametrize("window", [0, 300])
def test_a_row_stays_broken_where_all_keys_of_its_first_chunks_are(broken: int, window: int) -> None:
    model = with_broken_row(random_model(13, layers=1, window=window), BROKEN_ID)
    [ids] = random_ids(11, 290, below=BROKEN_ID)
    ids[:broken] = [BROKEN_ID] * broken
    with decoding(model) as decoder:
        row = shuffled(10, BLOCKS).row(ids)
        assert decoder.step(step_of(model.shape, [(row, 289)], quiet=(0,))).tolist() == [BROKEN_HIDDEN]
        assert decoder.step(step_of(model.shape, [(row, 1)])).tolist() == [BROKEN_LOGITS]


def test_a_broken_row_does_not_show_to_those_that_read_the_same_blocks_with_it() -> None:
    model = with_broken_row(random_model(13), BROKEN_ID)
    prefix, *tails = random_ids(11, 256, 1, 1, 1, below=BROKEN_ID)
    right = [np.frombuffer(alone(model, prefix + tail)[0], np.float32).argmax() for tail in tails]
    with decoding(model) as decoder:
        table = shuffled(10, BLOCKS)
        first = table.row(prefix)
        decoder.step(step_of(model.shape, [(first, 256)]))
        for broken in range(3):
            now = [[BROKEN_ID] if number == broken else tail for number, tail in enumerate(tails)]
            rows = [Row(prefix + tail, [*first.blocks, *table.row(tail).blocks], done=256) for tail in now]
            drawn = decoder.step(step_of(model.shape, [(row, 1) for row in rows])).tolist()
            assert drawn == [BROKEN_LOGITS if number == broken else id for number, id in enumerate(right)]


def test_blocks_of_a_broken_row_are_as_good_as_new_for_the_next() -> None:
    model = with_broken_row(random_model(14), BROKEN_ID)
    for count in (1, 2, 15, 16, 17, 33):
        [ids] = random_ids(12, count, below=BROKEN_ID)
        with decoding(model) as decoder:
            blocks = shuffled(11, BLOCKS).free[:4]
            decoder.step(step_of(model.shape, [(Row([BROKEN_ID] * 64, blocks), 64)]))
            row = Row(ids, blocks)
            for _ in range(count):
                decoder.step(step_of(model.shape, [(row, 1)]))
            assert (logits_of(decoder, 1).tobytes(), traces(decoder, row)) == alone(model, ids)


@pytest.mark.parametrize("bits", [0x7FC00000, 0x7F800001, 0x7FFFFFFF, 0xFFFFFFFF])
def test_no_number_that_is_taken_over_stays_none(bits: int) -> None:
    model = random_model(11, layers=1)
    shape = model.shape
    with decoding(model) as decoder:
        given = np.full((1, 16, shape.kv_heads, shape.dim), bits, np.uint32).view(np.float32)
        decoder.take_kv(np.array([3]), given, given, 0)
        keys, values = kv_of(decoder, 0, Row([], [3], done=16))
        assert np.isnan(keys).all()
        assert np.isnan(values).all()
