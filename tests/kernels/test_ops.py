"""Every implementation of Ops against formulas written out in float64, on random ragged batches. Not the sampler."""
import math
from dataclasses import dataclass, replace

import pytest
import torch
from torch import Tensor

from hamdam.kernels import onednn
from hamdam.kernels.device import for_device
from hamdam.kernels.kv_codes import LARGEST, dequantise, quantise
from hamdam.kernels.ops import Ops, Rows
from hamdam.kernels.reference import GATHERED_TOKENS, Reference

BLOCK = 16
TOLERANCE = {torch.float32: 2e-6, torch.bfloat16: 1e-2}  # of numbers around 1
CPU = torch.device("cpu")
KV_DTYPES = [torch.float32, torch.float16, torch.bfloat16, torch.int8, torch.float8_e4m3fn]
IMPLEMENTATIONS = [Reference, *([onednn.OneDnn] if onednn.available() else [])]


@pytest.fixture(params=IMPLEMENTATIONS)
def ops(request: pytest.FixtureRequest) -> Ops:
    return request.param()


@pytest.fixture(params=[torch.float32, torch.bfloat16], ids=str)
def dtype(request: pytest.FixtureRequest) -> torch.dtype:
    return request.param


@dataclass
class Step:
    """A step over `contexts`, of which the last `counts` tokens are this step's; the KV before it is stored already."""

    counts: list[int]
    contexts: list[int]
    rows: Rows
    cache: Tensor
    query: Tensor
    key: list[Tensor]  # of each row, all of its context
    value: list[Tensor]


