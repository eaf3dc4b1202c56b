"""for_device: which implementation of Ops a device gets. Not what it computes."""
import torch

from . import onednn
from .ops import Ops
from .reference import Reference


def for_device(device: torch.device) -> Ops:
    """The fastest implementation there is for `device`."""
    if device.type == "cpu" and onednn.available():
        return onednn.OneDnn()
    return Reference()
