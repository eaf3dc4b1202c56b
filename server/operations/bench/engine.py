"""`hamdam bench engine`: the engine in this process, with no server around it. The measuring is hamdam.engine's."""
import argparse

from hamdam.engine import BATCHES, CONTEXTS, STEPS, Point, Skipped, Workload, measure, open_driver, workloads

from ...settings import Settings
from ..models import model_path
from .progress import Progress
from .reports import EngineReport, about

QUICK_BATCHES, QUICK_CONTEXTS, QUICK_STEPS = (1, 16), (128,), 8


def bench_engine(asked: argparse.Namespace, settings: Settings) -> EngineReport:
    """Raises BenchError, ModelError or PullError; an interrupt ends it with the workloads that are done."""
    work = _work(asked)
    progress = Progress()
    progress(0, 1, "opening the model")
    driver, model = open_driver(
        model_path(settings), work,
        device=settings.device, dtype=settings.dtype, threads=asked.threads, temperature=asked.temperature,
        kv_memory=settings.kv_memory if asked.kv_memory else None,
    )
    told = about(
        "engine", model=model, description=driver.description, threads=asked.threads,
        options={"repeats": asked.repeats, "temperature": asked.temperature, "quick": asked.quick},
    )
    points: list[Point] = []
    skipped: list[Skipped] = []
    complete = True
    try:
        for measured in measure(driver, work, repeats=asked.repeats, progress=progress):
            if measured.point:
                points.append(measured.point)
            if measured.skipped:
                skipped.append(measured.skipped)
    except KeyboardInterrupt:
        complete = False
    finally:
        progress.clear()
    return EngineReport(about=told, points=tuple(points), skipped=tuple(skipped), complete=complete)


def _work(asked: argparse.Namespace) -> list[Workload]:
    usual = (QUICK_BATCHES, QUICK_CONTEXTS, QUICK_STEPS) if asked.quick else (BATCHES, CONTEXTS, STEPS)
    return workloads(asked.batch or usual[0], asked.context or usual[1], steps=usual[2])
