"""Operation: one kernel at one size, with the least that it must move and compute; and how long it took. No tensors.

A kernel is judged by its floor: the time that its bytes take at the speed of a large copy, or its arithmetic at the
speed of products that wait for nothing, whichever is longer, both measured in the same run. 100 % is as fast as they
come.
"""
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol

from .spread import Spread

SAMPLE_S, SAMPLES, WARM_UP = 0.004, 25, 3  # seconds of calls that are timed together, how often, and calls before
MOST_S = 1.0  # a slow kernel is timed less often, but three times at least


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """Where a model would find its data in memory, not in a cache, it is done to other data each time."""

    name: str
    bytes: int  # read and written, each once
    flops: int  # multiplications and additions
    call: Callable[[], object]
    times: int = 1  # how often `call` does it, where calling takes a while itself


class Source(Protocol):
    """One implementation's kernels. `copy` and `product` are its device's ceilings, measured like the rest."""

    name: str
    copy: Operation
    product: Operation

    def operations(self) -> Iterator[Operation]:
        """One after the other: what an operation holds may be freed when the next is asked for."""

    def finish(self) -> None:
        """Waits until the device has done all that was called."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ceiling:
    source: str
    bytes_per_s: float
    flops_per_s: float
    copy: str = "copy"  # what was measured
    product: str = "matrix product"

    @property
    def text(self) -> str:
        copied, computed = f"{self.bytes_per_s / 1e9:,.1f} GB/s", f"{self.flops_per_s / 1e9:,.0f} GFLOP/s"
        return f"{self.source}: {self.copy} {copied}, {self.product} {computed}"


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelPoint:
    source: str
    name: str
    bytes: int
    flops: int
    ms: Spread  # of one call
    of_copy: float  # bytes a second, of the ceiling
    of_product: float  # operations a second, of the ceiling

    @property
    def share(self) -> float:
        """Of what is possible. Above 1 the data was in a cache, and the copy's was not."""
        return max(self.of_copy, self.of_product)

    @property
    def bound(self) -> str:
        return "memory" if self.of_copy >= self.of_product else "arithmetic"


def measure_source(source: Source, *, told: Callable[[str], None]) -> Iterator[Ceiling | KernelPoint]:
    """The ceilings first. `told` hears what is about to be measured."""
    told(source.copy.name)
    copied = source.copy.bytes / time_of(source.copy, source.finish).median
    told(source.product.name)
    computed = source.product.flops / time_of(source.product, source.finish).median
    yield Ceiling(
        source=source.name, bytes_per_s=copied * 1e3, flops_per_s=computed * 1e3, copy=source.copy.name,
        product=source.product.name,
    )
    for operation in source.operations():
        told(operation.name)
        ms = time_of(operation, source.finish)
        yield KernelPoint(
            source=source.name, name=operation.name, bytes=operation.bytes, flops=operation.flops, ms=ms,
            of_copy=operation.bytes / ms.median / copied, of_product=operation.flops / ms.median / computed,
        )


def time_of(operation: Operation, finish: Callable[[], None]) -> Spread:
    """Milliseconds of doing it once. Short ones are timed many at a time: a clock costs something too."""
    once = _seconds(operation.call, WARM_UP, finish) / WARM_UP
    together = max(1, round(SAMPLE_S / max(once, 1e-9)))
    samples = max(3, min(SAMPLES, round(MOST_S / max(once * together, 1e-9))))
    done = together * operation.times
    return Spread.of([_seconds(operation.call, together, finish) / done * 1e3 for _ in range(samples)])


def _seconds(call: Callable[[], object], times: int, finish: Callable[[], None]) -> float:
    finish()
    begun = time.perf_counter()
    for _ in range(times):
        call()
    finish()
    return time.perf_counter() - begun
