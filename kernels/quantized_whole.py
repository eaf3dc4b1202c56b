"""Whole quantised matrices, out of floats as they are loaded and out of parts. Their forms are quantized.py's."""
from collections.abc import Sequence

import torch
from torch import Tensor

from .quantized import FP8_BLOCK, ROWS_AT_ONCE, RUN, W4A16, W8A16, quantise_bytes, quantise_int4

KINDS = ("int8", "int4", "fp8")


def rounded(weight: Tensor, kind: str) -> W4A16 | W8A16 | None:
    """[out, in] to one of KINDS, for rows that stay floats: 8 bits with a scale an output, or 4 bits with a scale and a
    zero for each RUN inputs. None where in is no multiple of RUN."""
    if weight.shape[1] % RUN:
        return None
    step = max(1, ROWS_AT_ONCE // weight.shape[1])
    parts = [weight[first : first + step] for first in range(0, len(weight), step)]
    if kind == "int4":
        return stacked([quantise_int4(part, RUN, symmetric=False) for part in parts])
    dtype = torch.int8 if kind == "int8" else torch.float8_e4m3fn
    return stacked([quantise_bytes(part, dtype).for_floats() for part in parts])


def stacked(parts: Sequence[W4A16 | W8A16]) -> W4A16 | W8A16 | None:
    """One matrix above the other, nothing rounded; None where one form cannot hold them."""
    if len(parts) == 1:
        return parts[0]
    fours = [part for part in parts if isinstance(part, W4A16)]
    eights = [part for part in parts if isinstance(part, W8A16)]
    if fours and eights:
        return None
    return _stacked_fours(fours) if fours else _stacked_eights(eights)


def _stacked_fours(parts: list[W4A16]) -> W4A16 | None:
    first = parts[0]
    offsets = [part.zeros is not None and part.zeros.dtype != torch.uint8 for part in parts]
    if any(part.group != first.group for part in parts) or any(offsets) != all(offsets):
        return None
    orders = [part.permutation for part in parts if part.permutation is not None]
    if orders and (len(orders) < len(parts) or any(not torch.equal(order, orders[0]) for order in orders)):
        return None
    zeros = None
    if any(part.zeros is not None for part in parts):
        eights = (torch.full_like(part.scales, 8, dtype=torch.uint8) for part in parts)
        zeros = torch.cat([e if part.zeros is None else part.zeros for part, e in zip(parts, eights, strict=True)], 1)
    scales = torch.cat([part.scales for part in parts], 1)
    return W4A16(torch.cat([part.packed for part in parts]), scales, zeros, first.permutation)


def _stacked_eights(parts: list[W8A16]) -> W8A16 | None:
    by_block = [part.scales.dim() == 2 for part in parts]
    if any(part.dtype != parts[0].dtype for part in parts) or any(by_block) != all(by_block):
        return None
    if all(by_block) and any(part.shape[0] % FP8_BLOCK for part in parts[:-1]):
        return None
    scales = [part.scales if part.scales.dim() else part.scales.expand(part.shape[0]) for part in parts]
    return W8A16(torch.cat([part.packed for part in parts]), torch.cat(scales), parts[0].dtype)
