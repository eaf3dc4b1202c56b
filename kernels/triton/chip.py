"""Chip: what a kernel's tiles depend on of the device it runs on. It chooses nothing."""
from dataclasses import dataclass

import torch
from triton.runtime import driver


@dataclass(frozen=True, slots=True)
class Chip:
    shared_bytes: int  # that one block of threads may have
    spare_stages: int  # of a pipelined loop, that take no shared memory
    processors: int
    has_fp8: bool  # products of float8_e4m3fn


INTERPRETER = Chip(shared_bytes=64 << 10, spare_stages=0, processors=4, has_fp8=True)
"""What the interpreter is taken for: few processors, so that small tests split as much as large models do."""


def chip_of(x: torch.Tensor) -> Chip:
    """Of the current device, on which `x` has to lie."""
    if x.device.type == "cpu":
        return INTERPRETER
    target = driver.active.get_current_target()
    facts = driver.active.utils.get_device_properties(driver.active.get_current_device())
    return Chip(
        shared_bytes=facts["max_shared_mem"], spare_stages=1 if target.backend == "hip" else 0,
        processors=facts["multiprocessor_count"],
        has_fp8=target.backend == "cuda" and target.arch >= 89,
    )
