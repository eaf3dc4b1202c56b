"""Tables: a report's figures as rows of short texts, the same for a terminal and for a page. It draws neither."""
from collections.abc import Iterator
from dataclasses import dataclass

from hamdam.engine import Point, Ratio

from ..traffic.chat_run import ChatRun
from .reports import About, Against, ChatReport, EngineReport, KernelReport


@dataclass(frozen=True, slots=True)
class Table:
    """The first column is what a row is about, the others are figures."""

    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


def about_lines(about: About) -> Iterator[str]:
    threads = f", threads: {about.threads}" if about.threads else ""
    asked = ", invariant" if about.options.get("invariant") and "invariant" not in about.description else ""
    yield f"{about.model}: {about.description}{asked}{threads}"
    machine = about.machine
    version = " ".join(filter(None, ("hamdam", about.version, about.commit)))
    yield f"{machine.cpu}, {machine.cores} cores · torch {machine.torch} · Python {machine.python} · {version}"


def busy_line(about: About) -> str:
    if not about.machine.is_busy:
        return ""
    load = f"load {about.machine.load:g} on {about.machine.cores} cores"
    return f"The machine was busy before this began ({load}): expect better without."


def changed_line(report: EngineReport) -> str:
    """Where not all was computed alike, which is what."""
    if all(point.description == report.about.description for point in report.points):
        return ""
    told = (f"{point.workload.name} in {point.description}" for point in report.points)
    return f"Not all was computed alike: {', '.join(told)}."


def engine_table(report: EngineReport) -> Table:
    head = ("", "tok/s", "worst", "step ms", "best", "p95", "policy ms", "tokens × repeats")
    return Table(head, tuple(
        (p.workload.name, amount(p.rate.median), amount(p.rate.least), amount(p.step_ms.median),
         amount(p.step_ms.least), amount(p.step_ms.p95), amount(p.outside_ms.median), _tokens(p))
        for p in report.points
    ))


def chat_table(report: ChatReport) -> Table:
    """A row a run; with a peer the two sides in the order they ran."""
    turns = max((len(run.turns) for run in (*report.runs, *report.their_runs)), default=0)
    ttft = (f"TTFT {turn + 1} p50 / p95" for turn in range(turns))
    rows = [("ours", *_chat_row(run, turns)) for run in report.runs]
    for number, run in enumerate(report.their_runs):
        rows.insert(2 * number + 1, ("theirs", *_chat_row(run, turns)))
    return Table(("ms", *ttft, "ITL p50 / p95 / p99", "tok/s", "cached", "answers", "failed"), tuple(rows))


def kernel_table(report: KernelReport, source: str) -> Table:
    head = ("", "µs", "best", "GB/s", "GFLOP/s", "of ceiling", "bound by")
    return Table(head, tuple(
        (p.name, amount(p.ms.median * 1e3), amount(p.ms.least * 1e3), amount(p.bytes / p.ms.median / 1e6),
         amount(p.flops / p.ms.median / 1e6), f"{p.share:.0%}", p.bound)
        for p in report.points if p.source == source
    ))


def phase_table(report: KernelReport) -> Table:
    """What a step is spent on, in % of the native call."""
    names = dict.fromkeys(name for phases in report.phases for name in phases.shares)
    steps = ("ms a step", *(amount(phases.step_ms.median) for phases in report.phases))
    return Table(("%", *(phases.workload for phases in report.phases)), (
        *((name, *(f"{100 * phases.shares.get(name, 0):.1f}" for phases in report.phases)) for name in names), steps,
    ))


def ratio_table(against: Against) -> Table:
    return Table(("", "ours", "theirs", "", "times better", "range", "pairs"), tuple(map(_ratio, against.ratios)))


def load_line(report: ChatReport) -> str:
    load = report.load
    rush = f"{load.arrivals:g} users a second" if load.arrivals else "all at once"
    length = f"{load.max_tokens} tokens an answer{'' if load.ignore_eos else ' at most'}"
    return f"{load.users} users × {load.turns} turns, {rush}, {load.think_s:g} s to think, {length}"


def against_line(against: Against) -> str:
    if not against.ratios:
        return f"Nothing of {against.name} compares with this."
    how = "taken in turn" if against.alternating else "not taken in the same hour: a hint, no comparison"
    return f"Against {against.name}, {how}. Above 1 ours is better."


def errors(report: ChatReport) -> list[str]:
    return list(dict.fromkeys(error for run in (*report.runs, *report.their_runs) for error in run.errors))


def amount(value: float) -> str:
    """Three figures are as many as a timing is good for."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def _chat_row(run: ChatRun, turns: int) -> tuple[str, ...]:
    ttft = [f"{amount(turn.ttft_ms.median)} / {amount(turn.ttft_ms.p95)}" for turn in run.turns]
    itl = run.itl_ms
    return (
        *ttft, *[""] * (turns - len(ttft)),
        f"{amount(itl.median)} / {amount(itl.p95)} / {amount(itl.p99)}" if itl else "",
        amount(run.output_rate), f"{run.cached_share:.0%}", str(run.answers), str(run.failed),
    )


def _tokens(point: Point) -> str:
    counted = point.sampled if point.workload.kind == "decode" else point.computed
    return f"{counted:,} × {point.rate.count}"


def _ratio(ratio: Ratio) -> tuple[str, ...]:
    times = ratio.times
    return (ratio.name, amount(ratio.ours), amount(ratio.theirs), ratio.unit, f"{times.median:.2f} ×",
            f"{times.least:.2f}–{times.most:.2f}" if times.count > 1 else "", str(times.count))
