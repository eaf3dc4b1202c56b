"""The kernels that take rows one by one (norm, gate, quantise) against their references: all is written."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from hamdam.kernels import quantized
from hamdam.kernels.quantized import QuantizedRows
from hamdam.kernels.triton.gated import gelu_and_mul, silu_and_mul
from hamdam.kernels.triton.quantise import quantise_rows
from hamdam.kernels.triton.rms_norm import rms_norm

TOLERANCE = {torch.float32: 2e-6, torch.float16: 2e-3, torch.bfloat16: 1e-2}  # of numbers around 1
SHAPES = [(0, 32), (1, 1), (1, 4096), (3, 100), (7, 65), (33, 576), (2, 5000)]
EIGHT_BITS = [torch.int8, torch.float8_e4m3fn]

# Of a number far below zero e^-x is infinite before its reciprocal is 0, which is right, and numpy remarks on it.
# What becomes of not-a-number as an int8 does not matter, and numpy remarks on that.
pytestmark = [
    pytest.mark.usefixtures("new_memory_holds_nan"),
    pytest.mark.filterwarnings("ignore:overflow encountered in exp:RuntimeWarning"),
    pytest.mark.filterwarnings("ignore:invalid value encountered:RuntimeWarning"),
]


@pytest.fixture(params=list(TOLERANCE), ids=str)
def dtype(request: pytest.FixtureRequest) -> torch.dtype:
    return request.param


def assert_close(found: Tensor, right: Tensor, dtype: torch.dtype) -> None:
    assert found.dtype == dtype
    torch.testing.assert_close(found.double(), right.double(), rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype])


def assert_quantised(found: QuantizedRows, right: Tensor, dtype: torch.dtype, *, block: int | None = None) -> None:
    """Numbers that lie between two may go either way, where sums were rounded otherwise: a step apart, few of them."""
    wanted = quantized.quantise_rows(right, dtype, block=block)
    assert found.values.dtype == dtype and found.scales.shape == wanted.scales.shape
    torch.testing.assert_close(found.scales, wanted.scales, rtol=2e-6, atol=0)
    difference = (found.values.float() - wanted.values.float()).abs()
    assert (difference <= (1 if dtype == torch.int8 else wanted.values.float().abs() / 7 + 2**-9)).all()
    assert (difference > 0).sum() <= max(1, difference.numel() // 100)


def normed(x: Tensor, weight: Tensor) -> Tensor:
    wide = x.double()
    return wide / (wide.pow(2).mean(-1, keepdim=True) + 1e-5).sqrt() * weight.double()


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("with_residual", [False, True])
def test_rms_norm_of_any_shape(shape: tuple[int, int], with_residual: bool, dtype: torch.dtype,
                               device: torch.device) -> None:
    x, residual = torch.randn(2, *shape, dtype=dtype, device=device)
    weight = torch.rand(shape[1], dtype=dtype, device=device)
    summed = x + residual if with_residual else x
    kept = None if with_residual else residual.clone()
    found = rms_norm(x, weight, 1e-5, residual=residual if with_residual else None)
    assert_close(found, normed(summed, weight), dtype)
    assert torch.equal(residual, summed if kept is None else kept)


def test_rms_norm_takes_a_slice_of_something_wider_and_more_dimensions(device: torch.device) -> None:
    wider = torch.randn(5, 96, device=device)
    weight = torch.rand(64, device=device)
    assert_close(rms_norm(wider[:, 16:80], weight, 1e-5), normed(wider[:, 16:80], weight), torch.float32)
    heads = torch.randn(5, 3, 64, device=device)
    assert_close(rms_norm(heads, weight, 1e-5), normed(heads, weight), torch.float32)


def test_rms_norm_of_large_numbers_does_not_overflow(device: torch.device) -> None:
    x = torch.full((2, 4096), 1e18, dtype=torch.bfloat16, device=device)
    assert_close(rms_norm(x, torch.ones_like(x[0]), 1e-5), torch.ones_like(x), torch.bfloat16)


@pytest.mark.parametrize("out_dtype", EIGHT_BITS, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_rms_norm_may_end_in_eight_bits(shape: tuple[int, int], out_dtype: torch.dtype, device: torch.device) -> None:
    x, residual = torch.randn(2, *shape, device=device)
    weight = torch.rand(shape[1], device=device) + 0.5
    summed = x + residual
    found = rms_norm(x, weight, 1e-5, residual=residual, out_dtype=out_dtype)
    assert isinstance(found, QuantizedRows)
    assert_quantised(found, normed(summed, weight).float(), out_dtype)
    assert torch.equal(residual, summed)


GATES = [(silu_and_mul, F.silu), (gelu_and_mul, lambda x: F.gelu(x, approximate="tanh"))]


@pytest.mark.parametrize(("gated", "gate"), GATES, ids=["silu", "gelu"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_gates_of_any_shape(gated: object, gate: object, shape: tuple[int, int], dtype: torch.dtype,
                            device: torch.device) -> None:
    gate_up = torch.randn(shape[0], 2 * shape[1], dtype=dtype, device=device) * 3
    first, second = gate_up.double().chunk(2, 1)
    right = gate(first) * second
    assert_close(gated(gate_up), right, dtype)
    if dtype == torch.float32:
        for eight in EIGHT_BITS:
            assert_quantised(gated(gate_up, out_dtype=eight), right.float(), eight)


@pytest.mark.parametrize("extreme", [1e4, 6e4])
def test_gates_of_extreme_numbers_are_no_nan(extreme: float, device: torch.device) -> None:
    gate_up = torch.tensor([[extreme, -extreme, 1.0, 1.0]], device=device)
    for gated in (silu_and_mul, gelu_and_mul):
        assert gated(gate_up).tolist() == [[extreme, 0.0]]


@pytest.mark.parametrize("dtype", EIGHT_BITS, ids=str)
@pytest.mark.parametrize("block", [None, 128])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_rows_are_quantized_whole_or_by_block(shape: tuple[int, int], block: int | None, dtype: torch.dtype,
                                              device: torch.device) -> None:
    x = torch.randn(shape, dtype=torch.bfloat16, device=device)
    assert_quantised(quantise_rows(x, dtype, block=block), x, dtype, block=block)


@pytest.mark.parametrize("dtype", EIGHT_BITS, ids=str)
def test_zeros_and_tiny_numbers_among_large_ones_are_quantised(dtype: torch.dtype, device: torch.device) -> None:
    x = torch.randn(3, 700, device=device) * torch.logspace(-6, 0, 700, device=device)
    x[1] = 0
    found = quantise_rows(x, dtype)
    assert_quantised(found, x, dtype)
    assert not found.dequantise()[1].any()


@pytest.mark.parametrize("dtype", EIGHT_BITS, ids=str)
@pytest.mark.parametrize("broken", [torch.nan, torch.inf, -torch.inf])
def test_what_is_not_finite_stays_seen_in_its_row(broken: float, dtype: torch.dtype, device: torch.device) -> None:
    x = torch.randn(3, 40, device=device)
    x[1, 7] = broken
    found = quantise_rows(x, dtype)
    assert found.scales.isnan().tolist() == [False, True, False]
    assert_quantised(QuantizedRows(found.values[::2], found.scales[::2]), x[::2], dtype)
