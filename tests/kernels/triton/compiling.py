"""compiling: what a kernel's variant becomes on a GPU that need not be there. It runs nothing and judges nothing.

A call is followed down to where Triton would launch: there it compiles, for the target that a stand-in for its driver
names, just what would have run. Not under TRITON_INTERPRET: a kernel is defined either for the interpreter or for the
compiler, so the tests run this in a process of its own (report.py).
"""
import re
import subprocess
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import CompiledKernel
from triton.runtime import driver
from triton.runtime.jit import JITFunction

from hamdam.kernels.triton.variant import Variant

TOOLS = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"
PRODUCT = re.compile(r"\b([HIQ]GMMA|[HI]MMA|UTC[HIQ]MMA|QMMA|v_mfma\w*?)[._ ]")


@dataclass(frozen=True, slots=True)
class Device:
    """A target and what its driver would say of it. shared_bytes: what one block of threads may have."""

    target: GPUTarget
    shared_bytes: int
    processors: int


DEVICES = {
    "sm_80": Device(GPUTarget("cuda", 80, 32), 163 << 10, 108),  # A100
    "sm_90": Device(GPUTarget("cuda", 90, 32), 227 << 10, 132),  # H100, H200
    "sm_100": Device(GPUTarget("cuda", 100, 32), 227 << 10, 148),  # B200
    "gfx942": Device(GPUTarget("hip", "gfx942", 64), 64 << 10, 304),  # MI300X
}


@dataclass(frozen=True, slots=True)
class Compiled:
    """One kernel of a variant as machine code. products: the instructions that multiply matrices, and how many."""

    kernel: str
    registers: int
    spilled_bytes: int
    shared_bytes: int
    products: dict[str, int]


def compile_variant(variant: Variant, target: str) -> list[Compiled]:
    """Each kernel that the variant launches, in their order."""
    device, kernels = DEVICES[target], []
    with _launching(device, kernels):
        variant.launch()
    return [_measured(kernel) for kernel in kernels]


class _Driver:
    """As much of a Triton driver as compiling asks for."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self.utils = self

    def get_current_device(self) -> str:
        return f"{self._device.target}"  # Triton keeps what it compiled by device

    def get_current_stream(self, device: str) -> int:
        return 0

    def get_current_target(self) -> GPUTarget:
        return self._device.target

    def get_device_properties(self, device: str) -> dict[str, int]:
        return {"max_shared_mem": self._device.shared_bytes, "multiprocessor_count": self._device.processors}


@contextmanager
def _launching(device: Device, kernels: list[CompiledKernel]) -> Iterator[None]:
    """Inside, a launch compiles for `device` and adds to `kernels`."""
    run = JITFunction.run

    def compile_only(self: JITFunction, *args: object, **options: object) -> None:
        kernels.append(run(self, *args, **{**options, "warmup": True}))

    JITFunction.run = compile_only
    driver.set_active(_Driver(device))
    try:
        yield
    finally:
        JITFunction.run = run


def _measured(kernel: CompiledKernel) -> Compiled:
    if "amdgcn" in kernel.asm:
        listing = kernel.asm["amdgcn"]
        facts = {name: int(number) for name, number in re.findall(r"\.(\w+):\s+(\d+)", listing)}
        registers = facts["vgpr_count"]  # includes those for accumulators
        spilled = facts["private_segment_fixed_size"]
    else:
        with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
            file.write(kernel.asm["cubin"])
            file.flush()
            usage, listing = (_cuobjdump(flag, file.name) for flag in ("-res-usage", "-sass"))
        facts = {name: int(number) for name, number in re.findall(r"\b([A-Z]+):(\d+)", usage)}
        registers, spilled = facts["REG"], facts["STACK"] + facts["LOCAL"]
    products = Counter(PRODUCT.findall(listing))
    return Compiled(kernel.metadata.name, registers, spilled, kernel.metadata.shared, dict(products))


def _cuobjdump(flag: str, path: str) -> str:
    return subprocess.run([TOOLS / "cuobjdump", flag, path], capture_output=True, text=True, check=True).stdout
