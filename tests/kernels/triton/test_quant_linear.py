"""Products with quantised weights against the reference: every form, ragged shapes, splits, and a row's own sum."""

import pytest
import torch
from torch import Tensor

from hamdam.kernels import quantized
from hamdam.kernels.quantized import W4A16, W8A16, QuantizedWeight, quantise_bytes, quantise_int4
from hamdam.kernels.triton.chip import INTERPRETER
from hamdam.kernels.triton.quant_linear import linear
from hamdam.kernels.triton.quantise import quantise_rows
from hamdam.kernels.triton.split_k import Sums
from hamdam.kernels.triton.tile import Tile, tile_for

# Of the result's norm. Weights and results are rounded to the dtype; between them sums are exact enough not to show.
TOLERANCE = {torch.float16: 1e-3, torch.bfloat16: 6e-3}
FORMS = ["int4", "int4 with zeros", "int4 with offsets", "int8", "int8 whole", "fp8", "fp8 by block", "w8a8 int8",
         "w8a8 int8 whole", "w8a8 fp8", "w8a8 fp8 by block"]


pytestmark = pytest.mark.usefixtures("new_memory_holds_nan")


def quantised(form: str, outputs: int, inputs: int, device: torch.device, *, group: int = 32) -> QuantizedWeight:
    weight = torch.randn(outputs, inputs, device=device)
    if form.startswith("int4"):
        made = quantise_int4(weight, group, symmetric=form != "int4 with zeros")
        if form == "int4 with offsets":
            made = W4A16(made.packed, made.scales, torch.randn_like(made.scales))
        return made
    by = "tensor" if "whole" in form else "block" if "block" in form else "channel"
    bytes_ = quantise_bytes(weight, torch.int8 if "int8" in form else torch.float8_e4m3fn, by=by)
    return bytes_ if form.startswith("w8a8") else bytes_.for_floats()


def assert_right(found: Tensor, x: Tensor, weight: QuantizedWeight, bias: Tensor | None = None) -> None:
    right = quantized.linear(x, weight, bias)
    assert found.dtype == x.dtype and found.shape == right.shape
    assert (found.float() - right).norm() <= TOLERANCE[x.dtype] * right.norm()


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize(
    ("tokens", "outputs", "inputs"),
    [(1, 1, 32), (3, 130, 96), (16, 40, 288), (17, 128, 128), (70, 50, 160), (0, 64, 64)],
)
def test_a_product_of_any_shape(form: str, dtype: torch.dtype, tokens: int, outputs: int, inputs: int,
                                device: torch.device) -> None:
    weight = quantised(form, outputs, inputs, device)
    x = torch.randn(tokens, inputs, dtype=dtype, device=device)
    bias = torch.randn(outputs, dtype=dtype, device=device)
    assert_right(linear(x, weight, bias), x, weight, bias)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("tokens", [2, 20])
def test_inputs_are_split_and_their_sums_added(form: str, tokens: int, device: torch.device) -> None:
    weight = quantised(form, 40, 1280, device, group=128)
    x = torch.randn(tokens, 1280, dtype=torch.float16, device=device)
    bias = torch.randn(40, dtype=torch.float16, device=device)
    found = linear(x, weight, bias)
    assert_right(found, x, weight, bias)
    assert torch.equal(linear(x, weight, bias), found)


@pytest.mark.parametrize("group", [32, 64, 128, 256])
@pytest.mark.parametrize("form", FORMS[:3])
@pytest.mark.parametrize("tokens", [4, 140])
def test_groups_of_any_size(group: int, form: str, tokens: int, device: torch.device) -> None:
    weight = quantised(form, 96, 256, device, group=group)
    x = torch.randn(tokens, 256, dtype=torch.float16, device=device)
    assert_right(linear(x, weight), x, weight)


@pytest.mark.parametrize("form", FORMS)
def test_many_tokens(form: str, device: torch.device) -> None:
    weight = quantised(form, 40, 128, device)
    x = torch.randn(140, 128, dtype=torch.float16, device=device)
    assert_right(linear(x, weight), x, weight)


