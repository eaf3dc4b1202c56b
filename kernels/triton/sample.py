"""sample: one id a row of logits, as Ops.sample says, on the device and without sorting."""
from torch import Tensor


def sample(
    logits: Tensor, temperature: Tensor, top_k: Tensor, top_p: Tensor, min_p: Tensor, uniform: Tensor
) -> Tensor:
    """As Ops.sample; the settings may lie on the CPU or on the logits' device. -> [R] int64 on the logits' device."""
    raise NotImplementedError
