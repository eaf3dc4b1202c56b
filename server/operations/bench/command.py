"""`hamdam bench`: measures what was asked for, then shows it and keeps it. How each is measured is its own file's."""
import argparse

from hamdam.engine import PAIRS, BenchError

from ...settings import Settings
from .chat import bench_chat
from .engine import bench_engine
from .reports import ChatReport, EngineReport, Report, write
from .table import chat_text, engine_text

INTERRUPTED = 130


def run_bench(asked: argparse.Namespace, settings: Settings) -> int:
    """The exit status: 1 where an answer failed. Raises ReportError, BenchError, ModelError or PullError."""
    if isinstance(asked.against, str) and asked.repeats is not None and asked.repeats < PAIRS:
        raise BenchError(f"one pair says little: --repeats must be at least {PAIRS} against a URL")
    report: Report = bench_engine(asked, settings) if asked.bench == "engine" else bench_chat(asked, settings)
    print(_text(report))
    if asked.json:
        write(report, asked.json)
    if not report.complete:
        return INTERRUPTED
    return int(isinstance(report, ChatReport) and any(run.failed for run in report.runs))


def _text(report: Report) -> str:
    match report:
        case EngineReport():
            return engine_text(report)
        case ChatReport():
            return chat_text(report)
