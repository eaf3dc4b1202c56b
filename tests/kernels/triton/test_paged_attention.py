"""Paged attention on random ragged steps against its reference: all is written, only a row's own is read.

Under the interpreter a program takes milliseconds, so shapes are small where their size is not the matter.
"""
from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch
from kv_step import BLOCK, LAYER, LAYERS, Step, assert_close, make_step
from torch import Tensor

from hamdam.kernels.triton import attention_reference, paged_attention
from hamdam.kernels.triton.chip import Chip, chip_of
from hamdam.kernels.triton.kv_format import KvCache

KV_DTYPES = [torch.float16, torch.bfloat16, torch.int8, torch.float8_e4m3fn]
RAGGED = [1, 7, 1, 20], [3, 40, 70, 20]

# Where a score is large, e^2y is infinite before its reciprocal is 0, which is right, and numpy remarks on it.
pytestmark = pytest.mark.filterwarnings("ignore:overflow encountered in exp2:RuntimeWarning")


@pytest.fixture(autouse=True)
def _new_memory_holds_nan() -> Iterator[None]:
    """So that an element that a kernel forgets is seen."""
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


def attend(step: Step, **settings: object) -> Tensor:
    return paged_attention.paged_attention(step.cache, step.rows, scale=0.2, **settings)(LAYER, step.query)


def right(step: Step, *, sinks: Tensor | None = None, **settings: object) -> Tensor:
    own = None if sinks is None else sinks[LAYER]
    return attention_reference.attention(step.query, step.cache, step.rows, LAYER, scale=0.2, sinks=own, **settings)


def test_new_memory_holds_nan_in_these_tests(device: torch.device) -> None:
    assert torch.empty(3, device=device).isnan().all()


@pytest.mark.parametrize("seed", range(14))
def test_any_mix_of_rows_is_attended_as_the_reference_does(seed: int, device: torch.device) -> None:
    generator = torch.manual_seed(seed)

    def one_of(*options: object) -> object:
        return options[int(torch.randint(len(options), (), generator=generator))]

    counts = [one_of(1, 1, 2, 9, 20) for _ in range(one_of(1, 2, 4))]
    contexts = [count + one_of(0, 1, 15, 16, 50) for count in counts]
    kv_heads, group = one_of(1, 2, 3), one_of(1, 2, 5)
    step = make_step(
        counts, contexts, heads=kv_heads * group, kv_heads=kv_heads, dim=one_of(64, 96), dtype=torch.float32,
        kv_dtype=one_of(None, torch.int8, torch.float8_e4m3fn), device=device,
    )
    sinks = torch.randn(LAYERS, kv_heads * group, device=device)
    settings = {"window": one_of(None, 1, 20), "soft_cap": one_of(None, 2.0), "sinks": one_of(None, sinks)}
    assert_close(attend(step, **settings, invariant=one_of(False, True)), right(step, **settings), times=2)


@pytest.mark.parametrize("kv_dtype", KV_DTYPES, ids=str)
@pytest.mark.parametrize("counts", [[1, 1, 1], [1, 30, 1]], ids=["decode", "mixed"])
def test_keys_and_values_of_every_dtype(counts: list[int], kv_dtype: torch.dtype, device: torch.device) -> None:
    dtype = kv_dtype if kv_dtype.itemsize == 2 else torch.bfloat16
    step = make_step(counts, [70, 40, 1], dtype=dtype, kv_dtype=kv_dtype, device=device)
    assert_close(attend(step), right(step))


@pytest.mark.parametrize("kv_dtype", [torch.int8, torch.float8_e4m3fn], ids=str)
def test_keys_and_values_of_8_bits_under_float16_queries(kv_dtype: torch.dtype, device: torch.device) -> None:
    step = make_step(*RAGGED, dtype=torch.float16, kv_dtype=kv_dtype, device=device)
    assert_close(attend(step), right(step), times=10)  # products are of bfloat16 numbers


