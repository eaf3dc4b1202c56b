"""The engine's bench: workloads repeated, paired with a peer where there is one, and summed up. It prints nothing."""
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from ..config import BLOCK_SIZE, EngineConfig
from ..models.config import ModelConfig
from ..opening import open_engine
from .compiling import compile_native
from .driver import BenchError, Driver, Repeat
from .machine import memory
from .pairing import Figure, Ratio, ratios
from .spread import Spread
from .workload import REPEATS, Workload

WIDEST = 4  # bytes of a float32

Progress = Callable[[int, int, str], None]
"""(done, total, what is being measured)."""


class Side(Protocol):
    """Whatever can run a workload: our Driver, or a peer behind its HTTP door."""

    @property
    def description(self) -> str: ...

    def why_not(self, workload: Workload) -> str | None: ...

    def repeat(self, workload: Workload) -> Repeat: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """What came of one workload. Tokens are those of one repeat, exact, and the same in each."""

    workload: Workload
    description: str  # on what and in what it was computed
    computed: int
    sampled: int
    rate: Spread  # tok/s of each repeat: drawn ones of decode, else those that went through the model
    step_ms: Spread  # of every counted step
    outside_ms: Spread  # of each of them, what was scheduling and not the model

    @property
    def figure(self) -> Figure:
        return Figure(name=self.workload.name, value=self.rate.median, unit="tok/s", more_is_better=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Skipped:
    name: str
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """One workload's outcome: a point, and a ratio where a peer ran it in turn; or why there is none."""

    point: Point | None = None
    ratio: Ratio | None = None
    skipped: Skipped | None = None


def open_driver(
    model: Path,
    work: Sequence[Workload],
    *,
    device: str = "auto",
    dtype: str = "auto",
    quantize: str | None = None,
    kv_dtype: str = "auto",
    invariant: bool = False,
    threads: int | None = None,
    cache: Path | None = None,
    kv_memory: int | None = None,
    temperature: float = 0.0,
) -> tuple[Driver, str]:
    """The model, opened as a server opens it, and its name. ModelError where that cannot be done.

    `cache` is where compiled code is kept; None is PyTorch unless `dtype` says otherwise. `kv_memory` None takes what
    the largest workload needs, if the machine has it.
    """
    # As in engine/opening.py: torch is imported only once something is about to be computed.
    from ..loading.checkpoint import open_checkpoint

    shape = open_checkpoint(model).config
    served = EngineConfig(
        model=model, device=device, dtype=dtype, quantize=quantize, kv_dtype=kv_dtype, invariant=invariant,
        threads=threads, cache=cache,
    )
    compile_native(served)
    roomy = replace(
        served,
        kv_memory=kv_memory or _enough(shape, work),
        max_context=min(shape.max_context, max(workload.longest for workload in work)),
        max_batch_tokens=max(workload.budget(served.max_batch_tokens) for workload in work),
        max_running=max(served.max_running, *(workload.batch + 1 for workload in work)),
    )
    engine = open_engine(roomy)
    return Driver(engine.runner, served, temperature=temperature), engine.model_name


def measure(
    ours: Side, work: Sequence[Workload], *, repeats: int = REPEATS, theirs: Side | None = None, progress: Progress
) -> Iterator[Measured]:
    """Each workload as soon as it is done, so that whoever stops in between keeps what came before.

    The first repeat of each only warms up. With `theirs` the two take turns, repeat by repeat.
    """
    total = len(work) * repeats
    for number, workload in enumerate(work):
        if why := ours.why_not(workload):
            yield Measured(skipped=Skipped(name=workload.name, why=why))
            continue
        other = theirs if theirs is not None and theirs.why_not(workload) is None else None
        described = None
        while described != ours.description:  # a faster path became ready in between: what came before says nothing
            described = ours.description
            timed: list[tuple[Repeat, Repeat | None]] = []
            for repeat in range(repeats + 1):
                progress(number * repeats + max(0, repeat - 1), total, workload.name)
                timed.append((ours.repeat(workload), other.repeat(workload) if other else None))
        yield _measured(workload, timed[1:], ours.description)
    progress(total, total, "done")


def rate(workload: Workload, repeat: Repeat) -> float:
    """tok/s: drawn ones of decode; else all that went through the model."""
    return (repeat.sampled if workload.kind == "decode" else repeat.computed) / repeat.seconds


def figure(workload: Workload, repeat: Repeat) -> Figure:
    return Figure(name=workload.name, value=rate(workload, repeat), unit="tok/s", more_is_better=True)


def _measured(workload: Workload, timed: list[tuple[Repeat, Repeat | None]], description: str) -> Measured:
    ours = [mine for mine, _ in timed]
    counts = {(repeat.computed, repeat.sampled) for repeat in ours}
    if len(counts) != 1:
        raise BenchError(f"{workload.name}: the repeats did not do the same work: {sorted(counts)}")
    (computed, sampled), = counts
    pairs = [([figure(workload, mine)], [figure(workload, theirs)]) for mine, theirs in timed if theirs]
    point = Point(
        workload=workload, description=description, computed=computed, sampled=sampled,
        rate=Spread.of([rate(workload, repeat) for repeat in ours]),
        step_ms=Spread.of([step for repeat in ours for step in repeat.steps_ms]),
        outside_ms=Spread.of([step for repeat in ours for step in repeat.outside_ms]),
    )
    return Measured(point=point, ratio=next(iter(ratios(pairs)), None))


def _enough(shape: ModelConfig, work: Sequence[Workload]) -> int:
    """Bytes of KV memory for the largest workload in the widest dtype, or half of what the machine has free."""
    block = 2 * shape.num_layers * BLOCK_SIZE * shape.num_kv_heads * shape.head_dim * WIDEST
    wanted = block * max(workload.blocks for workload in work)
    return min(wanted, memory("SC_AVPHYS_PAGES") // 2 or wanted)
