"""`hamdam bench kernels`: each operation against what this machine can do. The measuring is hamdam.engine's."""
import argparse

from hamdam.engine import Ceiling, KernelPoint, Phases, measure_kernels

from ...settings import Settings
from ...storage.folder import DataFolder
from ..models import model_path
from .progress import Progress
from .report.reports import KernelReport, about


def bench_kernels(asked: argparse.Namespace, settings: Settings) -> KernelReport:
    """Raises BenchError, ModelError or PullError; an interrupt ends it with the operations that are done."""
    model, progress, complete = model_path(settings), Progress(), True
    told = about("kernels", model=model.stem, description="its sizes, random numbers", threads=asked.threads)
    ceilings: list[Ceiling] = []
    points: list[KernelPoint] = []
    phases: list[Phases] = []
    try:
        for found in measure_kernels(
            model, device=settings.device, dtype=settings.dtype, threads=asked.threads,
            cache=DataFolder(settings.data).cache,
            told=lambda name: progress(len(points), None, name),
        ):
            if isinstance(found, Ceiling):
                ceilings.append(found)
            elif isinstance(found, Phases):
                phases.append(found)
            else:
                points.append(found)
    except KeyboardInterrupt:
        complete = False
    finally:
        progress.clear()
    return KernelReport(
        about=told, ceilings=tuple(ceilings), points=tuple(points), phases=tuple(phases), complete=complete
    )
