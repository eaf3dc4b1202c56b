"""for_device: which implementation of Ops a device gets. Not what it computes."""
from importlib.util import find_spec

import torch

from . import onednn
from .ops import Ops
from .reference import Reference


def for_device(device: torch.device, *, invariant: bool = False) -> Ops:
    """The fastest implementation there is for `device`; `invariant`, where it can be."""
    if device.type == "cpu" and onednn.available():
        return onednn.OneDnn()
    if device.type == "cuda" and find_spec("triton") is not None:
        from .triton.ops import TritonOps  # who has no GPU need not have Triton

        return TritonOps(invariant=invariant)
    return Reference()
