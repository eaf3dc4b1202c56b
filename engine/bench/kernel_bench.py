"""The kernels' bench: which implementations are measured for a model on a device. How one is timed: operation.py."""
from collections.abc import Callable, Iterator
from pathlib import Path

from .operation import Ceiling, KernelPoint, Source, measure_source


def measure_kernels(
    model: Path, *, device: str = "auto", dtype: str = "auto", threads: int | None = None,
    told: Callable[[str], None],
) -> Iterator[Ceiling | KernelPoint]:
    """Each implementation's ceilings, then its kernels, as soon as they are known. Raises ModelError."""
    told("preparing")
    for source in kernel_sources(model, device=device, dtype=dtype, threads=threads):
        yield from measure_source(source, told=told)


def kernel_sources(model: Path, *, device: str, dtype: str, threads: int | None) -> Iterator[Source]:
    """Made one after the other: each holds some hundred MB. Another implementation is one more `yield` here."""
    # As in engine/opening.py: torch is imported only once something is about to be computed.
    from ..loading.checkpoint import open_checkpoint
    from .torch_operations import open_torch_operations

    yield open_torch_operations(open_checkpoint(model).config, device=device, dtype=dtype, threads=threads)