def make_step(
    ops: Ops, counts: list[int], contexts: list[int], *, heads: int = 6, kv_heads: int = 2, dim: int = 16,
    layers: int = 2, layer: int = 1, dtype: torch.dtype = torch.float32, kv_dtype: torch.dtype | None = None,
    poison: float = math.nan,
) -> Step:
    """Blocks are spread at random; whatever no row has written holds `poison`, or of 8 bits what says not-a-number."""
    needed = [-(-context // BLOCK) for context in contexts]
    blocks = torch.randperm(sum(needed) + 3)
    tables = torch.full((len(counts), max(needed)), int(blocks[-1]))
    for table, own in zip(tables, blocks.split([*needed, 3]), strict=False):
        table[: len(own)] = own
    starts = torch.tensor([0, *counts]).cumsum(0)
    positions = [torch.arange(context) for context in contexts]
    slots = [table[p // BLOCK] * BLOCK + p % BLOCK for table, p in zip(tables, positions, strict=True)]
    own = torch.cat([slot[-count:] for slot, count in zip(slots, counts, strict=True)])
    rows = Rows(query_starts=starts, context_lengths=torch.tensor(contexts), block_tables=tables, slots=own)
    cache = ops.new_kv_cache(layers, len(blocks), BLOCK, kv_heads, dim, dtype=kv_dtype or dtype, device=CPU)
    if cache.dtype in LARGEST:
        cache.view(torch.uint8).fill_(0xFF)
    else:
        cache.fill_(poison)
    key, value = ([torch.randn(n, kv_heads, dim, dtype=dtype) for n in contexts] for _ in range(2))
    ops.store_kv(torch.cat(key), torch.cat(value), cache, layer, replace(rows, slots=torch.cat(slots)))
    return Step(counts, contexts, rows, cache, torch.randn(sum(counts), heads, dim, dtype=dtype), key, value)


def attention_of(
    step: Step, *, scale: float, window: int | None = None, soft_cap: float | None = None, sinks: Tensor | None = None
) -> Tensor:
    """One query and one head at a time, in float64."""
    out = torch.empty(step.query.shape, dtype=torch.float64)
    tokens = iter(range(len(out)))
    for row, (count, context) in enumerate(zip(step.counts, step.contexts, strict=True)):
        for position in range(context - count, context):
            token = next(tokens)
            seen = slice(0 if window is None else max(0, position - window + 1), position + 1)
            for head in range(out.shape[1]):
                shared = head * step.key[row].shape[1] // out.shape[1]
                scores = step.key[row][seen, shared].double() @ step.query[token, head].double() * scale
                if soft_cap is not None:
                    scores = soft_cap * torch.tanh(scores / soft_cap)
                weights = scores.exp() / (scores.exp().sum() + (0 if sinks is None else sinks[head].double().exp()))
                out[token, head] = weights @ step.value[row][seen, shared].double()
    return out.flatten(1)


def assert_close(found: Tensor, right: Tensor, dtype: torch.dtype) -> None:
    assert found.dtype == dtype
    torch.testing.assert_close(found.double(), right, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype])


def random_ragged(seed: int) -> tuple[list[int], list[int]]:
    """Up to nine rows, prefill and decode in any order, contexts from 1 to some 80."""
    generator = torch.Generator().manual_seed(seed)

    def below(n: int) -> int:
        return int(torch.randint(n, (), generator=generator))

    counts = [1 if below(2) else 1 + below(40) for _ in range(1 + below(9))]
    return counts, [count + (0 if below(4) == 0 else below(60)) for count in counts]


@pytest.mark.parametrize("seed", range(25))
def test_attention_of_any_mix_of_rows_is_that_of_each_alone(ops: Ops, dtype: torch.dtype, seed: int) -> None:
    torch.manual_seed(seed)
    step = make_step(ops, *random_ragged(seed), dtype=dtype)
    found = ops.paged_attention(step.cache, step.rows, scale=0.3)(1, step.query)
    assert_close(found, attention_of(step, scale=0.3), dtype)


@pytest.mark.parametrize("window", [1, 5, 16, 33])
def test_a_window_hides_what_lies_before_it(ops: Ops, window: int) -> None:
    torch.manual_seed(window)
    step = make_step(ops, [1, 20, 1, 3], [70, 50, 2, 40])
    found = ops.paged_attention(step.cache, step.rows, scale=0.25, window=window)(1, step.query)
    assert_close(found, attention_of(step, scale=0.25, window=window), torch.float32)


@pytest.mark.parametrize("window", [None, 5, 33])
@pytest.mark.parametrize("sinks", [False, True])
@pytest.mark.parametrize("soft_cap", [None, 0.5])
def test_scores_are_capped_softly_and_a_sink_takes_its_part_of_them(
    ops: Ops, dtype: torch.dtype, window: int | None, sinks: bool, soft_cap: float | None
) -> None:
    torch.manual_seed(3)
    step = make_step(ops, [1, 20, 1, 3], [70, 50, 2, 40], dtype=dtype)
    logits = torch.randn(2, step.query.shape[1], dtype=dtype) if sinks else None  # of two layers
    found = ops.paged_attention(step.cache, step.rows, scale=0.25, window=window, soft_cap=soft_cap, sinks=logits)
    own = None if logits is None else logits[1]
    right = attention_of(step, scale=0.25, window=window, soft_cap=soft_cap, sinks=own)
    assert_close(found(1, step.query), right, dtype)


@pytest.mark.parametrize(("heads", "kv_heads"), [(1, 1), (4, 4), (4, 1), (9, 3)])
def test_query_heads_share_kv_heads_in_order(ops: Ops, heads: int, kv_heads: int) -> None:
    torch.manual_seed(heads)
    step = make_step(ops, [1, 7, 1], [19, 30, 32], heads=heads, kv_heads=kv_heads, dim=8)
    found = ops.paged_attention(step.cache, step.rows, scale=8**-0.5)(1, step.query)
    assert_close(found, attention_of(step, scale=8**-0.5), torch.float32)


def test_long_decode_rows_are_attended_in_several_groups(ops: Ops) -> None:
    torch.manual_seed(0)
    contexts = [GATHERED_TOKENS + 5, 1500, 1490, 1480, 700, 3, 2]
    step = make_step(ops, [1] * len(contexts), contexts, heads=2, kv_heads=1, dim=8)
    found = ops.paged_attention(step.cache, step.rows, scale=0.3)(1, step.query)
    assert_close(found, attention_of(step, scale=0.3), torch.float32)


def test_the_query_may_be_a_slice_of_something_wider(ops: Ops) -> None:
    torch.manual_seed(0)
    step = make_step(ops, [1, 5], [8, 9])
    wider = torch.cat((step.query, torch.full_like(step.query, math.nan)), 1)
    found = ops.paged_attention(step.cache, step.rows, scale=0.3)(1, wider[:, : step.query.shape[1]])
    assert_close(found, attention_of(step, scale=0.3), torch.float32)


@pytest.mark.parametrize("counts", [[1, 1, 1], [4, 1, 1], [4, 3, 1]])
def test_not_a_number_in_one_row_stays_in_that_row(ops: Ops, counts: list[int]) -> None:
    torch.manual_seed(0)
    step = make_step(ops, counts, [20, 18, 17])
    broken = torch.full((1, 2, 16), math.nan)
    ops.store_kv(broken, broken, step.cache, 1, replace(step.rows, slots=step.rows.block_tables[0, :1] * BLOCK))
    found = ops.paged_attention(step.cache, step.rows, scale=0.3)(1, step.query)
    assert found[: counts[0]].isnan().all()
    assert_close(found[counts[0] :], attention_of(step, scale=0.3)[counts[0] :], torch.float32)


def test_storing_touches_one_layer_and_only_its_slots(ops: Ops) -> None:
    torch.manual_seed(0)
    step = make_step(ops, [1], [1], poison=0.0)
    before = step.cache.clone()
    key, value = torch.randn(2, 1, 2, 16)
    ops.store_kv(key, value, step.cache, 0, step.rows)
    changed = (step.cache != before).flatten(1).sum(1)
    assert changed.tolist() == [2 * 2 * 16, 0]


def test_blocks_are_copied_in_order_in_all_layers(ops: Ops) -> None:
    torch.manual_seed(0)
    contexts, counts = [BLOCK, BLOCK, BLOCK], [1, 1, 1]
    step = make_step(ops, counts, contexts, layers=1, layer=0)
    first, second, third = step.rows.block_tables[:, 0].tolist()
    ops.copy_blocks(step.cache, [(first, second), (second, third)])
    step.key, step.value = step.key[:1] * 3, step.value[:1] * 3
    found = ops.paged_attention(step.cache, step.rows, scale=0.3)(0, step.query)
    assert_close(found, attention_of(step, scale=0.3), torch.float32)


def as_kept(x: Tensor, kv_dtype: torch.dtype) -> Tensor:
    return dequantise(*quantise(x, kv_dtype)) if kv_dtype in LARGEST else x.to(kv_dtype)


@pytest.mark.parametrize("kv_dtype", KV_DTYPES, ids=str)
@pytest.mark.parametrize("counts", [[1, 1, 1], [1, 20, 3]])
@pytest.mark.parametrize("sinks", [False, True])
def test_attention_reads_what_the_caches_dtype_made_of_keys_and_values(
    ops: Ops, dtype: torch.dtype, kv_dtype: torch.dtype, counts: list[int], sinks: bool
) -> None:
    torch.manual_seed(4)
    step = make_step(ops, counts, [70, 50, 40], dtype=dtype, kv_dtype=kv_dtype)
    logits = torch.randn(2, step.query.shape[1], dtype=dtype) if sinks else None
    found = ops.paged_attention(step.cache, step.rows, scale=0.3, sinks=logits)(1, step.query)
    step.key, step.value = ([as_kept(x, kv_dtype) for x in each] for each in (step.key, step.value))
    assert_close(found, attention_of(step, scale=0.3, sinks=None if logits is None else logits[1]), dtype)


@pytest.mark.parametrize("kv_dtype", KV_DTYPES, ids=str)
def test_whatever_the_caches_dtype_only_slots_of_one_layer_are_written(ops: Ops, kv_dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    step = make_step(ops, [1], [1], kv_dtype=kv_dtype)
    before = step.cache.view(torch.uint8).clone()
    ops.store_kv(*torch.randn(2, 1, 2, 16), step.cache, 0, step.rows)
    changed = (step.cache.view(torch.uint8) != before).flatten(1).sum(1).tolist()
    size = 2 * 2 * (16 + 4 * (kv_dtype in LARGEST)) * kv_dtype.itemsize
    assert size // 2 < changed[0] <= size
    assert changed[1] == 0


@pytest.mark.parametrize("kv_dtype", [torch.float16, *LARGEST], ids=str)
def test_blocks_are_copied_as_they_are_kept(ops: Ops, kv_dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    step = make_step(ops, [1, 1, 1], [BLOCK, BLOCK, BLOCK], kv_dtype=kv_dtype)
    first, second, third = step.rows.block_tables[:, 0].tolist()
    ops.copy_blocks(step.cache, [(first, second), (second, third)])
    step.key, step.value = ([as_kept(each[0], kv_dtype)] * 3 for each in (step.key, step.value))
    found = ops.paged_attention(step.cache, step.rows, scale=0.3)(1, step.query)
    assert_close(found, attention_of(step, scale=0.3), torch.float32)


@pytest.mark.parametrize("kv_dtype", LARGEST, ids=str)
@pytest.mark.parametrize("counts", [[1, 1, 1], [4, 3, 1]])
def test_not_a_number_of_8_bits_stays_in_its_row(ops: Ops, kv_dtype: torch.dtype, counts: list[int]) -> None:
    torch.manual_seed(0)
    step = make_step(ops, counts, [20, 18, 17], kv_dtype=kv_dtype)
    broken = torch.zeros(1, 2, 16)
    broken[..., 3] = math.nan
    ops.store_kv(broken, broken, step.cache, 1, replace(step.rows, slots=step.rows.block_tables[0, :1] * BLOCK))
    found = ops.paged_attention(step.cache, step.rows, scale=0.3)(1, step.query)
    assert found[: counts[0]].isnan().all()
    step.key, step.value = ([as_kept(x, kv_dtype) for x in each] for each in (step.key, step.value))
    assert_close(found[counts[0] :], attention_of(step, scale=0.3)[counts[0] :], torch.float32)


@pytest.mark.parametrize("tokens", [1, 2, 3, 17, 40])
@pytest.mark.parametrize("biased", [False, True])
def test_linear_takes_packed_and_plain_weights(ops: Ops, dtype: torch.dtype, tokens: int, biased: bool) -> None:
    torch.manual_seed(tokens)
    x, weight = torch.randn(tokens, 48, dtype=dtype), torch.randn(80, 48, dtype=dtype) / 7
    bias = torch.randn(80, dtype=dtype) if biased else None
    right = x.double() @ weight.double().T + (0 if bias is None else bias.double())
    for given in (weight, ops.pack(weight.clone())):
        assert_close(ops.linear(x, given, bias), right, dtype)


@pytest.mark.parametrize("with_residual", [False, True])
def test_rms_norm_adds_to_the_residual_before_it_measures(ops: Ops, dtype: torch.dtype, with_residual: bool) -> None:
    torch.manual_seed(0)
    x, residual, weight = torch.randn(5, 32, dtype=dtype), torch.randn(5, 32, dtype=dtype), torch.rand(32, dtype=dtype)
    summed = x + residual if with_residual else x
    wide = summed.double()
    right = wide / (wide.pow(2).mean(-1, keepdim=True) + 1e-5).sqrt() * weight.double()
    assert_close(ops.rms_norm(x.clone(), weight, 1e-5, residual=residual if with_residual else None), right, dtype)
    assert torch.equal(residual, summed) == with_residual


def test_rms_norm_of_large_numbers_does_not_overflow(ops: Ops) -> None:
    x, weight = torch.full((2, 32), 1e18, dtype=torch.bfloat16), torch.ones(32, dtype=torch.bfloat16)
    assert_close(ops.rms_norm(x, weight, 1e-5), torch.ones(2, 32).double(), torch.bfloat16)


def test_rotary_turns_each_pair_of_dimensions_in_place(ops: Ops, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    angles = torch.rand(4, 1, 8) * 100
    wider = torch.randn(4, 5, 16, dtype=dtype)
    x = wider[:, :3]  # the last heads are not to be turned
    untouched = wider[:, 3:].clone()
    turn = torch.polar(torch.ones(()).double(), angles.double())
    pairs = torch.complex(x[..., :8].double(), x[..., 8:].double()) * turn
    cosine, sine = angles.cos(), angles.sin()
    ops.rotary(x, torch.cat((cosine, cosine), -1), torch.cat((-sine, sine), -1))
    assert_close(x, torch.cat((pairs.real, pairs.imag), -1), dtype)
    assert torch.equal(wider[:, 3:], untouched)


def test_silu_and_mul_gates_the_second_half_by_the_first(ops: Ops, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    gate, up = torch.randn(2, 6, 24, dtype=dtype)
    right = gate.double() / (1 + (-gate.double()).exp()) * up.double()
    assert_close(ops.silu_and_mul(torch.cat((gate, up), -1)), right, dtype)


def test_gelu_and_mul_gates_likewise(ops: Ops, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    gate, up = torch.randn(2, 6, 24, dtype=dtype)
    wide = gate.double()
    right = wide / 2 * (1 + ((2 / math.pi) ** 0.5 * (wide + 0.044715 * wide**3)).tanh()) * up.double()
    assert_close(ops.gelu_and_mul(torch.cat((gate, up), -1)), right, dtype)


def test_the_cpu_has_its_own_implementation() -> None:
    assert isinstance(for_device(CPU), onednn.OneDnn if onednn.available() else Reference)
