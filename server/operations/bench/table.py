"""Tables of a report for a terminal: plain text, columns aligned. It computes nothing."""
from collections.abc import Iterable, Sequence

from hamdam.engine import Point, Ratio

from .chat_run import ChatRun
from .reports import About, Against, ChatReport, EngineReport, KernelReport, Report


def report_text(report: Report) -> str:
    match report:
        case EngineReport():
            return engine_text(report)
        case ChatReport():
            return chat_text(report)
        case KernelReport():
            return kernel_text(report)


def engine_text(report: EngineReport) -> str:
    rows = [
        (p.workload.name, amount(p.rate.median), amount(p.rate.least), amount(p.step_ms.median),
         amount(p.step_ms.least), amount(p.step_ms.p95), amount(p.outside_ms.median), _tokens(p))
        for p in report.points
    ]
    head = ("", "tok/s", "worst", "step ms", "best", "p95", "policy ms", "tokens × repeats")
    return _joined(
        about_text(report.about), table(head, rows), "\n".join(f"{s.name}: skipped, {s.why}" for s in report.skipped),
        against_text(report.against), _interrupted(report),
    )


def chat_text(report: ChatReport) -> str:
    load = report.load
    turns = [turn.turn for turn in max((run.turns for run in report.runs), key=len, default=())]
    ttft = [f"TTFT {turn} p50 / p95" for turn in turns]
    head = ("ms", *ttft, "ITL p50 / p95 / p99", "tok/s", "cached", "answers", "failed")
    rows = [("ours", *_chat_row(run, len(turns))) for run in report.runs]
    for at, run in enumerate(report.their_runs):
        rows.insert(2 * at + 1, ("theirs", *_chat_row(run, len(turns))))
    rush = f"{load.arrivals:g} users a second" if load.arrivals else "all at once"
    asked = f"{load.users} users × {load.turns} turns, {rush}, {load.max_tokens} tokens an answer at most"
    errors = dict.fromkeys(error for run in (*report.runs, *report.their_runs) for error in run.errors)
    return _joined(
        about_text(report.about), f"{asked}\n{table(head, rows)}", "\n".join(f"failed: {error}" for error in errors),
        against_text(report.against), _interrupted(report),
    )


def kernel_text(report: KernelReport) -> str:
    rows = [
        (p.name, amount(p.ms.median * 1e3), amount(p.ms.least * 1e3), amount(p.bytes / p.ms.median / 1e6),
         amount(p.flops / p.ms.median / 1e6), f"{p.share:.0%}", p.bound)
        for p in report.points
    ]
    ceilings = [
        f"{c.source}: copies {c.bytes_per_s / 1e9:,.1f} GB/s, multiplies {c.flops_per_s / 1e9:,.0f} GFLOP/s"
        for c in report.ceilings
    ]
    head = ("", "µs", "best", "GB/s", "GFLOP/s", "of ceiling", "bound by")
    return _joined(about_text(report.about), "\n".join(ceilings), table(head, rows), _interrupted(report))


def about_text(about: About) -> str:
    threads = f", {about.threads} threads" if about.threads else ""
    machine = about.machine
    lines = [
        f"{about.model}: {about.description}{threads}",
        " · ".join((f"{machine.cpu}, {machine.cores} cores", f"torch {machine.torch}", _hamdam(about))),
    ]
    if machine.is_busy:
        lines.append(f"The machine was busy with other things ({machine.load:g} wanted a core): expect better without.")
    return "\n".join(lines)


def against_text(against: Against | None) -> str:
    if against is None:
        return ""
    if not against.ratios:
        return f"Nothing of {against.name} compares with this."
    how = "taken in turn" if against.alternating else "not taken in the same hour: a hint, no comparison"
    head = ("", "ours", "theirs", "", "times better", "range", "pairs")
    return f"Against {against.name}, {how}:\n" + table(head, [_ratio(ratio) for ratio in against.ratios])


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """The first column to the left, the others to the right; nothing where there are no rows."""
    lines = [tuple(head), *map(tuple, rows)]
    if len(lines) == 1:
        return ""
    widths = [max(len(line[column]) for line in lines) for column in range(len(head))]
    return "\n".join(
        "  ".join(text.ljust(width) if not column else text.rjust(width)
                  for column, (text, width) in enumerate(zip(line, widths, strict=True))).rstrip()
        for line in lines
    )


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


def _joined(*parts: str | None) -> str:
    return "\n\n".join(part for part in parts if part)


def _interrupted(report: Report) -> str:
    return "" if report.complete else "interrupted: the rest was not measured"


def _hamdam(about: About) -> str:
    return " ".join(filter(None, ("hamdam", about.version, about.commit)))


def _tokens(point: Point) -> str:
    counted = point.sampled if point.workload.kind == "decode" else point.computed
    return f"{counted:,} × {point.rate.count}"


def _ratio(ratio: Ratio) -> tuple[str, ...]:
    times = ratio.times
    return (ratio.name, amount(ratio.ours), amount(ratio.theirs), ratio.unit, f"{times.median:.2f} ×",
            f"{times.least:.2f}–{times.most:.2f}" if times.count > 1 else "", str(times.count))
