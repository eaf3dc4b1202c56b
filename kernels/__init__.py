"""Kernels: what a model asks of a device, and what answers. They know rows and blocks; no model, no sequence."""
import torch

from . import onednn
from .ops import Attention, Ops, Rows, Weight
from .reference import Reference

__all__ = ["Attention", "Ops", "Rows", "Weight", "for_device"]


def for_device(device: torch.device) -> Ops:
    """The fastest implementation there is for `device`."""
    if device.type == "cpu" and onednn.available():
        return onednn.OneDnn()
    return Reference()
