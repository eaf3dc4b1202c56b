"""What a cache in few bits makes of a vector: bounds for every size of number, and what is broken stays so."""
import math

import pytest
import torch

from hamdam.kernels.kv_codes import LARGEST, SCALE_BYTES, dequantise, quantise, read, stored

PLAIN = {torch.float32: 0.0, torch.bfloat16: 2.0**-8, torch.float16: 2.0**-11}  # the largest error, of a number


def vectors(size: float) -> torch.Tensor:
    """[200, 3, 64], of some ten magnitudes."""
    generator = torch.Generator().manual_seed(0)
    spread = torch.randn(200, 3, 1, generator=generator).mul(3).exp()
    return torch.randn(200, 3, 64, generator=generator) * spread * size


@pytest.mark.parametrize("size", [1e-20, 1.0, 1e20])
def test_int8_is_off_by_half_a_step_at_most(size: float) -> None:
    x = vectors(size)
    step = x.abs().amax(-1, keepdim=True).double() / 127
    found = read(stored(x, torch.int8), torch.int8, torch.float32)
    assert ((found.double() - x.double()).abs() <= step * (0.5 + 1e-4)).all()


@pytest.mark.parametrize("size", [1e-20, 1.0, 1e20])
def test_fp8_is_off_by_a_sixteenth_of_a_number_or_half_the_smallest_step(size: float) -> None:
    x = vectors(size).double()
    smallest = x.abs().amax(-1, keepdim=True) / 448 * 2.0**-9
    found = read(stored(x.float(), torch.float8_e4m3fn), torch.float8_e4m3fn, torch.float32)
    assert ((found.double() - x).abs() <= torch.maximum(x.abs() / 16, smallest / 2) * (1 + 1e-4)).all()


@pytest.mark.parametrize(("dtype", "error"), PLAIN.items(), ids=str)
def test_what_is_no_code_is_the_nearest_number(dtype: torch.dtype, error: float) -> None:
    x = torch.randn(200, 3, 64, generator=torch.Generator().manual_seed(0))
    kept = stored(x, dtype)
    assert (kept.dtype, kept.shape) == (dtype, x.shape)
    normal = x.abs() > 1e-4  # of a float16
    assert ((read(kept, dtype, torch.float32) - x).abs() <= x.abs() * error)[normal].all()


@pytest.mark.parametrize("dtype", LARGEST, ids=str)
def test_a_vector_is_its_codes_and_a_scale_and_depends_on_no_other(dtype: torch.dtype) -> None:
    x = vectors(1.0)
    kept = stored(x, dtype)
    assert (kept.dtype, kept.shape) == (torch.uint8, (200, 3, 64 + SCALE_BYTES))
    assert torch.equal(kept[7:8, 1:2], stored(x[7:8, 1:2].clone(), dtype))
    assert torch.equal(read(kept, dtype, torch.float32), dequantise(*quantise(x, dtype)))
    assert torch.equal(read(kept, dtype, torch.bfloat16), dequantise(*quantise(x, dtype)).bfloat16())


@pytest.mark.parametrize("dtype", LARGEST, ids=str)
@pytest.mark.parametrize("broken", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_breaks_its_own_vector_whole_and_no_other(dtype: torch.dtype, broken: float) -> None:
    x = vectors(1.0)
    x[5, 2, 9] = broken
    found = read(stored(x, dtype), dtype, torch.float32)
    assert found[5, 2].isnan().all()
    assert found.isnan().sum() == 64


@pytest.mark.parametrize("dtype", LARGEST, ids=str)
def test_zeros_and_what_is_nearly_zero_become_zeros(dtype: torch.dtype) -> None:
    for x in (torch.zeros(2, 8), torch.full((2, 8), 1e-35)):
        assert torch.equal(read(stored(x, dtype), dtype, torch.float32), torch.zeros(2, 8))
