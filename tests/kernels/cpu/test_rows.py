"""rows: norm, whole numbers, gates, rotary and the KV blocks' layout of a single row, against float64."""
import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from packed_numbers import Array, address, bf16, from_bf16, numbers_of, parts_of, quantised

from hamdam.kernels.cpu import rows
from hamdam.kernels.cpu.tiles import GROUP
from hamdam.kernels.reference import Reference

LENGTHS = [16, 32, 48, 80, 576]
EXACT = pytest.mark.parametrize("exact_above", [np.inf, 3.0, 0.0])  # no group, some, all


def normed(x: NDArray[np.float32], weight: NDArray[np.float32], epsilon: float) -> NDArray[np.float32]:
    out = np.full(len(x) + 16, np.nan, np.float32)
    rows.norm(address(x), address(weight), address(out), len(x), epsilon)
    assert np.isnan(out[len(x) :]).all()
    return out[: len(x)]


@pytest.mark.parametrize("n", LENGTHS)
@pytest.mark.parametrize("size", [1e-12, 1.0, 1e15])
def test_a_norm_is_that_of_float64(n: int, size: float) -> None:
    random = np.random.default_rng(n)
    x, weight = (random.standard_normal((2, n)) * [[size], [1]]).astype(np.float32)
    wide = x.astype(np.float64)
    right = wide / np.sqrt((wide**2).mean() + 1e-5) * weight
    np.testing.assert_allclose(normed(x, weight, 1e-5), right, rtol=2e-6)
    rows.norm(address(x), address(weight), address(x), n, 1e-5)  # in place
    np.testing.assert_allclose(x, right, rtol=2e-6)


@pytest.mark.parametrize("poison", [np.nan, np.inf, -np.inf])
def test_the_norm_of_what_is_no_number_is_none(poison: float) -> None:
    x = np.ones(48, np.float32)
    x[33] = poison
    found = normed(x, np.ones(48, np.float32), 1e-5)
    assert np.isnan(found[33])


def groups_of(x: Array) -> Array:
    """float64 [rows, groups, 32], with zeros behind the last."""
    return np.pad(x, ((0, 0), (0, -x.shape[1] % GROUP))).astype(np.float64).reshape(len(x), -1, GROUP)


@pytest.mark.parametrize("n", [*LENGTHS, 2080])
@EXACT
@pytest.mark.parametrize("size", [1e-25, 1e-6, 1.0, 1e30])
def test_whole_numbers_are_within_half_a_step(n: int, exact_above: float, size: float) -> None:
    x = (np.random.default_rng(n).standard_normal((3, n)) * size).astype(np.float32)
    x[1] /= 1000
    x[2, ::50] *= 20
    made = quantised(x, exact_above)
    right, exact = groups_of(x), parts_of(made, n).exact
    step = np.abs(right).max(-1) / np.where(exact, 127 * 256, 127)
    found = numbers_of(made, n)
    near = np.abs(found.reshape(right.shape) - right) <= step[..., None] * 0.51  # half, and what float32 rounds
    assert near.all()
    assert np.all(found[:, n:] == 0)


@pytest.mark.parametrize("n", [*LENGTHS, 2080])
@pytest.mark.parametrize("exact_above", [np.inf, 8.0, 3.0, 0.0])
def test_16_bits_are_for_groups_that_hold_what_is_large_beside_the_rest_of_the_row(n: int, exact_above: float) -> None:
    x = np.random.default_rng(n).standard_t(3, (8, n)).astype(np.float32)
    largest, size = np.abs(groups_of(x)).max(-1), np.abs(x.astype(np.float64)).mean(-1, keepdims=True)
    parts = parts_of(quantised(x, exact_above), n)
    right = largest > size * exact_above
    close = np.abs(largest - size * exact_above) < 1e-5 * largest
    assert np.array_equal(parts.exact[~close], right[~close])
    assert not parts.lows[~parts.exact].any()