@pytest.mark.parametrize("kv_dtype", [torch.int8, torch.float8_e4m3fn], ids=str)
@pytest.mark.parametrize("size", [1e-9, 1e9])
def test_8_bits_hold_values_of_any_size(size: float, kv_dtype: torch.dtype, device: torch.device) -> None:
    step = make_step([1, 1], [40, 70], dtype=torch.bfloat16, kv_dtype=kv_dtype, device=device)
    step.query *= size
    scales = KvCache.of(step.cache).scales
    assert scales is not None
    scales[:, :, 0] /= size
    scales[:, :, 1] *= size
    assert_close(attend(step) / size, right(step) / size)


def test_e4m3_is_read_by_its_bits_where_a_chip_does_not_know_it(
    device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    step = make_step(*RAGGED, kv_dtype=torch.float8_e4m3fn, device=device)
    parts = KvCache.of(step.cache)
    own = int(step.rows.block_tables[3, 0])  # all of a block of the row of 20 that is whole
    every = torch.arange(256, dtype=torch.uint8).where(torch.arange(256) % 128 != 127, 0)  # but not-a-number
    parts.codes.view(torch.uint8)[LAYER, own, 0, 0, :4] = every.view(4, 64).to(device)
    expected = attend(step)

    def without_fp8(x: Tensor) -> Chip:
        return replace(chip_of(x), has_fp8=False)

    monkeypatch.setattr(paged_attention, "chip_of", without_fp8)
    assert torch.equal(attend(step), expected)


@pytest.mark.parametrize("dim", [64, 80, 96, 112, 128, 256])
def test_every_head_dim(dim: int, device: torch.device) -> None:
    step = make_step([1, 5], [20, 18], dim=dim, dtype=torch.float16, device=device)
    assert_close(attend(step), right(step))


@pytest.mark.parametrize("group", [1, 3, 4, 7, 8, 16])
@pytest.mark.parametrize("counts", [[1, 1], [3, 1]], ids=["decode", "mixed"])
def test_query_heads_that_share_a_kv_head(counts: list[int], group: int, device: torch.device) -> None:
    step = make_step(counts, [35, 20], heads=2 * group, kv_heads=2, device=device)
    assert_close(attend(step), right(step))


@pytest.mark.parametrize("window", [1, 16, 40, 1000])
@pytest.mark.parametrize("counts", [[1, 1, 1], [3, 20, 1]], ids=["decode", "mixed"])
def test_a_window_hides_what_lies_before_it(counts: list[int], window: int, device: torch.device) -> None:
    step = make_step(counts, [90, 60, 5], dtype=torch.float16, device=device)
    assert_close(attend(step, window=window), right(step, window=window))


def test_what_lies_before_the_window_is_not_read(device: torch.device) -> None:
    step = make_step([1, 20], [100, 90], device=device)
    expected = right(step, window=30)
    blocks = torch.cat((step.rows.block_tables[0, :4], step.rows.block_tables[1, :2]))  # before keys 70 and 41
    step.cache[:, blocks] = torch.nan
    assert_close(attend(step, window=30), expected)


@pytest.mark.parametrize("counts", [[1, 1], [1, 9]], ids=["decode", "mixed"])
def test_sinks_take_their_share_of_the_weights(counts: list[int], device: torch.device) -> None:
    step = make_step(counts, [90, 40], heads=4, device=device)
    sinks = torch.tensor([[0.0] * 4, [-30.0, 0.0, 3.0, 40.0]], device=device)
    found = attend(step, sinks=sinks)
    assert_close(found, right(step, sinks=sinks))
    assert found[:, 3 * 64 :].abs().max() < 1e-9  # the last head looks at nothing but its sink


def test_a_cap_keeps_scores_within_it(device: torch.device) -> None:
    step = make_step([1, 9], [60, 40], device=device)
    step.query *= 100
    assert_close(attend(step, soft_cap=1.5), right(step, soft_cap=1.5))


@pytest.mark.parametrize("kv_dtype", [torch.float16, torch.int8], ids=str)
def test_a_thousand_blocks(kv_dtype: torch.dtype, device: torch.device) -> None:
    step = make_step([1, 1], [1000 * BLOCK, 37], dtype=torch.float16, kv_dtype=kv_dtype, device=device)
    assert_close(attend(step), right(step), times=10 if kv_dtype == torch.int8 else 1)  # 8 bits: in bfloat16


def test_a_step_without_tokens_is_nothing(device: torch.device) -> None:
    assert attend(make_step([], [], device=device)).shape == (0, 2 * 64)


def test_a_row_without_context_gets_zeros(device: torch.device) -> None:
    step = make_step([1, 1], [40, 20], device=device)
    step.rows.context_lengths[1] = 0  # as rows are that fill up a batch of fixed size
    found = attend(step)
    assert not found[1].any()
    assert_close(found, right(step))


def test_queries_and_tables_may_be_slices_of_something_wider(device: torch.device) -> None:
    step = make_step([1, 5], [8, 40], device=device)
    expected = right(step)
    step.query = torch.cat((step.query, torch.full_like(step.query, torch.nan)), 1)[:, :2]
    tables = torch.cat((step.rows.block_tables, torch.full_like(step.rows.block_tables, 1 << 40)), 1)
    step.rows = replace(step.rows, block_tables=tables[:, : step.rows.block_tables.shape[1]])
    assert_close(attend(step), expected)


@pytest.mark.parametrize("kv_dtype", [torch.float32, torch.int8, torch.float8_e4m3fn], ids=str)
@pytest.mark.parametrize("counts", [[1, 1, 1], [4, 3, 1]], ids=["decode", "mixed"])
def test_not_a_number_stays_in_its_row(counts: list[int], kv_dtype: torch.dtype, device: torch.device) -> None:
    step = make_step(counts, [20, 18, 17], kv_dtype=kv_dtype, device=device)
    broken = torch.full((1, 1, 64), torch.nan, device=device)
    attention_reference.store(broken, broken, step.cache, LAYER, step.rows.block_tables[0, :1] * BLOCK)
    found = attend(step)
    assert found[: counts[0]].isnan().all()
    assert_close(found[counts[0] :], right(step)[counts[0] :])


def test_attention_writes_nothing_but_its_result(device: torch.device) -> None:
    step = make_step(*RAGGED, device=device)
    before = step.cache.clone(), step.query.clone()
    attend(step)
    assert torch.equal(step.cache.view(torch.uint8), before[0].view(torch.uint8))
    assert torch.equal(step.query, before[1])


@pytest.mark.parametrize("kv_dtype", [torch.float16, torch.int8], ids=str)
@pytest.mark.parametrize("window", [None, 50])
def test_an_invariant_result_is_the_same_however_a_row_is_cut_and_whoever_is_beside_it(
    kv_dtype: torch.dtype, window: int | None, device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(paged_attention, "CHUNK", 64)
    step = make_step([150, 1, 9], [150, 100, 40], dtype=torch.float16, kv_dtype=kv_dtype, device=device)
    together = attend(step, window=window, invariant=True)
    assert_close(together, right(step, window=window), times=10 if kv_dtype == torch.int8 else 1)  # as above
    for first, last in [(0, 1), (0, 7), (63, 64), (64, 65), (50, 140), (149, 150)]:
        assert torch.equal(alone(step, first, last, window), together[first:last]), f"tokens {first} to {last}"


def alone(step: Step, first: int, last: int, window: int | None) -> Tensor:
    """Tokens first to last of the first row, in a step of their own."""
    rows = replace(
        step.rows, query_starts=step.rows.query_starts[:2].clamp(max=last - first),
        context_lengths=torch.tensor([last], device=step.query.device), block_tables=step.rows.block_tables[:1],
    )
    return attend(Step(rows, step.cache, step.query[first:last]), window=window, invariant=True)
