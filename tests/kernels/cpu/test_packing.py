"""packing: what a file's blocks and rounded floats become, read back number for number."""
import numpy as np
import pytest
from numpy.typing import NDArray
from packed_numbers import address, joined, packed, random_blocks, side_by_side, terms_of

from hamdam.engine.loading.gguf import block_format
from hamdam.kernels.cpu.packing import Packed, aligned, from_floats, from_gguf, put, unfilled
from hamdam.kernels.cpu.product import read_row
from hamdam.kernels.cpu.tiles import GROUP

FORMATS = {"Q4_0": 2, "Q4_1": 3, "Q8_0": 8}
FLOAT16_STEP = 2.0**-24  # between its smallest numbers


def rows_of(matrix: Packed) -> NDArray[np.float32]:
    """All of a matrix, by read_row: [outputs, inputs]."""
    found = np.full((matrix.outputs, -(-matrix.inputs // GROUP) * GROUP), np.nan, np.float32)
    for row, target in enumerate(found):
        read_row(address(matrix.data), matrix.bits, matrix.inputs, row, address(target))
    return found[:, : matrix.inputs]


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize(("outputs", "groups"), [(1, 1), (33, 3), (64, 2), (2100, 1)])
def test_blocks_of_a_file_are_moved_and_not_changed(name: str, outputs: int, groups: int) -> None:
    random = np.random.default_rng(outputs)
    form = block_format(FORMATS[name])
    assert form.dequantise is not None
    blocks = random.integers(0, 256, (outputs, groups, form.nbytes), np.uint8)
    for at in range(0, 4 if name == "Q4_1" else 2, 2):
        halves = random.uniform(-3, 3, (outputs, groups)).astype(np.float16)
        blocks[..., at : at + 2] = halves[..., None].view(np.uint8)
    right = form.dequantise(blocks.reshape(-1, form.nbytes)).reshape(outputs, -1)
    assert np.array_equal(rows_of(packed(from_gguf(name, blocks), GROUP * groups)), right)


def test_another_format_is_refused() -> None:
    with pytest.raises(ValueError, match="Q5_0"):
        from_gguf("Q5_0", np.zeros((1, 1, 22), np.uint8))


@pytest.mark.parametrize("inputs", [16, 32, 48, 80, 576])
@pytest.mark.parametrize("size", [1e-7, 1e-4, 0.02, 1.0, 3e4])
def test_floats_are_rounded_to_half_a_step_of_their_group(inputs: int, size: float) -> None:
    weights = (np.random.default_rng(inputs).standard_normal((37, inputs)) * size).astype(np.float32)
    weights[5] = 0
    found = rows_of(packed(from_floats(weights), inputs))
    groups = np.pad(np.abs(weights), ((0, 0), (0, -inputs % GROUP))).reshape(37, -1, GROUP)
    step = groups.max(-1).repeat(GROUP, 1)[:, :inputs] / 127
    # The scale is rounded to float16: by 2^-11 of it, or by its smallest step, which tells 127 times at most.
    assert np.all(np.abs(found - weights) <= step * (0.5 + 127 * 2**-11) + 127 * FLOAT16_STEP / 2)
    assert np.all(found[5] == 0)


def test_a_matrix_lies_above_the_next() -> None:
    for bits in (4, 8):
        random = np.random.default_rng(bits)
        parts = [random_blocks(random, outputs, 64, bits) for outputs in (48, 16, 33)]
        right = np.concatenate([sum(terms_of(part)) for part in parts])
        whole = packed(joined(parts), 64)
        np.testing.assert_allclose(rows_of(whole), right, rtol=1e-6, atol=1e-7)
        placed = unfilled(bits, 97, 64)
        for part, first in zip(parts, (0, 3, 4), strict=True):
            put(placed, part, first)
        assert np.array_equal(placed.data, whole.data)


@pytest.mark.parametrize("bits", [4, 8])
def test_16_gates_lie_beside_their_16_ups(bits: int) -> None:
    random = np.random.default_rng(0)
    gate, up = (random_blocks(random, 48, 96, bits) for _ in range(2))
    whole = packed(side_by_side(gate, up), 96)
    placed = unfilled(bits, 96, 96)
    for first, blocks in enumerate((gate, up)):
        put(placed, blocks, first, 2)
    assert np.array_equal(placed.data, whole.data)
    found = rows_of(whole)
    for start in range(0, 48, 16):
        for side, blocks in enumerate((gate, up)):
            right = sum(terms_of(blocks))[start : start + 16]
            own = found[2 * start + 16 * side : 2 * start + 16 * side + 16]
            np.testing.assert_allclose(own, right, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("size", [1, 63, 64, 1000])
def test_packed_bytes_begin_at_a_cache_line(size: int) -> None:
    room = aligned(size)
    assert room.nbytes == size
    assert room.ctypes.data % 64 == 0
    assert not room.any()
