"""Whole quantised matrices: rounded a part at a time, put one above the other, multiplied without becoming floats."""
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from hamdam.kernels import quantized_whole, reference
from hamdam.kernels.device import for_device
from hamdam.kernels.quantized import W4A16, W8A16, quantise_bytes, quantise_int4
from hamdam.kernels.quantized_whole import KINDS, Stack, rounded, stacked
from hamdam.kernels.reference import Reference

STEPS = {"int8": 1 / 250, "int4": 1 / 13, "fp8": 1 / 14}  # of a row's largest number: half a step, and a zero's


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(0)


def eights(*shape: int, dtype: torch.dtype = torch.int8, by: str = "channel") -> W8A16:
    return quantise_bytes(torch.randn(shape), dtype, by=by).for_floats()


@pytest.mark.parametrize("kind", KINDS)
def test_a_matrix_is_rounded_to_half_a_step_and_alike_in_parts(monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    weight = torch.randn(70, 96)
    whole = rounded(weight, kind)
    assert whole is not None and whole.shape == (70, 96)
    wrong = (whole.dequantise() - weight).abs()
    assert (wrong <= STEPS[kind] * weight.abs().amax(1, keepdim=True)).all()
    monkeypatch.setattr(quantized_whole, "ROWS_AT_ONCE", 96 * 9)
    parts = rounded(weight, kind)
    assert parts is not None and torch.equal(parts.dequantise(), whole.dequantise())


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_in_no_multiple_of_32_is_not_rounded(kind: str) -> None:
    assert rounded(torch.randn(4, 48), kind) is None


def test_matrices_of_one_kind_are_put_one_above_the_other() -> None:
    plain, zeros = (quantise_int4(torch.randn(5, 64), 32, symmetric=symmetric) for symmetric in (True, False))
    offsets = W4A16(plain.packed, plain.scales, torch.randn_like(plain.scales))
    order = torch.randperm(64)
    scattered = [W4A16(one.packed, one.scales, one.zeros, order) for one in (plain, zeros)]
    whole, row = eights(3, 64, by="tensor"), eights(4, 64)
    blocks = [eights(128, 160, by="block"), eights(130, 160, by="block")]
    for parts in ((plain, zeros), (zeros, plain, zeros), (offsets, offsets), scattered, (whole, row), blocks, (row,)):
        made = stacked(sum(part.shape[0] for part in parts), parts)
        assert made is not None
        assert torch.equal(made.dequantise(), torch.cat([part.dequantise() for part in parts]))


def test_matrices_that_no_form_can_hold_together_are_not() -> None:
    four, other = quantise_int4(torch.randn(5, 64), 32), quantise_int4(torch.randn(5, 64), 64)
    offsets = W4A16(four.packed, four.scales, torch.randn_like(four.scales))
    scattered = [W4A16(four.packed, four.scales, None, torch.randperm(64)) for _ in range(2)]
    fp8, blocks = eights(5, 64, dtype=torch.float8_e4m3fn), eights(130, 64, by="block")
    for parts in ((four, other), (four, offsets), scattered, (four, scattered[0]), (four, eights(5, 64)),
                  (eights(5, 64), fp8), (eights(5, 64), blocks), (blocks, blocks)):  # fmt: skip
        assert stacked(sum(part.shape[0] for part in parts), parts) is None


def test_parts_may_come_in_any_order_and_what_does_not_fit_changes_nothing() -> None:
    parts = [quantise_int4(torch.randn(5, 64), 32, symmetric=symmetric) for symmetric in (True, False)]
    wide = [replace(parts[1], scales=parts[1].scales.float()), *parts]
    whole = Stack(15)
    assert whole.put(10, wide[2]) and not whole.put(0, eights(5, 64)) and whole.put(5, wide[1])
    assert whole.matrix is not None and whole.matrix.scales.dtype == torch.float16
    assert whole.put(0, wide[0])
    assert torch.equal(whole.matrix.dequantise(), torch.cat([part.dequantise() for part in wide]))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("form", ["int4", "order", "int8", "fp8", "fp8 by block"])
def test_every_device_multiplies_them_some_rows_at_a_time(
    monkeypatch: pytest.MonkeyPatch, form: str, dtype: torch.dtype
) -> None:
    weight: W4A16 | W8A16
    if form in ("int4", "order"):
        weight = quantise_int4(torch.randn(300, 64), 32, symmetric=False)
        if form == "order":
            weight = W4A16(weight.packed, weight.scales, weight.zeros, torch.randperm(64))
    else:
        kind = torch.int8 if form == "int8" else torch.float8_e4m3fn
        weight = eights(300, 64, dtype=kind, by="block" if "block" in form else "channel")
    monkeypatch.setattr(reference, "ROWS_AT_ONCE", 1)  # a block of 128 at a time
    x, bias = torch.randn(7, 64).to(dtype), torch.randn(300).to(dtype)
    right = F.linear(x.float(), weight.dequantise(), bias.float())
    for ops in (Reference(), for_device(torch.device("cpu"))):
        found = ops.linear(x, weight, bias)
        assert found.dtype == dtype
        torch.testing.assert_close(found.float(), right, rtol=1e-2 if dtype == torch.bfloat16 else 1e-5, atol=1e-5)