def test_every_number_of_four_and_eight_bits_is_exact(device: torch.device) -> None:
    """One input at a time, so that nothing but a weight is rounded, and these have at most 8 bits."""
    nibbles = quantized.pack_int4(torch.arange(16).repeat(1, 6))
    codes = torch.arange(256).to(torch.uint8)[None]
    finite = codes[:, (codes[0] & 127) < 127][:, 7:-7]  # 240 of them, subnormal ones too
    for weight in (
        W4A16(nibbles, torch.ones(3, 1).half()),
        W4A16(nibbles, torch.ones(3, 1).half(), torch.tensor([[0], [15], [16]], dtype=torch.uint8)),
        W8A16(quantized.pack_bytes(codes.view(torch.int8)), torch.ones(()), torch.int8),
        W8A16(quantized.pack_bytes(finite.view(torch.float8_e4m3fn)), torch.ones(()), torch.float8_e4m3fn),
    ):
        right = weight.dequantise().T
        for dtype in TOLERANCE:
            assert torch.equal(linear(torch.eye(len(right), dtype=dtype, device=device), weight).float(), right)


def test_columns_of_act_order_are_found(device: torch.device) -> None:
    made = quantised("int4", 40, 256, device, group=64)
    weight = W4A16(made.packed, made.scales, None, torch.randperm(256))
    x = torch.randn(5, 256, dtype=torch.float16, device=device)
    assert_right(linear(x, weight), x, weight)


def test_rows_that_are_quantised_already_are_taken(device: torch.device) -> None:
    weight = quantised("w8a8 int8", 40, 64, device)
    x = torch.randn(5, 64, dtype=torch.float16, device=device)
    rows = quantise_rows(x, torch.int8)
    assert torch.equal(linear(rows, weight, dtype=torch.float16), linear(x, weight))
    assert linear(rows, weight).dtype == torch.bfloat16


def test_x_may_be_a_slice_of_something_wider(device: torch.device) -> None:
    wider = torch.randn(4, 128, dtype=torch.float16, device=device)
    for form in ("int4", "int8", "w8a8 int8"):
        weight = quantised(form, 24, 64, device)
        assert torch.equal(linear(wider[:, 32:96], weight), linear(wider[:, 32:96].contiguous(), weight))


@pytest.mark.parametrize("form", FORMS)
def test_an_invariant_sum_is_the_same_in_any_company(form: str, device: torch.device) -> None:
    weight = quantised(form, 40, 640, device, group=128)
    x = torch.randn(70, 640, dtype=torch.bfloat16, device=device)
    together = linear(x, weight, invariant=True)
    assert_right(together, x, weight)
    for some in (slice(0, 1), slice(7, 20)):
        assert torch.equal(linear(x[some], weight, invariant=True), together[some])


@pytest.mark.filterwarnings("ignore:invalid value encountered:RuntimeWarning")  # numpy's, of not-a-number as an int8
def test_not_a_number_stays_in_its_row(device: torch.device) -> None:
    for form in FORMS:
        weight = quantised(form, 24, 64, device)
        x = torch.randn(3, 64, dtype=torch.float16, device=device)
        right = linear(x, weight)
        x[1, 5] = torch.nan
        found = linear(x, weight)
        assert torch.equal(found[::2], right[::2])
        assert found[1].isnan().all()


def test_splits_fill_the_processors_and_cover_all_inputs() -> None:
    tile = Tile(tokens=16, outputs=128, inputs=128, warps=4, stages=4, fill=2)
    for outputs, inputs in ((128, 4096), (1024, 4096), (4096, 4096), (128, 600), (128, 32)):
        own = tile.inputs_of_a_split(INTERPRETER, outputs, inputs, least=512)
        splits = -(-inputs // own)
        assert own % tile.inputs == 0 and own * (splits - 1) < inputs <= own * splits
        assert splits == 1 or own >= 512
    sums = Sums.of(torch.empty(3, 4096), tile, 128, 4096, torch.float16)
    assert sums.grid == (1, 1, 8) and sums.parts.shape == (8, 3, 128) and not sums.whole
    assert Sums.of(torch.empty(3, 4096), tile, 4096, 4096, torch.float16).whole


def test_the_smallest_tile_that_holds_the_tokens_is_taken() -> None:
    table = [Tile(tokens, 128, 64, 4, 3) for tokens in (16, 64, 128)]
    assert [tile_for(table, tokens).tokens for tokens in (1, 16, 17, 64, 65, 128, 5000)] == [
        16, 16, 64, 64, 128, 128, 128]
    assert {tile_for(table, tokens, invariant=True).tokens for tokens in (1, 64, 5000)} == {64}
