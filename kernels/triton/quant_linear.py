"""quant_linear: the product of rows and a quantised matrix, whichever its form. Each form's kernel has its own file."""
from torch import Tensor

from ..quantized import QuantizedRows, QuantizedWeight


def linear(x: Tensor | QuantizedRows, weight: QuantizedWeight, bias: Tensor | None = None) -> Tensor:
    """x [T, in] times the matrix [out, in] transposed, plus bias [out] -> [T, out] of x's dtype, or of bfloat16."""
    raise NotImplementedError
