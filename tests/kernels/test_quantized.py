"""Quantised weights: what packing keeps, what files of others become, and how far from the numbers all of it is."""
import numpy as np
import pytest
import torch

from hamdam.engine.loading.gguf import block_format
from hamdam.kernels.quantized import (
    FP8_BLOCK,
    W4A16,
    linear,
    pack_bytes,
    pack_int4,
    quantise_bytes,
    quantise_int4,
    quantise_rows,
    unpack_bytes,
    unpack_int4,
)
from hamdam.kernels.quantized_gguf import from_gguf


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(0)


def test_what_is_packed_is_unpacked() -> None:
    q = torch.randint(0, 16, (3, 96))
    assert torch.equal(unpack_int4(pack_int4(q)), q.to(torch.uint8))
    values = torch.randint(-128, 128, (3, 48), dtype=torch.int8)
    assert torch.equal(unpack_bytes(pack_bytes(values), torch.int8), values)


def test_a_nibble_of_every_half_word_is_a_plane_of_inputs() -> None:
    q = torch.arange(32)[None] % 16
    words = pack_int4(q)[0].tolist()
    for plane in range(4):
        halves = [word >> 16 * half + 4 * plane & 15 for word in words for half in (0, 1)]
        assert halves == [(8 * plane + j) % 16 for j in range(8)]


@pytest.mark.parametrize("group", [32, 64, 128, 256])
@pytest.mark.parametrize("symmetric", [True, False])
def test_four_bits_are_within_half_a_step(group: int, symmetric: bool) -> None:
    weight = torch.randn(24, 256)
    made = quantise_int4(weight, group, symmetric=symmetric)
    steps = made.scales.float().repeat_interleave(group, 0).T
    assert made.shape == (24, 256) and made.group == group
    assert ((made.dequantise() - weight).abs() <= steps * (0.51 if symmetric else 1.01)).all()


@pytest.mark.parametrize("dtype", [torch.int8, torch.float8_e4m3fn])
@pytest.mark.parametrize("by", ["tensor", "channel", "block"])
def test_eight_bits_are_within_half_a_step_at_the_edges_too(dtype: torch.dtype, by: str) -> None:
    weight = torch.randn(200, 304)
    made = quantise_bytes(weight, dtype, by=by)
    assert made.block == (FP8_BLOCK if by == "block" else None)
    assert torch.equal(made.for_floats().dequantise(), made.dequantise())
    largest = weight.abs().max()
    step = largest / 127 / 2 if dtype == torch.int8 else largest / 448 * 16
    assert (made.dequantise() - weight).abs().max() <= step * 1.001
    assert (made.dequantise().abs().max() - largest).abs() < 1e-6


def test_rows_are_quantised_each_by_its_largest_number() -> None:
    x = torch.tensor([[1.0, -2.0, 0.5], [0.0, 0.0, 0.0], [3e-3, 1e-3, -1.5e-3]])
    made = quantise_rows(x, torch.int8)
    assert made.values.tolist() == [[64, -127, 32], [0, 0, 0], [127, 42, -64]]  # 63.5 and -63.5 go to the even one
    assert torch.equal(made.dequantise()[1], torch.zeros(3))
    blocks = quantise_rows(torch.randn(2, 300), torch.float8_e4m3fn, block=FP8_BLOCK)
    assert blocks.scales.shape == (2, 3) and blocks.dequantise().shape == (2, 300)


def test_a_product_with_quantised_rows_is_that_of_what_they_hold() -> None:
    x, weight = torch.randn(3, 64), quantise_bytes(torch.randn(5, 64), torch.int8)
    right = quantise_rows(x, torch.int8).dequantise() @ weight.dequantise().T
    torch.testing.assert_close(linear(x, weight), right)
    torch.testing.assert_close(linear(x, weight.for_floats()), x @ weight.dequantise().T)


@pytest.mark.parametrize(("kind", "number"), [("Q4_0", 2), ("Q4_1", 3), ("Q4_K", 12)])
@pytest.mark.parametrize("tiny", [False, True])
def test_gguf_keeps_every_weight(kind: str, number: int, tiny: bool) -> None:
    stored = block_format(number)
    blocks = torch.randint(0, 256, (6, 2, stored.nbytes), dtype=torch.uint8)
    halves = (torch.rand(6, 2, 2) * (1e-5 if tiny else 1) + (0 if tiny else 0.1)).half()
    taken = 2 if kind == "Q4_0" else 4
    blocks[..., :taken] = halves.view(torch.uint8)[..., :taken]
    made = from_gguf(blocks, kind)
    right = torch.from_numpy(stored.dequantise(np.ascontiguousarray(blocks.view(12, -1).numpy()))).view(6, -1)
    assert isinstance(made, W4A16) and made.group == 32
    # Q4_K's scales have 17 bits: they are rounded to float16's 11 unless they are so small that fewer would be left.
    exact = kind != "Q4_K" or tiny
    torch.testing.assert_close(made.dequantise(), right, rtol=0, atol=0 if exact else float(right.abs().max()) / 2048)
