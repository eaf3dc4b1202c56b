"""gpu_memory: how many bytes of a GPU are left for KV beside weights and what steps take. It reserves none of them."""
from collections.abc import Callable

import torch

from ..errors import ModelError

LATER = 512 << 20  # bytes: of kernels, libraries and recorded graphs, which are loaded when they are met


def free_and_total() -> tuple[int, int]:
    """Bytes of the GPU that is computed on. ModelError where PyTorch finds none."""
    if not torch.cuda.is_available():
        raise ModelError("device cuda was asked for, and PyTorch finds none")
    return torch.cuda.mem_get_info()


def left_for_kv(share: float, device: torch.device, largest_step: Callable[[], object]) -> int:
    """Bytes, once the weights are there. ModelError where it is none.

    What a step takes is counted twice: for steps that are launched, and for those recorded in graphs, whose memory is
    their own.
    """
    torch.cuda.synchronize(device)
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    largest_step()
    torch.cuda.synchronize(device)
    taken = torch.cuda.max_memory_allocated(device) - before
    torch.cuda.empty_cache()
    free, total = torch.cuda.mem_get_info(device)  # what other programs have is not free either
    left = int(share * total) - (total - free) - 2 * taken - LATER
    if left <= 0:
        raise ModelError(
            f"no memory is left for KV: gpu_memory is {share:g} of {total / 1e9:.1f} GB, the model and others take "
            f"{(total - free) / 1e9:.1f}, and steps need {(2 * taken + LATER) / 1e9:.1f}"
        )
    return left
