"""product: packed matrices times whole numbers, against float64 sums of the very same whole numbers."""
from dataclasses import dataclass

import numpy as np
import pytest
from numpy.typing import NDArray
from packed_numbers import Array, address, numbers_of, packed, quantised, random_blocks, side_by_side, terms_of

from hamdam.kernels.cpu.packing import Blocks, Packed
from hamdam.kernels.cpu.product import ADD, GATE, SCRATCH, WRITE, product, read_row
from hamdam.kernels.cpu.tiles import GROUP, PANEL, SETS

GUARD = 16  # columns behind a row of results, which no product touches
ROUNDING = 2e-6  # of float32, over a few dozen groups, relative to the sum of what was added
SHAPES = [(1, 16), (31, 32), (32, 48), (33, 16), (80, 144), (96, 576), (33, 2112)]
SHAPED = pytest.mark.parametrize(("outputs", "inputs"), SHAPES)
BITS = pytest.mark.parametrize("bits", [4, 8])
EXACT = pytest.mark.parametrize("exact_above", [np.inf, 3.0, 0.0])  # no group, some, all


def multiply(
    matrix: Packed, x: NDArray[np.uint8], *, outputs: int, mode: int = WRITE, bias: Array | None = None,
    base: Array | None = None, pieces: tuple[int, ...] = (),
) -> NDArray[np.float32]:
    """Rows of results, with all that a panel writes, over not-a-number or `base`. pieces: where panels are cut."""
    panels = -(-outputs // PANEL)
    width = panels * (PANEL // 2 if mode == GATE else PANEL)
    out = np.full((len(x), width + GUARD), np.nan, np.float32)
    if base is not None:
        out[:, : base.shape[1]] = base
    guard = out[:, width:].tobytes()
    scratch = np.full(SCRATCH, 0xFF, np.uint8)
    ends = (*pieces, panels)
    for first, end in zip((0, *ends), ends, strict=False):
        product(
            address(matrix.data), matrix.bits, first, end, matrix.inputs, address(x), len(x),
            0 if bias is None else address(bias), mode, address(out), out.strides[0], address(scratch), 0,
        )
    assert out[:, width:].tobytes() == guard
    return out[:, :width]


@dataclass
class Case:
    blocks: Blocks
    matrix: Packed
    x: NDArray[np.uint8]  # as product takes it
    right: Array  # float64 [tokens, outputs]
    added: Array  # the size of what was added up: float64 [tokens, outputs]


def case(
    seed: int, outputs: int, inputs: int, bits: int, exact_above: float, tokens: int, *, gated: bool = False
) -> Case:
    random = np.random.default_rng(seed)
    if gated:
        blocks = side_by_side(*(random_blocks(random, outputs // 2, inputs, bits) for _ in range(2)))
    else:
        blocks = random_blocks(random, outputs, inputs, bits)
    x = quantised(random.standard_normal((tokens, inputs)).astype(np.float32), exact_above)
    numbers = numbers_of(x, inputs)
    scaled, minima = terms_of(blocks)
    return Case(
        blocks, packed(blocks, inputs), x, numbers @ (scaled + minima).T,
        np.abs(numbers) @ (np.abs(scaled) + np.abs(minima)).T,
    )


@SHAPED
@BITS
@EXACT
@pytest.mark.parametrize("tokens", [1, 2, 3, 4, 5, 6, 7, 13])
def test_a_product_is_the_sum_of_its_whole_numbers(
    outputs: int, inputs: int, bits: int, exact_above: float, tokens: int
) -> None:
    own = case(tokens, outputs, inputs, bits, exact_above, tokens)
    found = multiply(own.matrix, own.x, outputs=outputs)
    assert np.all(np.abs(found[:, :outputs] - own.right) <= ROUNDING * own.added)
    assert np.all(found[:, outputs:] == 0)  # what a panel has too many is written as well


@BITS
@pytest.mark.parametrize("inputs", [16, 576, 2048, 2112])
def test_bits_of_groups_that_a_row_has_not_are_not_looked_at(bits: int, inputs: int) -> None:
    """A late thread may read a row while it becomes another (helping.py): it reads no weights behind the matrix."""
    own = case(9, 80, inputs, bits, 3.0, 2)
    right = multiply(own.matrix, own.x, outputs=80)
    groups = -(-inputs // GROUP)
    for row in own.x:
        words = row[SETS * groups :][: -(-groups // 64) * 8].view(np.uint64)
        if groups % 64:
            words[-1] |= np.uint64((1 << 64) - (1 << groups % 64))
    assert multiply(own.matrix, own.x, outputs=80).tobytes() == right.tobytes()


@BITS
@EXACT
def test_a_bias_is_added_once_and_a_result_to_what_was_there(bits: int, exact_above: float) -> None:
    outputs, inputs, tokens = 80, 48, 5
    own = case(0, outputs, inputs, bits, exact_above, tokens)
    random = np.random.default_rng(1)
    bias = np.zeros(96, np.float32)
    bias[:outputs] = random.standard_normal(outputs)
    base = random.standard_normal((tokens, 96)).astype(np.float32)
    for mode, given, right in (
        (WRITE, None, own.right + bias[:outputs]), (ADD, base, own.right + bias[:outputs] + base[:, :outputs])
    ):
        found = multiply(own.matrix, own.x, outputs=outputs, mode=mode, bias=bias, base=given)
        assert np.all(np.abs(found[:, :outputs] - right) <= ROUNDING * (own.added + 4))


@pytest.mark.parametrize(("wide", "inputs"), [(16, 32), (48, 48), (80, 160)])
@BITS
@EXACT
def test_gates_stand_beside_their_ups(wide: int, inputs: int, bits: int, exact_above: float) -> None:
    own = case(2, 2 * wide, inputs, bits, exact_above, 7, gated=True)
    found = multiply(own.matrix, own.x, outputs=2 * wide, mode=GATE)
    pairs = own.right.reshape(7, wide // 16, 2, 16).swapaxes(1, 2).reshape(7, 2, wide)
    gate, up = pairs[:, 0], pairs[:, 1]
    right = gate / (1 + np.exp(-gate)) * up
    added = own.added.reshape(7, wide // 16, 2, 16).swapaxes(1, 2).reshape(7, 2, wide).max(1)
    assert np.all(np.abs(found - right) <= 2 * ROUNDING * (1 + added) * (1 + np.abs(pairs).max(1)))


@BITS
@EXACT
@pytest.mark.parametrize("mode", [WRITE, ADD, GATE])
def test_a_token_has_the_same_bits_beside_whomever_and_however_panels_are_cut(
    bits: int, exact_above: float, mode: int
) -> None:
    outputs, inputs, tokens = 160, 112, 13
    own = case(3, outputs, inputs, bits, exact_above, tokens, gated=mode == GATE)
    base = np.random.default_rng(4).standard_normal((tokens, outputs)).astype(np.float32) if mode == ADD else None
    together = multiply(own.matrix, own.x, outputs=outputs, mode=mode, base=base)
    assert together.tobytes() == multiply(
        own.matrix, own.x, outputs=outputs, mode=mode, base=base, pieces=(1, 4)
    ).tobytes()
    for first in range(tokens):
        for count in {1, 2, 3, 4, 6, 9} & set(range(tokens - first + 1)):
            some = slice(first, first + count)
            own_base = None if base is None else base[some]
            found = multiply(own.matrix, own.x[some], outputs=outputs, mode=mode, base=own_base)
            assert found.tobytes() == together[some].tobytes()


@BITS
@EXACT
@pytest.mark.parametrize("mode", [WRITE, ADD, GATE])
@pytest.mark.parametrize("poison", [np.nan, np.inf, -np.inf])
def test_a_number_that_is_none_breaks_its_own_token_and_no_other(
    bits: int, exact_above: float, mode: int, poison: float
) -> None:
    outputs, inputs, tokens, broken = 64, 80, 7, 4
    random = np.random.default_rng(5)
    matrix = packed(random_blocks(random, outputs, inputs, bits), inputs)
    x = random.standard_normal((tokens, inputs)).astype(np.float32)
    base = np.zeros((tokens, outputs), np.float32) if mode == ADD else None
    right = multiply(matrix, quantised(x, exact_above), outputs=outputs, mode=mode, base=base)
    for at in (0, 17, inputs - 1):
        spoilt = x.copy()
        spoilt[broken, at] = poison
        found = multiply(matrix, quantised(spoilt, exact_above), outputs=outputs, mode=mode, base=base)
        assert np.isnan(found[broken]).all()
        whole = np.arange(tokens) != broken
        assert found[whole].tobytes() == right[whole].tobytes()


@BITS
def test_a_row_is_read_back_as_it_was_packed(bits: int) -> None:
    outputs, inputs = 70, 80
    blocks = random_blocks(np.random.default_rng(6), outputs, inputs, bits)
    matrix, whole = packed(blocks, inputs), terms_of(blocks)
    right = whole[0] + whole[1]
    for row in range(outputs):
        found = np.full(right.shape[1] + GUARD, np.nan, np.float32)
        read_row(address(matrix.data), bits, inputs, row, address(found))
        np.testing.assert_allclose(found[: right.shape[1]], right[row], rtol=1e-6, atol=1e-7)
        assert np.isnan(found[right.shape[1] :]).all()


@EXACT
def test_the_largest_numbers_there_are_do_not_overflow(exact_above: float) -> None:
    """All weights and all inputs as large as they get: the sums of whole numbers stay below 2 to the 31."""
    inputs = 4096
    x = quantised(np.where(np.arange(4 * inputs).reshape(4, -1) % 5 > 0, 3.0, -3.0).astype(np.float32), exact_above)
    for bits, byte in ((8, 0xFF), (8, 0x01), (4, 0xFF)):
        blocks = random_blocks(np.random.default_rng(7), 32, inputs, bits)
        blocks.numbers[:] = byte
        scaled, minima = terms_of(blocks)
        numbers = numbers_of(x, inputs)
        found = multiply(packed(blocks, inputs), x, outputs=32)
        added = np.abs(numbers) @ (np.abs(scaled) + np.abs(minima)).T
        assert np.all(np.abs(found - numbers @ (scaled + minima).T) <= 2 * ROUNDING * added)
