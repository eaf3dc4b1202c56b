"""`hamdam bench engine`: the engine in this process, with no server around it. The measuring is hamdam.engine's."""
import argparse
from pathlib import Path

from hamdam.engine import (
    BATCHES,
    CONTEXTS,
    PROMPTS,
    STEPS,
    Point,
    Ratio,
    Skipped,
    Workload,
    measure,
    open_driver,
    ratios,
    workloads,
)

from ...settings import Settings
from ...storage.folder import DataFolder
from ..models import model_path
from .progress import Progress
from .report.peer_file import engine_figures
from .report.reports import Against, EngineReport, about
from .traffic.completions_peer import CompletionsPeer
from .traffic.door import open_door

QUICK_BATCHES, QUICK_CONTEXTS, QUICK_PROMPTS, QUICK_STEPS = (1, 16), (128,), (512,), 8


def bench_engine(asked: argparse.Namespace, settings: Settings) -> EngineReport:
    """Raises BenchError, ReportError, ModelError or PullError; an interrupt ends it with what is done."""
    earlier = engine_figures(asked.against) if isinstance(asked.against, Path) else []
    door = None
    if isinstance(asked.against, str):  # a peer that does not answer is told before a model is opened for it
        door = open_door(asked.against, model=asked.against_model, key=asked.against_key)
    work, progress = _work(asked), Progress()
    progress(0, 1, "opening the model")
    driver, model = open_driver(
        model_path(settings), work,
        device=settings.device, dtype=settings.dtype, quantize=settings.quantize, kv_dtype=settings.kv_dtype,
        invariant=settings.invariant, kv_memory=settings.kv_memory if asked.kv_memory else None,
        threads=asked.threads, cache=DataFolder(settings.data).cache, temperature=asked.temperature,
    )
    theirs = CompletionsPeer(door, driver.runner.vocab_size, temperature=asked.temperature) if door else None
    told = about(
        "engine", model=model, description=driver.description, threads=asked.threads,
        options={
            "repeats": asked.repeats, "temperature": asked.temperature, "quick": asked.quick,
            "quantize": settings.quantize, "kv_dtype": settings.kv_dtype, "invariant": settings.invariant,
        },
    )
    points: list[Point] = []
    skipped: list[Skipped] = []
    compared: list[Ratio] = []
    complete = True
    try:
        for measured in measure(driver, work, repeats=asked.repeats, theirs=theirs, progress=progress):
            points += filter(None, [measured.point])
            skipped += filter(None, [measured.skipped])
            compared += filter(None, [measured.ratio])
    except KeyboardInterrupt:
        complete = False
    finally:
        progress.clear()
    against = None
    if theirs:
        against = Against(name=theirs.description, alternating=True, ratios=tuple(compared))
    elif asked.against:
        compared = ratios([([point.figure for point in points], earlier)])
        against = Against(name=str(asked.against), alternating=False, ratios=tuple(compared))
    return EngineReport(
        about=told, points=tuple(points), skipped=tuple(skipped), against=against, complete=complete
    )


def _work(asked: argparse.Namespace) -> list[Workload]:
    batches, contexts, prompts, steps = (
        (QUICK_BATCHES, QUICK_CONTEXTS, QUICK_PROMPTS, QUICK_STEPS) if asked.quick
        else (BATCHES, CONTEXTS, PROMPTS, STEPS)
    )
    return workloads(asked.batch or batches, asked.context or contexts, prompts, steps=steps)
