"""Mxfp4: the numbers of the format's own rules, some rows at a time; and every device multiplies by them."""
import pytest
import torch
import torch.nn.functional as F

from hamdam.kernels import reference
from hamdam.kernels.device import for_device
from hamdam.kernels.reference import Reference
from hamdam.kernels.unpacked import Mxfp4


def random_matrix(rows: int, inputs: int) -> Mxfp4:
    generator = torch.Generator().manual_seed(0)
    codes = torch.randint(0, 256, (rows, inputs // 32, 16), generator=generator, dtype=torch.uint8)
    return Mxfp4(codes, torch.randint(118, 131, (rows, inputs // 32), generator=generator, dtype=torch.uint8))


def by_the_rules(code: int, scale: int) -> float:
    """E2M1: a sign, 2 bits of exponent, bias 1, and one of fraction; times 2 to the scale, bias 127."""
    exponent, fraction = code >> 1 & 3, code & 1
    size = fraction / 2 if exponent == 0 else (1 + fraction / 2) * 2.0 ** (exponent - 1)
    return (-size if code & 8 else size) * 2.0 ** (scale - 127)


def test_numbers_are_those_of_the_format() -> None:
    matrix = random_matrix(3, 96)
    found = matrix.dequantise()
    for row in range(3):
        for at in range(96):
            byte = int(matrix.codes[row, at // 32, at % 16])
            code = byte >> 4 if at % 32 >= 16 else byte & 15
            assert float(found[row, at]) == by_the_rules(code, int(matrix.scales[row, at // 32]))
    assert torch.equal(matrix.rows(1, 9).dequantise(), found[1:])
    assert matrix.shape == (3, 96) and matrix.nbytes == 3 * 3 * 17


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_it_is_multiplied_some_rows_at_a_time(monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype) -> None:
    matrix = random_matrix(300, 64)
    monkeypatch.setattr(reference, "ROWS_AT_ONCE", 1)
    x, bias = (torch.randn(shape).to(dtype) for shape in ((7, 64), (300,)))
    right = F.linear(x.float(), matrix.dequantise(), bias.float())
    for ops in (Reference(), for_device(torch.device("cpu"))):
        found = ops.linear(x, matrix, bias)
        assert found.dtype == dtype
        torch.testing.assert_close(found.float(), right, rtol=1e-2 if dtype == torch.bfloat16 else 1e-5, atol=1e-5)
