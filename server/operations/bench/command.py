"""`hamdam bench`: measures what was asked for, then shows it and keeps it. How each is measured is its own file's."""
import argparse

from ...settings import Settings
from .engine import bench_engine
from .reports import write
from .table import engine_text

INTERRUPTED = 130


def run_bench(asked: argparse.Namespace, settings: Settings) -> int:
    """The exit status. Raises ReportError, BenchError, ModelError or PullError, whose text is one line."""
    report = bench_engine(asked, settings)
    print(engine_text(report))
    if asked.json:
        write(report, asked.json)
    return 0 if report.complete else INTERRUPTED
