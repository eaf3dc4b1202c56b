"""The product whose rows do not depend on company: right, and the same to the bit with few rows and with many."""

import pytest
import torch
import torch.nn.functional as F

from hamdam.kernels.triton.ops import TritonOps
from hamdam.kernels.triton.w16a16 import w16a16

TOLERANCE = {torch.float32: 1e-6, torch.float16: 1e-3, torch.bfloat16: 6e-3}  # of the result's norm
SPLIT = 1100  # inputs, of which two splits are made


pytestmark = pytest.mark.usefixtures("new_memory_holds_nan")


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize(
    ("tokens", "outputs", "inputs"),
    [(1, 1, 16), (3, 130, 90), (65, 40, 128), (2, 40, SPLIT), (300, 40, SPLIT), (0, 8, 8)],
)
def test_a_product_of_any_shape(
    tokens: int, outputs: int, inputs: int, biased: bool, dtype: torch.dtype, device: torch.device
) -> None:
    x, weight = torch.randn(tokens, inputs, device=device, dtype=dtype), torch.randn(outputs, inputs, device=device)
    weight, bias = weight.to(dtype), torch.randn(outputs, device=device).to(dtype) if biased else None
    right = F.linear(x.double(), weight.double(), None if bias is None else bias.double())
    found = w16a16(x, weight, bias)
    assert (found.dtype, found.shape) == (dtype, right.shape)
    assert (found.double() - right).norm() <= TOLERANCE[dtype] * right.norm()


def test_rows_may_be_slices_of_something_wider(device: torch.device) -> None:
    x, weight = torch.randn(5, 200, device=device).half(), torch.randn(40, 300, device=device).half()
    found = w16a16(x[:, 40:140], weight[:, 7:107])
    torch.testing.assert_close(found, w16a16(x[:, 40:140].contiguous(), weight[:, 7:107].contiguous()), rtol=0, atol=0)


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
def test_a_rows_sum_is_the_same_alone_and_among_many(dtype: torch.dtype, device: torch.device) -> None:
    x, weight = torch.randn(300, SPLIT, device=device, dtype=dtype), torch.randn(40, SPLIT, device=device, dtype=dtype)
    many = w16a16(x, weight)
    for first, last in ((0, 1), (299, 300), (63, 65), (100, 190)):
        assert torch.equal(w16a16(x[first:last], weight), many[first:last])


def test_invariant_operations_multiply_so(device: torch.device) -> None:
    x, weight, bias = (torch.randn(shape, device=device) for shape in ((3, SPLIT), (40, SPLIT), (40,)))
    right = w16a16(x, weight, bias)
    assert torch.equal(TritonOps(invariant=True).linear(x, weight, bias), right)
    assert not torch.equal(TritonOps().linear(x, weight, bias), right)  # other sums, other bits
