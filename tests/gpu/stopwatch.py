"""Stopwatch: what calls take on a GPU without what it costs to launch them, and the ceilings they are held to."""
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

Call = Callable[[], object]
REPEATS = 5
ENOUGH = 2e-3  # seconds that are timed at a time; the clock of a GPU ticks every microsecond or so


@dataclass(frozen=True)
class Ceilings:
    """A second, as measured here: bytes read and written by a copy; multiplications and additions of bfloat16."""

    copy_bytes: float
    matrix_flops: float


def seconds(calls: Sequence[Call], device: torch.device) -> float:
    """Of one call, if all are made in turn; the median of several times."""
    if device.type == "cpu":
        return _counted(calls[:1], 1)
    for call in calls:
        call()  # compiled
    torch.cuda.synchronize()
    times = max(1, min(200, int(ENOUGH / (_counted(calls, 1) * len(calls)))))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for call in list(calls) * times:
            call()
    graph.replay()
    found = []
    for _ in range(REPEATS):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        graph.replay()
        end.record()
        end.synchronize()
        found.append(start.elapsed_time(end) / 1e3)
    return statistics.median(found) / len(calls) / times


def _counted(calls: Sequence[Call], times: int) -> float:
    """By the clock on the wall, launches included."""
    start = time.perf_counter()
    for call in list(calls) * times:
        call()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return (time.perf_counter() - start) / len(calls) / times


def ceilings(device: torch.device, *, tiny: bool) -> Ceilings:
    size, rows = (1 << 16, 128) if tiny else (1 << 30, 8192)
    here, there = (torch.zeros(size, dtype=torch.uint8, device=device) for _ in range(2))
    one, other = (torch.randn(rows, rows, device=device).bfloat16() for _ in range(2))
    copied, multiplied = seconds([lambda: there.copy_(here)], device), seconds([lambda: one @ other], device)
    return Ceilings(2 * size / copied, 2 * rows**3 / multiplied)
