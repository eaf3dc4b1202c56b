"""report: a table of what every kernel becomes on GPUs that need not be there, and of what bounds it on an H200.

    python tests/kernels/triton/report.py [-h] [--kernel NAME]… [--target sm_90]… [--json]

It compiles and judges nothing: test_compiles.py does, by what --json prints.
"""
import argparse
import importlib
import json
import pkgutil
import sys
import types
import warnings
from collections.abc import Iterator
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path

warnings.filterwarnings("ignore", "TRITON_DEFAULT_FP_FUSION")  # both settings compile; Triton's default is what runs
if find_spec("hamdam") is None:  # a bare checkout
    hamdam = types.ModuleType("hamdam")
    hamdam.__path__ = [str(Path(__file__).resolve().parents[3])]
    sys.modules["hamdam"] = hamdam

from compiling import DEVICES, compile_variant  # noqa: E402

import hamdam.kernels.triton  # noqa: E402
from hamdam.kernels.triton.variant import Variant  # noqa: E402

COPY_BYTES, MATRIX_FLOPS = 4.3e12, 790e12  # a second, of an H200, as measured: a large copy, a large bfloat16 product
FASTER = {"QGMMA": 2, "IGMMA": 2}  # than bfloat16


def variants() -> Iterator[tuple[str, Variant]]:
    """Every kernel's file and its VARIANTS."""
    for module in sorted(module.name for module in pkgutil.iter_modules(hamdam.kernels.triton.__path__)):
        for variant in getattr(importlib.import_module(f"hamdam.kernels.triton.{module}"), "VARIANTS", ()):
            yield module, variant


def rows(kernels: list[str], targets: list[str], *, tested: bool) -> Iterator[dict[str, object]]:
    for module, variant in variants():
        for target in variant.targets:
            if (kernels and module not in kernels) or target not in targets:
                continue
            if tested and target not in variant.tested:
                continue
            for compiled in compile_variant(variant, target):
                yield {
                    "file": module, "variant": variant.name, "target": target, "claim": variant.claims.get(target),
                    "limit": DEVICES[target].shared_bytes, **asdict(compiled),
                }


def floor_us(variant: Variant) -> float:
    """The least time on an H200: its bytes at the rate of a copy, or its products at that of a matrix product."""
    rate = MATRIX_FLOPS * FASTER.get(variant.claims.get("sm_90", ""), 1)
    return 1e6 * max(variant.bytes / COPY_BYTES, variant.flops / rate if variant.claims else 0)


def print_bounds(kernels: list[str]) -> None:
    print("| kernel | call | MB | GFLOP | floor on an H200, µs |\n| --- | --- | ---: | ---: | ---: |")
    for module, variant in variants():
        if not kernels or module in kernels:
            numbers = f"{variant.bytes / 1e6:,.1f} | {variant.flops / 1e9:,.2f} | {floor_us(variant):,.1f}"
            print(f"| {module} | {variant.name} | {numbers} |")


def print_table(found: Iterator[dict[str, object]]) -> None:
    print("| kernel | call | target | function | registers | spilled | shared | products |")
    print("| --- | --- | --- | --- | ---: | ---: | ---: | --- |")
    for row in found:
        products = ", ".join(f"{count} {name}" for name, count in row["products"].items())
        print(f"| {row['file']} | {row['variant']} | {row['target']} | `{row['kernel']}` | {row['registers']} |"
              f" {row['spilled_bytes']} | {row['shared_bytes']:,} | {products} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kernel", action="append", default=[], help="a file of kernels/triton; may be repeated")
    parser.add_argument("--target", action="append", default=[], choices=DEVICES, help="may be repeated")
    parser.add_argument("--tested", action="store_true", help="only what the tests compile")
    parser.add_argument("--json", action="store_true", help="one object a line, of what was compiled")
    chosen = parser.parse_args()
    found = rows(chosen.kernel, chosen.target or list(DEVICES), tested=chosen.tested)
    if chosen.json:
        for row in found:
            print(json.dumps(row), flush=True)
    else:
        print_bounds(chosen.kernel)
        print()
        print_table(found)


if __name__ == "__main__":
    main()
