"""for_device: which implementation of Ops a device gets. Not what it computes."""
from importlib.util import find_spec
from pathlib import Path

import torch

from . import onednn
from .ops import Ops
from .reference import Reference


def for_device(device: torch.device, *, invariant: bool = False, cache: Path | None = None) -> Ops:
    """The fastest implementation there is for `device`; `invariant`, where it can be.

    cache: a folder for kernels that are compiled; None: where Triton keeps them by itself.
    """
    if device.type == "cpu" and onednn.available():
        return onednn.OneDnn()
    if device.type == "cuda" and find_spec("triton") is not None:
        import triton  # who has no GPU need not have Triton

        from .triton.ops import TritonOps

        if cache is not None:
            triton.knobs.cache.dir = str(cache)
        return TritonOps(invariant=invariant)
    return Reference()
