"""Kernels compile for GPUs that are not here: nothing spills, shared memory is enough, products are the matrix unit's.

What is compiled for which is said by `tested` of the kernels' VARIANTS; all of them would take too long for a test, and
are compiled by report.py, which judges by the same.
"""
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import triton

HERE = Path(__file__).parent
# The AMD compiler of Triton 3.6 ends in a pass of its own on some of them (kernels/README.md).
TARGETS = ["sm_80", "sm_90", "sm_100"] + ["gfx942"] * (not triton.__version__.startswith("3.6."))
FILES = {"attention_variants", "gated", "quantise", "rms_norm", "sample", "split_k", "store_kv", "w4a16", "w8a16",
         "w8a8"}


@pytest.fixture(scope="module")
def compilers() -> Iterator[dict[str, subprocess.Popen[str]]]:
    """A process for each target, at the same time. They are no interpreters, as this one is (compiling.py)."""
    command = [sys.executable, str(HERE / "report.py"), "--tested", "--json"]
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    processes = {
        target: subprocess.Popen(
            [*command, f"--target={target}"], env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        for target in TARGETS
    }
    yield processes
    for process in processes.values():
        process.kill()
        process.communicate()


@pytest.mark.timeout(1200)
@pytest.mark.parametrize("target", TARGETS)
def test_every_kernel_compiles_without_a_fault(target: str, compilers: dict[str, subprocess.Popen[str]]) -> None:
    output, errors = compilers[target].communicate()
    compiled = [json.loads(line) for line in output.splitlines()]
    assert compilers[target].returncode == 0, errors
    assert {row["target"] for row in compiled} == {target} and not [row for row in compiled if row["faults"]]
    assert {row["kernel"].split(":")[0] for row in compiled} >= FILES
