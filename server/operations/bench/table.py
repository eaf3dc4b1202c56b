"""Tables of a report for a terminal: plain text, columns aligned. It computes nothing."""
from collections.abc import Iterable, Sequence

from hamdam.engine import Point, Ratio

from .reports import About, Against, EngineReport


def engine_text(report: EngineReport) -> str:
    rows = [
        (p.workload.name, amount(p.rate.median), amount(p.rate.least), amount(p.step_ms.median),
         amount(p.step_ms.least), amount(p.step_ms.p95), amount(p.outside_ms.median), _tokens(p))
        for p in report.points
    ]
    head = ("", "tok/s", "worst", "step ms", "best", "p95", "policy ms", "tokens × repeats")
    parts = [about_text(report.about), table(head, rows)]
    parts += [f"{skipped.name}: skipped, {skipped.why}" for skipped in report.skipped]
    if report.against:
        parts.append(against_text(report.against))
    if not report.complete:
        parts.append("interrupted: the rest was not measured")
    return "\n\n".join(part for part in parts if part)


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


def against_text(against: Against) -> str:
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


def _hamdam(about: About) -> str:
    return " ".join(filter(None, ("hamdam", about.version, about.commit)))


def _tokens(point: Point) -> str:
    counted = point.sampled if point.workload.kind == "decode" else point.computed
    return f"{counted:,} × {point.rate.count}"


def _ratio(ratio: Ratio) -> tuple[str, ...]:
    times = ratio.times
    return (ratio.name, amount(ratio.ours), amount(ratio.theirs), ratio.unit, f"{times.median:.2f} ×",
            f"{times.least:.2f}–{times.most:.2f}", str(times.count))
