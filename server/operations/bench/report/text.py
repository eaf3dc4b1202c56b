"""A report as text for a terminal. What stands in it is tables.py's."""
from collections.abc import Iterator

from .reports import ChatReport, EngineReport, KernelReport, Report
from .tables import (
    Table,
    about_lines,
    against_line,
    busy_line,
    changed_line,
    chat_table,
    engine_table,
    errors,
    kernel_table,
    load_line,
    phase_table,
    ratio_table,
)


def report_text(report: Report) -> str:
    return "\n\n".join(part for part in _parts(report) if part)


def _parts(report: Report) -> Iterator[str]:
    yield "\n".join([*about_lines(report.about), busy_line(report.about)]).strip()
    match report:
        case EngineReport():
            yield changed_line(report)
            yield drawn(engine_table(report))
            yield "\n".join(f"{skipped.name}: skipped, {skipped.why}" for skipped in report.skipped)
        case ChatReport():
            yield f"{load_line(report)}\n{drawn(chat_table(report))}"
            yield "\n".join(f"failed: {error}" for error in errors(report))
        case KernelReport():
            for ceiling in report.ceilings:
                yield f"{ceiling.text}\n{drawn(kernel_table(report, ceiling.source))}"
            if report.phases:
                yield f"whole steps, {report.phases[0].description}\n{drawn(phase_table(report))}"
    if not isinstance(report, KernelReport) and report.against:
        yield f"{against_line(report.against)}\n{drawn(ratio_table(report.against))}".strip()
    if not report.complete:
        yield "interrupted: the rest was not measured"


def drawn(table: Table) -> str:
    """The first column to the left, the others to the right; nothing where there are no rows."""
    if not table.rows:
        return ""
    lines = (table.head, *table.rows)
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(
        "  ".join(text.rjust(width) if column else text.ljust(width)
                  for column, (text, width) in enumerate(zip(line, widths, strict=True))).rstrip()
        for line in lines
    )
