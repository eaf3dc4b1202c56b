"""Penalties: what makes tokens that were there already less probable, and in PyTorch how much. No sampling is here."""
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Penalties:
    """Of R rows; all on the logits' device.

    generated: [R, V] int32, how often each token was generated; prompted: [R, V] bool, whether it is in the prompt.
    repetition [R] float32, 1 for none: the logit of a token that is in either is divided by it where it is above zero,
      else multiplied (arXiv:1909.05858).
    frequency, presence [R] float32, 0 for none: then these are taken from the logit of a generated token: frequency
      for each time, presence once.
    """

    generated: Tensor
    prompted: Tensor
    repetition: Tensor
    frequency: Tensor
    presence: Tensor


def penalised(logits: Tensor, penalties: Penalties) -> Tensor:
    """logits [R, V] of any float dtype -> [R, V] float32."""
    wide, counts = logits.float(), penalties.generated
    repetition = penalties.repetition[:, None]
    again = torch.where(wide > 0, wide / repetition, wide * repetition)
    wide = torch.where((counts > 0) | penalties.prompted, again, wide)
    return wide - penalties.frequency[:, None] * counts - penalties.presence[:, None] * (counts > 0)
