"""Peer files: figures that were measured before, by us or by llama.cpp, under our names. A hint, since no hour is like
another; a comparison takes turns.

From llama.cpp, as JSON lines or a JSON list; what has no counterpart here is passed over:
    llama-batched-bench   pp, pl, speed_tg            decode `pl` × `pp`: tokens of all sequences a second
                          pp, speed_pp where pl is 1  prefill `pp`
    llama-bench           n_gen, n_depth, avg_ts      decode 1 × `n_depth`  (run it with -d 128,1024)
                          n_prompt, avg_ts            prefill `n_prompt`, of those at depth 0
"""
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from hamdam.engine import Figure, Workload

from ..traffic.load import Load
from .reports import ChatReport, EngineReport, ReportError, load, parse


def engine_figures(path: Path) -> list[Figure]:
    """Raises ReportError."""
    data = load(path)
    if b'"about"' in data[:100]:
        return [point.figure for point in parse(data, path, EngineReport).points]
    found = [figure for line in _objects(data, path) for figure in _llama(line)]
    if not found:
        raise ReportError(f"{path} holds no figures of decode or prefill")
    return found


def earlier_chat(path: Path, asked: Load) -> ChatReport:
    """An earlier `hamdam bench chat` of the same load. Raises ReportError."""
    report = parse(load(path), path, ChatReport)
    if report.load != asked:
        raise ReportError(f"{path} is of another load ({report.load.users} users × {report.load.turns} turns, …)")
    return report


def _objects(data: bytes, path: Path) -> list[dict[str, Any]]:
    """A JSON list, or the lines that are JSON objects: others are what a program logs."""
    try:
        if data.lstrip().startswith(b"["):
            return msgspec.json.decode(data, type=list[dict[str, Any]])
        lines = [line for line in data.splitlines() if line.startswith(b"{")]
        return [msgspec.json.decode(line, type=dict[str, Any]) for line in lines]
    except msgspec.MsgspecError as error:
        raise ReportError(f"{path} is no JSON that a bench writes: {error}") from error


def _llama(line: dict[str, Any]) -> Iterator[Figure]:
    match line:
        case {"pl": int(batch), "pp": int(context), "speed_tg": float(decoded), "speed_pp": float(computed)}:
            yield _figure(Workload(kind="decode", batch=batch, context=context), decoded)
            if batch == 1:
                yield _figure(Workload(kind="prefill", prompt=context), computed)
        case {"n_prompt": 0, "n_gen": int(), "n_depth": int(context), "avg_ts": float(decoded)}:
            yield _figure(Workload(kind="decode", batch=1, context=context), decoded)
        case {"n_prompt": int(prompt), "n_gen": 0, "n_depth": 0, "avg_ts": float(computed)}:
            yield _figure(Workload(kind="prefill", prompt=prompt), computed)


def _figure(workload: Workload, rate: float) -> Figure:
    return Figure(name=workload.name, value=rate, unit="tok/s", more_is_better=True)
