"""The store into the KV cache against its reference: norm, turn and codes; it touches its slots and no others."""
import math

import pytest
import torch
from kv_step import BLOCK, LAYER, LAYERS, assert_close
from torch import Tensor

from hamdam.kernels.kv_codes import LARGEST, dequantise, quantise
from hamdam.kernels.triton import attention_reference
from hamdam.kernels.triton.kv_format import KvCache, new_cache
from hamdam.kernels.triton.store_kv import rotary, store_kv, turn_and_store

HEADS, KV_HEADS, BLOCKS = 3, 2, 4
CODES = [torch.int8, torch.float8_e4m3fn]


def made(tokens: int, dim: int, dtype: torch.dtype, device: torch.device) -> list[Tensor]:
    """Queries, keys and values as a layer's fused product leaves them: slices of one tensor."""
    qkv = 3 * torch.randn(tokens, HEADS + 2 * KV_HEADS, dim)
    return list(qkv.to(device, dtype).split((HEADS, KV_HEADS, KV_HEADS), 1))


def turns(tokens: int, dim: int, device: torch.device) -> tuple[Tensor, Tensor]:
    angles = 100 * torch.rand(tokens, 1, dim // 2, device=device)
    cosine, sine = angles.cos(), angles.sin()
    return torch.cat((cosine, cosine), -1), torch.cat((-sine, sine), -1)


def caches(dim: int, dtype: torch.dtype, device: torch.device) -> list[Tensor]:
    """Two alike, full of something."""
    cache = new_cache(LAYERS, BLOCKS, BLOCK, KV_HEADS, dim, dtype=dtype, device=device)
    cache.view(torch.uint8).fill_(0x11)
    return [cache, cache.clone()]


def assert_alike(found: Tensor, right: Tensor) -> None:
    """Codes may differ by one where a norm or a turn rounds otherwise."""
    if found.dtype not in LARGEST:
        assert_close(found, right.float())
        return
    found, right = KvCache.of(found), KvCache.of(right)
    # Of e4m3 as well neighbours have neighbouring bits.
    apart = found.codes.view(torch.int8).int() - right.codes.view(torch.int8).int()
    assert apart.abs().max() <= 1
    assert (apart != 0).float().mean() < 1e-3
    torch.testing.assert_close(found.scales, right.scales, rtol=1e-6, atol=0, equal_nan=True)


@pytest.mark.parametrize("normed", [False, True], ids=["", "normed"])
@pytest.mark.parametrize("tokens", [1, 5, 21])
@pytest.mark.parametrize("kv_dtype", [torch.float32, torch.float16, torch.bfloat16, *CODES], ids=str)
def test_heads_are_normed_turned_and_stored(
    kv_dtype: torch.dtype, tokens: int, normed: bool, device: torch.device
) -> None:
    torch.manual_seed(tokens)
    dtype = torch.float32 if kv_dtype in CODES else kv_dtype
    query, key, value = made(tokens, 64, dtype, device)
    norms = (torch.rand(64, device=device).to(dtype), torch.rand(64, device=device).to(dtype), 1e-5) if normed else None
    slots = torch.randperm(BLOCKS * BLOCK, device=device)[:tokens]
    found, right = caches(64, kv_dtype, device)
    before = query.clone(), key.clone(), value.clone()
    cosine, sine = turns(tokens, 64, device)
    turned = turn_and_store(query, key, value, cosine, sine, found, LAYER, slots, norms=norms)
    right_turned = attention_reference.place(query, key, value, cosine, sine, right, LAYER, slots, norms=norms)
    assert turned.dtype == dtype
    assert_close(turned, right_turned.float(), times=2)
    assert_alike(found, right)
    assert all(torch.equal(now, then) for now, then in zip((query, key, value), before, strict=True))


@pytest.mark.parametrize("kv_dtype", [torch.float32, *CODES], ids=str)
@pytest.mark.parametrize("dim", [80, 96, 112, 128, 256])
def test_every_head_dim(dim: int, kv_dtype: torch.dtype, device: torch.device) -> None:
    query, key, value = made(3, dim, torch.float32, device)
    slots = torch.tensor([17, 0, 63], device=device)
    found, right = caches(dim, kv_dtype, device)
    cosine, sine = turns(3, dim, device)
    turned = turn_and_store(query, key, value, cosine, sine, found, LAYER, slots)
    assert_close(turned, attention_reference.place(query, key, value, cosine, sine, right, LAYER, slots), times=2)
    assert_alike(found, right)


@pytest.mark.parametrize("kv_dtype", CODES, ids=str)
def test_codes_of_what_is_not_turned_are_the_references(kv_dtype: torch.dtype, device: torch.device) -> None:
    key = torch.randn(BLOCKS * BLOCK, KV_HEADS, 128, device=device) * torch.logspace(-20, 20, 128, device=device)
    slots = torch.arange(BLOCKS * BLOCK, device=device)
    found, right = caches(128, kv_dtype, device)
    store_kv(key, -key, found, LAYER, slots)
    attention_reference.store(key, -key, right, LAYER, slots)
    assert torch.equal(found.view(torch.uint8), right.view(torch.uint8))


@pytest.mark.filterwarnings("ignore:invalid value encountered in multiply:RuntimeWarning")
@pytest.mark.parametrize("kv_dtype", CODES, ids=str)
@pytest.mark.parametrize("broken", [math.nan, math.inf, -math.inf])
def test_what_is_no_number_is_none_afterwards_in_its_head_alone(
    broken: float, kv_dtype: torch.dtype, device: torch.device
) -> None:
    key, value = torch.randn(2, 2, KV_HEADS, 64, device=device)
    key[1, 0, 5] = broken
    cache = caches(64, kv_dtype, device)[0]
    store_kv(key, value, cache, LAYER, torch.tensor([3, 20], device=device))
    parts = KvCache.of(cache)
    numbers = dequantise(parts.codes[LAYER], parts.scales[LAYER])
    assert numbers[1, 0, 0, 4].isnan().all()
    assert numbers.isnan().sum() == 64


@pytest.mark.parametrize("kv_dtype", CODES, ids=str)
def test_zeros_and_what_is_nearly_zero_become_zeros(kv_dtype: torch.dtype, device: torch.device) -> None:
    key, value = torch.zeros(1, KV_HEADS, 64, device=device), torch.full((1, KV_HEADS, 64), 1e-40, device=device)
    cache = caches(64, kv_dtype, device)[0]
    store_kv(key, value, cache, LAYER, torch.tensor([0], device=device))
    parts = KvCache.of(cache)
    assert not dequantise(parts.codes[LAYER], parts.scales[LAYER])[0, :, :, 0].any()


@pytest.mark.parametrize("kv_dtype", [torch.bfloat16, *CODES], ids=str)
@pytest.mark.parametrize("tokens", [3, 20])
def test_only_the_slots_of_one_layer_are_written(tokens: int, kv_dtype: torch.dtype, device: torch.device) -> None:
    dtype = torch.float32 if kv_dtype in CODES else kv_dtype
    cache, before = caches(64, kv_dtype, device)
    key, value = torch.randn(2, tokens, KV_HEADS, 64).to(device, dtype)
    slots = torch.randperm(BLOCKS * BLOCK, device=device)[:tokens]
    slots[1] = -1  # as a token's is that fills up a step of fixed size
    store_kv(key, value, cache, LAYER, slots)
    now, then = (KvCache.of(x).codes.contiguous().view(torch.uint8) for x in (cache, before))
    written = (now != then).flatten(5).any(-1)  # [layers, blocks, key or value, heads, tokens]
    expected = torch.zeros(LAYERS, BLOCKS, 2, KV_HEADS, BLOCK, dtype=torch.bool, device=device)
    kept = slots[slots >= 0]
    expected[LAYER].permute(0, 3, 1, 2)[kept // BLOCK, kept % BLOCK] = True
    assert torch.equal(written, expected)


def test_a_step_without_tokens_stores_nothing(device: torch.device) -> None:
    cache, before = caches(64, torch.bfloat16, device)
    nothing = torch.empty(0, KV_HEADS, 64, dtype=torch.bfloat16, device=device)
    store_kv(nothing, nothing, cache, LAYER, torch.empty(0, dtype=torch.int64, device=device))
    assert torch.equal(cache, before)


def test_rotary_turns_a_slice_in_place(device: torch.device) -> None:
    wider = torch.randn(5, 7, 64, device=device)
    untouched = wider[:, 4:].clone()
    cosine, sine = turns(5, 64, device)
    right = wider[:, :4] * cosine + wider[:, :4].roll(32, -1) * sine
    rotary(wider[:, :4], cosine, sine)
    assert_close(wider[:, :4], right)
    assert torch.equal(wider[:, 4:], untouched)


@pytest.mark.parametrize(("dtype", "step"), [(torch.int8, 1 / 127), (torch.float8_e4m3fn, 32 / 448)], ids=str)
def test_a_quantised_number_is_within_half_a_step(dtype: torch.dtype, step: float) -> None:
    x = torch.randn(100, 64) * torch.logspace(-10, 10, 100)[:, None]
    codes, scales = quantise(x, dtype)
    largest = x.abs().amax(-1, keepdim=True)
    assert ((dequantise(codes, scales) - x).abs() / largest).max() <= step / 2 * 1.0001
    assert (codes.float().abs().amax(-1) == LARGEST[dtype]).all()
