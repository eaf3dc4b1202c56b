"""Numbers as PyTorch tensors, without a copy. The one file of this room that needs PyTorch."""
import torch

from .numbers import Numbers


def as_tensor(numbers: Numbers) -> torch.Tensor:
    """In the memory of `numbers` and in its dtype."""
    tensor = torch.from_numpy(numbers.values)
    return tensor.view(torch.bfloat16) if numbers.dtype == "BF16" else tensor
