"""Phases: what native code spends a whole step on, by kind of phase, as its own clocks say. No kernel alone."""
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from hamdam.kernels.cpu.plan import PHASES

from ..config import EngineConfig
from .engine_bench import open_driver
from .spread import Spread
from .workload import Workload

WORK = (
    *(Workload(kind="decode", batch=batch, context=128) for batch in (1, 16, 64)),
    Workload(kind="prefill", prompt=256),
)
REPEATS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Phases:
    workload: str
    description: str
    step_ms: Spread
    shares: dict[str, float]  # of the native call, by kind of phase; they add up to 1


def measure_phases(config: EngineConfig, *, told: Callable[[str], None]) -> Iterator[Phases]:
    """Native code must be there for the model, compiled. All threads take part, as in a server."""
    # As in engine/opening.py: numba is imported only where something is about to be computed.
    from ..execution.native_runner import NativeRunner

    told("phases")
    driver, _ = open_driver(
        config.model, WORK, device=config.device, dtype=config.dtype, threads=config.threads, cache=config.cache
    )
    runner = driver.runner
    assert isinstance(runner, NativeRunner)
    try:
        for workload in WORK:
            told(f"phases of {workload.name}")
            driver.repeat(workload)
            before = runner.decoder.clocks.copy()
            steps = [ms for _ in range(REPEATS) for ms in driver.repeat(workload).steps_ms]
            spent = runner.decoder.clocks - before
            shares = dict(zip(PHASES, (spent / spent.sum()).tolist(), strict=True))
            yield Phases(
                workload=workload.name, description=driver.description, step_ms=Spread.of(steps), shares=shares
            )
    finally:
        runner.close()
