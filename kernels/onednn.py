"""OneDnn: the reference with its matrices packed once for the CPU at hand. Not another way to compute anything else.

F.linear hands oneDNN or MKL a plain matrix, which they rearrange in every call; a step of few rows spends half its time
on that. Packed once, the same product of the same float32 or bfloat16 numbers takes about half as long.
"""
import torch
from torch import Tensor

from .ops import Weight
from .reference import Reference

ROWS_HINT = 16  # rows of the product that the packing is chosen for; made for 1 or 64 instead it differed by a tenth


def available() -> bool:
    """Both operators serve PyTorch's own compiler and are not part of its public interface, so they may go one day."""
    operators = torch.ops.mkldnn
    return (
        bool(torch.backends.mkldnn.is_available())  # type: ignore[no-untyped-call]
        and hasattr(operators, "_linear_pointwise")
        and hasattr(operators, "_reorder_linear_weight")
    )


class OneDnn(Reference):
    def pack(self, weight: Tensor) -> Weight:
        return torch.ops.mkldnn._reorder_linear_weight(weight, ROWS_HINT) if self._takes(weight) else weight

    def linear(self, x: Tensor, weight: Weight, bias: Tensor | None = None) -> Tensor:
        if not isinstance(weight, Tensor) or not self._takes(weight):
            return super().linear(x, weight, bias)
        product: Tensor = torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")
        return product

    @staticmethod
    def _takes(weight: Tensor) -> bool:
        return weight.dtype == torch.float32 or (
            weight.dtype == torch.bfloat16 and bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
        )