@pytest.mark.parametrize("n", LENGTHS)
@EXACT
def test_facts_are_the_sums_of_the_numbers(n: int, exact_above: float) -> None:
    made = quantised(np.random.default_rng(n).standard_normal((3, n)).astype(np.float32) + 1, exact_above)
    parts = parts_of(made, n)
    sums = numbers_of(made, n).reshape(3, -1, GROUP).sum(-1)
    np.testing.assert_allclose(parts.sums, sums, rtol=1e-6, atol=1e-6)
    assert np.array_equal(parts.biases, parts.highs.sum(-1, dtype=np.int32) * -128)
    assert np.array_equal(parts.low_biases, parts.lows.sum(-1, dtype=np.int32) * -128)


@EXACT
def test_whole_numbers_reach_their_ends_and_no_further(exact_above: float) -> None:
    x = np.zeros((2, 48), np.float32)
    x[0, [3, 40]] = 7.3, -7.3
    x[1, [0, 47]] = -1e-3, 1e-3
    found = numbers_of(quantised(x, exact_above), 48)[:, :48]
    np.testing.assert_allclose(found, x, rtol=1e-6)


@EXACT
@pytest.mark.parametrize("tiny", [0.0, -0.0, 1e-45, -1e-40, 1e-31])
def test_rows_of_almost_nothing_are_nothing(exact_above: float, tiny: float) -> None:
    found = numbers_of(quantised(np.full((1, 48), tiny, np.float32), exact_above), 48)
    assert np.all(found == 0)


@EXACT
@pytest.mark.parametrize("huge", [1e35, float(np.finfo(np.float32).max)])
def test_the_largest_float_is_kept(exact_above: float, huge: float) -> None:
    x = np.linspace(-huge, huge, 64, dtype=np.float64).astype(np.float32)[None]
    made = quantised(x, exact_above)
    found = numbers_of(made, 64)
    assert np.all(np.abs(found - x) <= huge / 127 * 0.501)


