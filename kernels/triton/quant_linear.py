"""quant_linear: the product of rows and a quantised matrix, whichever its form. Each form's kernel has its own file."""
import torch
from torch import Tensor

from ..quantized import W4A16, W8A16, QuantizedRows, QuantizedWeight
from .quantise import quantise_rows
from .w4a16 import w4a16
from .w8a8 import w8a8
from .w8a16 import w8a16


def linear(
    x: Tensor | QuantizedRows, weight: QuantizedWeight, bias: Tensor | None = None,
    *, dtype: torch.dtype = torch.bfloat16, invariant: bool = False,
) -> Tensor:
    """x [T, in] times the matrix [out, in] transposed, plus bias [out] -> [T, out] of x's dtype.

    For a W8A8 matrix x is quantised here, or was where it was made (rms_norm, silu_and_mul): then `dtype` is the
    result's. invariant: a row's sum is the same in any company, to the bit.
    """
    match weight:
        case W4A16():
            assert isinstance(x, Tensor), "this matrix takes floats"
            return w4a16(x, weight, bias, invariant=invariant)
        case W8A16():
            assert isinstance(x, Tensor), "this matrix takes floats"
            return w8a16(x, weight, bias, invariant=invariant)
    if isinstance(x, QuantizedRows):
        return w8a8(x, weight, bias, dtype=dtype, invariant=invariant)
    rows = quantise_rows(x, weight.values.dtype, block=weight.block)
    return w8a8(rows, weight, bias, dtype=x.dtype, invariant=invariant)
