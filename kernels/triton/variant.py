"""Variant: one way in which a kernel is launched, for tests/kernels/triton/report.py. It computes and launches nothing.

Beside each kernel stands VARIANTS: those that the engine uses, in a shape of Llama 8B. `launch` calls the kernel's own
function with tensors on the meta device, so that what is compiled and reported is what a model launches: a function
must read no tensor's numbers and ask a device nothing but what chip.py does.
"""
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch

TARGETS = ("sm_80", "sm_90", "sm_100", "gfx942")
FP8_TARGETS = ("sm_90", "sm_100")  # those that multiply float8_e4m3fn; for the others no rows are made of it


@dataclass(frozen=True, slots=True)
class Variant:
    """bytes and flops: what the call reads and writes in memory at the least, and how often it multiplies or adds.

    targets: where it is launched; tested: those of them for which the tests compile it, too, and not only the report.
    claims: for a target the instruction that does its products, as it is called in SASS: {"sm_90": "HGMMA"}.
    """

    name: str
    launch: Callable[[], object]
    bytes: int
    flops: int = 0
    targets: tuple[str, ...] = TARGETS
    claims: Mapping[str, str] = field(default_factory=dict)
    tested: tuple[str, ...] = TARGETS


def meta(*shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    """A tensor with a shape and no memory."""
    return torch.empty(shape, dtype=dtype, device="meta")
