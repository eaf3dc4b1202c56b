"""device_check: whether all that is for a GPU works on this one, and how close to what the chip can do. Not pytest's.

    python tests/gpu/device_check.py [--seconds 330] [--only WORD] [--json FILE] [--tiny]

First every kernel against its reference, in several processes, since nearly all of it is compiling; then, alone, each
kernel's time and whole models, as ratios to a copy and a matrix product measured here; a table last. What the time is
not enough for is said. --tiny does the same in small under Triton's interpreter, where the times mean nothing.
"""
import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

TESTS = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(TESTS))
import conftest  # noqa: E402, F401 - makes `hamdam` of a bare checkout

TINY = "--tiny" in sys.argv
if TINY:
    os.environ["TRITON_INTERPRET"] = "1"  # before anything of Triton is imported

import kernel_checks  # noqa: E402
import kernel_timings  # noqa: E402
import model_timings  # noqa: E402
import stopwatch  # noqa: E402
import torch  # noqa: E402

if TINY:
    torch.set_num_threads(1)  # two wait for each other more than they compute
DEVICE = torch.device("cpu" if TINY else "cuda")
SIZES = kernel_checks.TINY if TINY else kernel_checks.LARGE
AMOUNTS = kernel_timings.TINY if TINY else kernel_timings.LARGE
SHAPES = model_timings.TINY if TINY else model_timings.LARGE
LOAD = model_timings.TINY_LOAD if TINY else model_timings.LARGE_LOAD
PROCESSES = 1 if TINY else max(1, min(8, (os.cpu_count() or 1) // 2))
GRACE = 30.0  # seconds that a check may go on beyond its time; then it hangs, and its process is ended
CHECKED_BY, TIMED_BY = 0.45, 0.65  # of the time: what is not done by then gives way to what comes next


@dataclass
class Found:
    device: str
    versions: str
    ceilings: dict[str, float] = field(default_factory=dict)
    checks: list[dict[str, Any]] = field(default_factory=list)
    kernels: list[dict[str, Any]] = field(default_factory=list)
    models: list[dict[str, Any]] = field(default_factory=list)
    memory: list[dict[str, Any]] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)
    seconds: float = 0.0


def main() -> int:
    asked = _arguments()
    start = time.monotonic()
    if asked.share is not None:
        for line in checked(asked.share, asked.only, start + asked.seconds):
            print(json.dumps(line), flush=True)
        return 0
    import triton

    name = "Triton's interpreter" if TINY else torch.cuda.get_device_name()
    found = Found(name, f"torch {torch.__version__}, triton {triton.__version__}, Python {sys.version.split()[0]}")
    print(f"{found.device}; {found.versions}", flush=True)
    ceilings = stopwatch.ceilings(DEVICE, tiny=TINY)
    found.ceilings = asdict(ceilings)
    _checks(found, asked.only, asked.seconds * CHECKED_BY - (time.monotonic() - start))
    _kernels(found, asked.only, ceilings, start + asked.seconds * TIMED_BY)
    _models(found, asked.only, ceilings, start + asked.seconds)
    found.seconds = time.monotonic() - start
    _print(found)
    if asked.json:
        asked.json.write_text(json.dumps(asdict(found), indent=1))
    return 0 if all(check["passed"] for check in found.checks) else 1


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=330.0, help="for all of it (330)")
    parser.add_argument("--only", metavar="WORD", default="", help="only what has it in its name")
    parser.add_argument("--json", type=Path, metavar="FILE", help="what was found, also as JSON")
    parser.add_argument("--tiny", action="store_true", help="small shapes under Triton's interpreter")
    parser.add_argument("--share", type=int, help=argparse.SUPPRESS)  # of the checks, in a process of its own
    return parser.parse_args()


# Checks --------------------------------------------------------------------------------------------------------------


