"""Transfer: numbers to a device and back, without waiting for whatever else it was told to do. It computes nothing."""
from collections.abc import Iterable

import torch
from torch import Tensor


def sent(numbers: Tensor, like: Tensor) -> Tensor:
    """On the device of `like`. A copy out of ordinary memory would wait for all that was launched before."""
    if like.device.type == "cpu":
        return numbers
    return numbers.pin_memory().to(like.device, non_blocking=True)


class Fetch:
    """Tensors on their way back. They were launched before; `wait` waits for them, and for nothing launched after."""

    def __init__(self, tensors: Iterable[Tensor]) -> None:
        """All of one device. They may be changed or freed afterwards, but for those of a CPU."""
        self._here: list[Tensor] = []
        self._copied: torch.cuda.Event | None = None
        for tensor in tensors:
            if tensor.device.type == "cpu":
                self._here.append(tensor)
                continue
            here = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
            self._here.append(here.copy_(tensor, non_blocking=True))
            self._copied = self._copied or torch.cuda.Event()  # type: ignore[no-untyped-call]
        if self._copied is not None:
            self._copied.record()

    def wait(self) -> list[Tensor]:
        if self._copied is not None:
            self._copied.synchronize()
        return self._here
