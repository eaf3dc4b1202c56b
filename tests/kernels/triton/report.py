"""report: a table of what every kernel becomes on GPUs that need not be there, and of what bounds it on an H200.

Of each, in each target's column: registers, shared memory, the instructions that multiply matrices.

    python tests/kernels/triton/report.py [--kernel FILE[:VARIANT]]… [--target sm_90]… [--tested] [--json] [--bounds]

It ends with 1 where something spills, needs more shared memory than there is, or does not multiply as it claims.
Not under TRITON_INTERPRET (compiling.py).
"""
import argparse
import importlib
import json
import pkgutil
import sys
import types
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

warnings.filterwarnings("ignore", "TRITON_DEFAULT_FP_FUSION")  # Triton's default is what runs; both compile
if find_spec("hamdam") is None:  # a bare checkout
    hamdam = types.ModuleType("hamdam")
    hamdam.__path__ = [str(Path(__file__).resolve().parents[3])]
    sys.modules["hamdam"] = hamdam

from compiling import DEVICES, Compiled, compile_variant  # noqa: E402

import hamdam.kernels.triton  # noqa: E402
from hamdam.kernels.triton.variant import Variant  # noqa: E402

COPY_BYTES, MATRIX_FLOPS = 4.3e12, 790e12  # a second, of an H200, as measured: a large copy, a large bfloat16 product
TWICE_AS_FAST = ("QGMMA", "IGMMA")  # as products of bfloat16: those of 8 bits


@dataclass(frozen=True, slots=True)
class Row:
    file: str
    variant: Variant
    target: str
    kernels: list[Compiled]
    failure: str | None = None  # what this Triton said instead of compiling it

    @property
    def faults(self) -> list[str]:
        """What must not be."""
        if self.failure is not None:
            return [f"does not compile: {self.failure}"]
        found, limit = [], DEVICES[self.target].shared_bytes
        for kernel in self.kernels:
            if kernel.spilled_bytes:
                found.append(f"{kernel.kernel} spills {kernel.spilled_bytes} bytes")
            if kernel.shared_bytes > limit:
                found.append(f"{kernel.kernel} needs {kernel.shared_bytes} bytes of shared memory, {limit} are there")
        claim = self.variant.claims.get(self.target)
        if claim and not any(claim in kernel.products for kernel in self.kernels):
            found.append(f"no {claim}")
        return found

    def as_json(self) -> str:
        return json.dumps({
            "kernel": f"{self.file}:{self.variant.name}", "target": self.target, "faults": self.faults,
            "functions": [kernel.kernel for kernel in self.kernels],
        })

    def __str__(self) -> str:
        """Of the largest function: registers, shared memory, what multiplies; and what must not be, if anything is."""
        if not self.kernels:
            return f"**{self.faults[0]}**"
        largest = max(self.kernels, key=lambda kernel: kernel.registers)
        parts = [f"{largest.registers}", f"{largest.shared_bytes / 1024:.0f} KiB", *largest.products]
        return ", ".join(parts) + "".join(f"; **{fault}**" for fault in self.faults)


def compiled(module: str, variant: Variant, target: str) -> Row:
    try:
        return Row(module, variant, target, compile_variant(variant, target))
    except RuntimeError as error:  # of a pass of the compiler; what it printed on the way went to stderr
        return Row(module, variant, target, [], failure=str(error))


def variants(wanted: list[str]) -> Iterator[tuple[str, Variant]]:
    """Every kernel's file and its VARIANTS, or those that are wanted."""
    for module in sorted(module.name for module in pkgutil.iter_modules(hamdam.kernels.triton.__path__)):
        for variant in getattr(importlib.import_module(f"hamdam.kernels.triton.{module}"), "VARIANTS", ()):
            if not wanted or module in wanted or f"{module}:{variant.name}" in wanted:
                yield module, variant


def floor_us(variant: Variant) -> float:
    """The least time on an H200: its bytes at the rate of a copy, its products at that of a large matrix product."""
    rate = MATRIX_FLOPS * (2 if variant.claims.get("sm_90") in TWICE_AS_FAST else 1)
    return 1e6 * max(variant.bytes / COPY_BYTES, variant.flops / rate if variant.claims else 0)


def print_bounds(wanted: list[str]) -> None:
    print("| kernel | MB | GFLOP | floor on an H200, µs |\n| --- | ---: | ---: | ---: |")
    for module, variant in variants(wanted):
        numbers = f"{variant.bytes / 1e6:,.1f} | {variant.flops / 1e9:,.2f} | {floor_us(variant):,.1f}"
        print(f"| {module}: {variant.name} | {numbers} |")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kernel", action="append", default=[], metavar="FILE[:VARIANT]", help="may be repeated")
    parser.add_argument("--target", action="append", default=[], choices=DEVICES, help="may be repeated")
    parser.add_argument("--tested", action="store_true", help="only what the tests compile, too")
    parser.add_argument("--json", action="store_true", help="one object a line")
    parser.add_argument("--bounds", action="store_true", help="bytes, products and floor times; compiles nothing")
    chosen = parser.parse_args()
    if chosen.bounds:
        print_bounds(chosen.kernel)
        return 0
    targets = chosen.target or list(DEVICES)
    if not chosen.json:
        print(f"| kernel | {' | '.join(targets)} |\n| --- |{' --- |' * len(targets)}")
    faults = []
    for module, variant in variants(chosen.kernel):
        rows = {}
        for target in targets:
            if target in variant.targets and (target in variant.tested or not chosen.tested):
                row = rows[target] = compiled(module, variant, target)
                faults += [f"{module}: {variant.name}, {target}: {fault}" for fault in row.faults]
                if chosen.json:
                    print(row.as_json(), flush=True)
        if not chosen.json:
            print(f"| {module}: {variant.name} | {' | '.join(str(rows.get(t, '')) for t in targets)} |", flush=True)
    print("\n".join(faults), file=sys.stderr)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