def _every_check(only: str) -> list[kernel_checks.Check]:
    return [each for each in kernel_checks.checks(DEVICE, SIZES, SHAPES, LOAD.prompt) if only in each.name]


def _every_timing(only: str) -> list[kernel_timings.Timing]:
    return [each for each in kernel_timings.timings(DEVICE, SIZES, AMOUNTS) if only in each.name]


def checked(share: int, only: str, deadline: float) -> Iterator[dict[str, Any]]:
    """One process's share of the checks; and one call of its share of the timings, to have their kernels compiled."""
    for check in _every_check(only)[share::PROCESSES]:
        if time.monotonic() > deadline:
            return
        try:
            error = check.error()
            fault = "" if error <= check.limit else f"off by {error:.2g}, and {check.limit:.2g} is allowed"
        except Exception as problem:  # noqa: BLE001 - a check reports whatever a kernel does
            error, fault = float("nan"), f"{type(problem).__name__}: {' '.join(str(problem).split())[:200]}"
        yield {"name": check.name, "error": error, "limit": check.limit, "passed": not fault, "fault": fault}
    if TINY:
        return
    for timing in _every_timing(only)[share::PROCESSES]:
        if time.monotonic() > deadline:
            return
        try:
            timing.make()[0]()
        except Exception:  # noqa: BLE001 - it is made again where it is timed, and reported there
            continue


def _checks(found: Found, only: str, budget: float) -> None:
    if PROCESSES == 1:
        found.checks = list(checked(0, only, time.monotonic() + budget))
    else:
        own = [sys.executable, __file__, "--seconds", str(budget), "--only", only]
        running = [
            subprocess.Popen([*own, "--share", str(share)], stdout=subprocess.PIPE, text=True)
            for share in range(PROCESSES)
        ]
        for process in running:
            try:
                said, _ = process.communicate(timeout=budget + GRACE)
            except subprocess.TimeoutExpired:
                process.kill()
                said, _ = process.communicate()
            found.checks += [json.loads(line) for line in said.splitlines() if line.startswith("{")]
            if process.returncode:
                found.checks.append({"name": "a process of checks", "error": 1.0, "limit": 0.0, "passed": False,
                                     "fault": f"ended with {process.returncode}"})
    done = {check["name"] for check in found.checks}
    found.left_out += [f"check: {each.name}" for each in _every_check(only) if each.name not in done]


# Times ---------------------------------------------------------------------------------------------------------------


def _kernels(found: Found, only: str, ceilings: stopwatch.Ceilings, deadline: float) -> None:
    for timing in _every_timing(only):
        if time.monotonic() > deadline:
            found.left_out.append(f"kernel: {timing.name}")
            continue
        try:
            seconds = stopwatch.seconds(timing.make(), DEVICE)
        except Exception as problem:  # noqa: BLE001 - whatever a kernel does, the others are timed
            found.left_out.append(f"kernel: {timing.name}: {type(problem).__name__}: {problem}"[:300])
            continue
        moved, made = timing.bytes / seconds / ceilings.copy_bytes, timing.flops / seconds / ceilings.matrix_flops
        found.kernels.append({"name": timing.name, "us": seconds * 1e6, "of_copy": moved, "of_matrix": made})
    if DEVICE.type == "cuda":
        torch.cuda.empty_cache()


def _models(found: Found, only: str, ceilings: stopwatch.Ceilings, deadline: float) -> None:
    kinds = [("bf16", False), ("int4", False), ("fp8", False), ("bf16", True)]
    for (name, shape), (kind, invariant) in ((each, kind) for kind in kinds for each in SHAPES.items()):
        about = f"{name} {kind}{' invariant' if invariant else ''}"
        if only not in about:
            continue
        if time.monotonic() > deadline:
            found.left_out.append(f"model: {about}")
            continue
        try:
            model = model_timings.Model(shape, kind, LOAD, DEVICE, invariant=invariant)
            _model(found, about, model, ceilings, deadline)
            del model
        except Exception as problem:  # noqa: BLE001 - whatever one model does, the others are tried
            found.left_out.append(f"model: {about}: {type(problem).__name__}: {problem}"[:300])
        if DEVICE.type == "cuda":
            torch.cuda.empty_cache()


