"""`hamdam bench`: measures what was asked for, then shows it and keeps it. How each is measured is its own file's."""
import argparse
from collections.abc import Callable, Mapping

from hamdam.engine import PAIRS, BenchError

from ...settings import Settings
from .chat import bench_chat
from .engine import bench_engine
from .kernels import bench_kernels
from .report.page import page
from .report.reports import ChatReport, Report, put, write
from .report.text import report_text

INTERRUPTED = 130
BENCHES: Mapping[str, Callable[[argparse.Namespace, Settings], Report]] = {
    "engine": bench_engine,
    "chat": bench_chat,
    "kernels": bench_kernels,
}


def run_bench(asked: argparse.Namespace, settings: Settings) -> int:
    """The exit status: 1 where an answer failed. Raises BenchError, ModelError or PullError."""
    if isinstance(vars(asked).get("against"), str) and (asked.repeats or PAIRS) < PAIRS:
        raise BenchError(f"one pair says little: --repeats must be at least {PAIRS} against a URL")
    report = BENCHES[asked.bench](asked, settings)
    print(report_text(report))
    if asked.json:
        write(report, asked.json)
    if asked.html:
        put(asked.html, page(report))
    if not report.complete:
        return INTERRUPTED
    return int(isinstance(report, ChatReport) and any(run.failed for run in report.runs))
