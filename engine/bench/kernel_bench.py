"""The kernels' bench: which implementations are measured for a model on a device. How one is timed: operation.py."""
from collections.abc import Callable, Iterator
from pathlib import Path

from ..config import EngineConfig
from ..execution.quality import EXACT_ABOVE
from .compiling import compile_native, has_native, keep_compiled
from .operation import Ceiling, KernelPoint, Source, measure_source
from .phases import Phases, measure_phases


def measure_kernels(
    model: Path, *, device: str = "auto", dtype: str = "auto", threads: int | None = None, cache: Path | None = None,
    told: Callable[[str], None],
) -> Iterator[Ceiling | KernelPoint | Phases]:
    """Each implementation's ceilings, then its kernels, as soon as they are known; at last, where native code can be
    had, what it spends a step on. Raises ModelError, or BenchError where it cannot be compiled.

    `cache` is where compiled code is kept, None: nowhere of ours.
    """
    told("preparing")
    config = EngineConfig(model=model, device=device, dtype=dtype, threads=threads, cache=cache)
    for source in kernel_sources(config):
        yield from measure_source(source, told=told)
    if has_native(config):
        yield from measure_phases(config, told=told)


def kernel_sources(config: EngineConfig) -> Iterator[Source]:
    """Made one after the other: each holds some hundred MB. Another implementation is one more `yield` here."""
    # As in engine/opening.py: torch and numba are imported only once something is about to be computed.
    from ..loading.checkpoint import open_checkpoint
    from .torch_operations import open_torch_operations

    shape = open_checkpoint(config.model).config
    yield open_torch_operations(shape, device=config.device, dtype=config.dtype, threads=config.threads)
    if has_native(config):
        compile_native(config)
        keep_compiled(config)
        from .native_operations import native_operations

        yield from native_operations(shape, dtype=config.dtype if config.dtype in EXACT_ABOVE else "int8")
