"""single: what is done again for measuring is what a step does, and what bounds it computes and reads what it says."""
import numpy as np
import pytest
from packed_numbers import address, numbers_of, packed, quantised, random_blocks, weights_of
from tiny_decoder import buffer, opened, random_model, shuffled, step_of

from hamdam.kernels.cpu import plan, single
from hamdam.kernels.cpu.product import ADD, SCRATCH, WRITE


def test_attention_again_leaves_what_the_step_left_and_samples_are_the_same() -> None:
    model, table = random_model(bits=4), shuffled(0, 40)
    decoder = opened(model, blocks=40, threads=1)
    rows = [(table.row([id % 70 for id in range(count)]), count) for count in (20, 5, 300)]
    step = step_of(model.shape, rows)
    results = decoder.step(step)
    drawn = results.tolist()
    shape = (325, model.shape.heads, model.shape.dim)  # of the first split
    right = buffer(decoder, plan.ATTENDED, np.float32, *shape)
    decoder._kept[plan.ATTENDED][:] = 0xA5
    places, layers, _, board = decoder.plans
    single.repeat(places, layers, board, single.ATTEND, model.shape.layers)  # the last layer's comes last
    assert np.array_equal(buffer(decoder, plan.ATTENDED, np.float32, *shape), right)
    results[:] = 0
    single.repeat(places, layers, board, single.SAMPLE, 2)
    assert results.tolist() == drawn
    decoder.close()


@pytest.mark.parametrize("exact_above", [np.inf, 3.0, 0.0])
@pytest.mark.parametrize("bits", [4, 8])
def test_tokens_are_multiplied_by_one_matrix_after_the_other(bits: int, exact_above: float) -> None:
    random = np.random.default_rng(0)
    blocks = [random_blocks(random, 64, 96, bits) for _ in range(3)]
    matrices = [packed(one, 96).data for one in blocks]
    joined = np.concatenate(matrices)
    x = random.standard_normal((5, 96)).astype(np.float32)
    rows, scratch = np.zeros_like(quantised(x, exact_above)), np.zeros(SCRATCH, np.uint8)
    single.quantise_rows(address(x), 5, 96, exact_above, address(rows))
    right = [numbers_of(rows, 96) @ weights_of(one, 96).T for one in blocks]
    for times, mode, expected in ((1, WRITE, right[2]), (3, ADD, sum(right)), (2, WRITE, right[0])):
        out = np.zeros((5, 64), np.float32)
        single.multiply(address(joined), matrices[0].nbytes, 2, times, 3, bits, 64, 96, address(rows), 5, mode,
                        address(out), out.strides[0], address(scratch))
        np.testing.assert_allclose(out, expected, rtol=1e-4, atol=1e-3)


def test_the_bounds_look_at_all_they_say() -> None:
    memory = np.random.default_rng(0).integers(-1000, 1000, 1 << 14, np.int32)
    assert single.read(address(memory), memory.nbytes) == memory.sum()
    room = np.random.default_rng(1).integers(0, 16, single.ROOM, np.uint8)
    found = np.zeros((single.SIDE_BY_SIDE, 16), np.int32)
    single.dot_bytes_of(6, address(room), address(found))
    right = np.zeros_like(found)
    for turn in range(6):
        part = room.reshape(single.PARTS, -1)[turn % single.PARTS].astype(np.int32)
        weights, x = part[:512].reshape(8, 16, 4), part[:256].reshape(single.SIDE_BY_SIDE, 8, 4)
        right += np.einsum("slk,tsk->tl", weights, x)
    assert np.array_equal(found, right)
    ones = np.full(single.ROOM // 2, 0x3F80, np.uint16)  # 1 in bfloat16
    single.dot_pairs_of(7, address(ones), address(found))
    assert (found.view(np.float32) == 14).all()