def _model(
    found: Found, about: str, model: model_timings.Model, ceilings: stopwatch.Ceilings, deadline: float
) -> None:
    def add(cell: model_timings.Cell | None, missing: str) -> None:
        if cell is None:
            found.left_out.append(f"model: {about}, {missing}: does not fit")
            return
        floor = max(cell.bytes / ceilings.copy_bytes, cell.flops / ceilings.matrix_flops)
        found.models.append({
            "model": about, "mode": cell.mode, "rows": cell.rows, "context": cell.context, "ms": cell.seconds * 1e3,
            "tokens_s": cell.tokens / cell.seconds, "of_floor": floor / cell.seconds,
        })  # fmt: skip

    invariant = "invariant" in about
    found.memory.append({"model": about, **model.facts()})
    if invariant:
        differing = model.differing()
        found.checks.append({
            "name": f"{about}: alone, in company, launched, replayed and ahead", "error": differing, "limit": 0,
            "passed": not differing, "fault": f"{differing} rows differ" if differing else "",
        })  # fmt: skip
    add(model.prompt("prompt"), "prompt")
    for rows, context in LOAD.fewer if invariant else LOAD.cells:
        if time.monotonic() > deadline:
            found.left_out.append(f"model: {about}, {rows} of {context}")
            continue
        add(model.decode(rows, context, "decode"), f"{rows} of {context}")
    if not invariant:
        for rows, context in LOAD.fewer:
            add(model.decode(rows, context, "ahead"), f"{rows} of {context}, ahead")
        model.without_graphs()
        for rows, context in LOAD.fewer:
            add(model.decode(rows, context, "launched"), f"{rows} of {context}, launched")
    model.close()


# What is told --------------------------------------------------------------------------------------------------------


def _print(found: Found) -> None:
    copy, matrix = found.ceilings["copy_bytes"] / 1e12, found.ceilings["matrix_flops"] / 1e12
    print(f"\nceilings: copy {copy:.3g} TB/s, bf16 product {matrix:.4g} TFLOP/s\n")
    failed = [check for check in found.checks if not check["passed"]]
    print(f"{len(found.checks) - len(failed)} checks passed, {len(failed)} failed")
    for check in failed:
        print(f"  FAILED {check['name']}: {check['fault']}")
    print(f"\n{'kernel':<52} {'µs':>10} {'of copy':>9} {'of matrix':>10}")
    for row in found.kernels:
        print(f"{row['name']:<52} {row['us']:>10,.1f} {row['of_copy']:>9.0%} {row['of_matrix']:>10.0%}")
    print(f"\n{'model':<20} {'weights GB':>10} {'KV GB':>7} {'KV tokens':>10} {'reserved GB':>12} {'open s':>7}")
    for row in found.memory:
        print(f"{row['model']:<20} {row['weights_gb']:>10.2f} {row['kv_gb']:>7.1f} {row['kv_tokens']:>10,}"
              f" {row['reserved_gb']:>12.1f} {row['open_s']:>7.1f}")
    print(f"\n{'model':<20} {'step':<9} {'rows':>5} {'context':>8} {'ms':>9} {'tok/s':>10} {'of floor':>9}")
    for row in found.models:
        print(f"{row['model']:<20} {row['mode']:<9} {row['rows']:>5} {row['context']:>8,} {row['ms']:>9.2f}"
              f" {row['tokens_s']:>10,.0f} {row['of_floor']:>9.0%}")
    for line in found.left_out:
        print(f"left out: {line}")
    print(f"\n{found.seconds:.0f} s")


if __name__ == "__main__":
    sys.exit(main())
