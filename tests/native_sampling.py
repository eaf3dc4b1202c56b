"""NativeSampling: the CPU path's sampler as `Ops.sample` is called, so that one set of tests holds both. Not a test."""
import numpy as np
import torch
from packed_numbers import address
from torch import Tensor

from hamdam.kernels.cpu.lanes import WIDTH
from hamdam.kernels.cpu.sample import sample_row


class NativeSampling:
    def sample(
        self, logits: Tensor, temperature: Tensor, top_k: Tensor, top_p: Tensor, min_p: Tensor, uniform: Tensor
    ) -> Tensor:
        """-inf is said as ids that are banned, which is how a step says it."""
        settings = zip(*(x.tolist() for x in (temperature, top_k, top_p, min_p, uniform)), strict=True)
        ids = [draw(row.float().numpy(), *own) for row, own in zip(logits, settings, strict=True)]
        return torch.tensor(ids, dtype=torch.int64)


def draw(
    logits: np.ndarray, temperature: float, top_k: int, top_p: float, min_p: float, uniform: float, *,
    by_mask: bool = False,
) -> int:
    """One row in poisoned memory. Nothing but its own is written. by_mask: -inf is said by a mask, not by ids."""
    size = len(logits)
    room = -(-size // WIDTH) * WIDTH
    own, weights, kept = np.full((3, room + WIDTH), np.nan, np.float32)
    banned = np.isneginf(logits)
    own[:size] = np.where(banned, 0, logits)
    ids = banned.nonzero()[0].astype(np.int32)[: 0 if by_mask else None]
    bits = np.ones(-(-size // 32) * 32, np.uint8)  # what a mask says of ids that there are not is of no account
    bits[:size] = ~banned
    mask = np.packbits(bits, bitorder="little")
    ones, never = np.ones(len(ids), np.float32), np.full(len(ids), -np.inf, np.float32)
    id = sample_row(
        address(own), size, address(mask) if by_mask else 0, address(ids), address(ones), address(never), len(ids),
        temperature, top_k, top_p, min_p, uniform, address(weights), address(kept),
    )
    assert all(np.isnan(x[room:]).all() for x in (own, weights, kept))
    return int(id)