@EXACT
@pytest.mark.parametrize("poison", [np.nan, -np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("at", [0, 15, 16, 47])
def test_what_is_no_number_makes_all_scales_of_its_row_none(exact_above: float, poison: float, at: int) -> None:
    x = np.ones((2, 48), np.float32)
    x[0, at] = poison
    scales = parts_of(quantised(x, exact_above), 48).scales
    assert np.isnan(scales[0]).all()
    assert np.isfinite(scales[1]).all()


def test_a_gate_is_silu_times_up() -> None:
    gates = np.array([0, 1, -1, 20, -20, 88, -88, 1e4, -1e4, 1e30, -1e30, 0.5, -0.5, 5, -5, 1e-30], np.float32)
    ups = np.linspace(-2, 2, 16, dtype=np.float32)
    out = np.empty(16, np.float32)
    rows.gate(address(gates), address(ups), address(out))
    with np.errstate(over="ignore"):
        right = gates.astype(np.float64) / (1 + np.exp(-gates.astype(np.float64))) * ups
    np.testing.assert_allclose(out, right, rtol=2e-6, atol=1e-7)
    gates[:] = np.nan
    rows.gate(address(gates), address(ups), address(out))
    assert np.isnan(out).all()


@pytest.mark.parametrize("dim", [16, 32, 48, 64, 80, 128, 256])
@pytest.mark.parametrize("factor", [1.0, 0.125])
def test_a_head_is_turned_as_the_reference_turns_it(dim: int, factor: float) -> None:
    random = np.random.default_rng(dim)
    x = random.standard_normal(dim).astype(np.float32)
    angles = (random.random(dim // 2) * 100).astype(np.float32)
    turns = np.concatenate((np.cos(angles), np.sin(angles)))
    right = torch.from_numpy(x.copy()).view(1, 1, dim)
    cosine, sine = torch.from_numpy(turns).view(2, 1, 1, -1)
    Reference().rotary(right, torch.cat((cosine, cosine), -1), torch.cat((-sine, sine), -1))
    found = np.concatenate((x, np.full(16, np.nan, np.float32)))
    rows.rotate(address(found), address(turns), dim, factor)
    np.testing.assert_allclose(found[:dim], right.flatten().numpy() * factor, rtol=1e-5, atol=1e-6)
    assert np.isnan(found[dim:]).all()


def test_bfloat16_is_rounded_to_the_nearest_even_one_also_in_place() -> None:
    random = np.random.default_rng(0)
    bits = random.integers(0, 2**32, 1024, np.uint32)
    bits[:64] = (np.arange(64, dtype=np.uint32) << 16) + 0x3F808000  # exactly between two
    x = bits.view(np.float32)
    x = np.where(np.isfinite(x) & (np.abs(x) > np.finfo(np.float32).tiny), x, np.float32(1)).astype(np.float32)
    out = np.zeros(1024, np.uint16)
    rows.narrow(address(x), address(out), 1024)
    assert np.array_equal(from_bf16(out).astype(np.float64), bf16(x))
    rows.narrow(address(x), address(x), 1024)
    assert np.array_equal(x.view(np.uint16)[:1024], out)


@pytest.mark.parametrize("bits", [0x7FC00000, 0xFFC00000, 0x7F800001, 0x7FFFE000, 0x7FFFFFFF, 0xFFFFFFFF])
def test_no_number_stays_none_in_bfloat16_whatever_its_bits(bits: int) -> None:
    x = np.full(16, bits, np.uint32)
    out = np.zeros(16, np.uint16)
    rows.narrow(address(x), address(out), 16)
    assert np.isnan(from_bf16(out)).all()


@pytest.mark.parametrize("infinite", [np.inf, -np.inf])
def test_infinity_stays_infinite_in_bfloat16(infinite: float) -> None:
    x = np.full(16, infinite, np.float32)
    out = np.zeros(16, np.uint16)
    rows.narrow(address(x), address(out), 16)
    assert np.array_equal(from_bf16(out), x)


def keys_of(block: NDArray[np.uint16], dim: int) -> Array:
    """[16 tokens, dim] of a head's part of a block."""
    return block[: 16 * dim].reshape(dim // 2, 16, 2).swapaxes(0, 1).reshape(16, dim)


def values_of(block: NDArray[np.uint16], dim: int) -> Array:
    return block[16 * dim :].reshape(8, dim, 2).swapaxes(1, 2).reshape(16, dim)


@pytest.mark.parametrize("dim", [16, 48, 64, 80])
@pytest.mark.parametrize("order", ["up", "down", "mixed"])
def test_keys_and_values_lie_where_they_belong(dim: int, order: str) -> None:
    random = np.random.default_rng(dim)
    keys, values = random.integers(0, 2**16, (2, 16, dim), np.uint16)
    block = np.full(32 * dim, 0x7FC0, np.uint16)
    slots = {"up": np.arange(16), "down": np.arange(16)[::-1], "mixed": random.permutation(16)}[order]
    for slot in slots:
        rows.store_key(address(keys[slot]), address(block), slot, dim)
        rows.store_value(address(values[slot]), address(block[16 * dim :]), slot, dim, False)
    assert np.array_equal(keys_of(block, dim), keys)
    assert np.array_equal(values_of(block, dim), values)


@pytest.mark.parametrize("slot", range(16))
def test_the_last_value_clears_the_slot_behind_it_in_its_pair_and_no_other(slot: int) -> None:
    dim = 48
    value = np.arange(1, dim + 1, dtype=np.uint16)
    block = np.full(32 * dim, 0x7FC0, np.uint16)
    rows.store_value(address(value), address(block[16 * dim :]), slot, dim, True)
    found = values_of(block, dim)
    assert np.array_equal(found[slot], value)
    cleared = {slot + 1} if slot % 2 == 0 else set()
    for other in set(range(16)) - {slot}:
        assert np.all(found[other] == (0 if other in cleared else 0x7FC0))
    assert np.all(block[: 16 * dim] == 0x7FC0)
