"""A report as one HTML file that needs nothing else: plots and tables, on a phone as on a desk. It measures nothing."""
from collections.abc import Iterator, Mapping, Sequence

from hamdam.engine import Ratio

from ..traffic.chat_run import ChatRun, medians
from .markup import Markup, element, joined
from .page_style import STYLE
from .plot import Bar, Line, bars, legend, lines
from .reports import Against, ChatReport, EngineReport, KernelReport, Report
from .tables import (
    Table,
    about_lines,
    against_line,
    amount,
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


def page(report: Report) -> bytes:
    match report:
        case EngineReport():
            body = _engine(report)
        case ChatReport():
            body = _chat(report)
        case KernelReport():
            body = _kernels(report)
    return b"<!doctype html>\n" + _document(report, joined(body)).encode()


def _document(report: Report, body: Markup) -> Markup:
    about = report.about
    title = f"hamdam bench {about.kind}"
    warnings = [busy_line(about), "" if report.complete else "Interrupted: the rest was not measured.",
                changed_line(report) if isinstance(report, EngineReport) else ""]
    return element(
        "html",
        element(
            "head", element("meta", charset="utf-8"),
            element("meta", name="viewport", content="width=device-width, initial-scale=1"),
            element("title", f"{title}: {about.model}"), element("style", Markup(STYLE)),
        ),
        element(
            "body", element("h1", title),
            *(element("p", line, class_="soft") for line in (*about_lines(about), about.at)),
            *(element("p", warning, class_="warning") for warning in warnings if warning),
            element("main", body),
        ),
        lang="en",
    )


# --- the three kinds ---


def _engine(report: EngineReport) -> Iterator[Markup]:
    theirs = {ratio.name: ratio.theirs for ratio in report.against.ratios} if report.against else {}
    points = {point.workload.name: point for point in report.points}
    decoding = [point.workload for point in report.points if point.workload.kind == "decode"]
    for context in dict.fromkeys(workload.context for workload in decoding):
        names = {str(w.batch): w.name for w in decoding if w.context == context}
        drawn = [Line("ours", [points[name].rate.median for name in names.values()])]
        if any(name in theirs for name in names.values()):
            drawn.append(Line("theirs", [theirs.get(name) for name in names.values()], "theirs", dashed=True))
        title = f"Decode after {context:,} tokens"
        chart = lines(list(names), drawn, told=f"{title}: tokens a second by batch", across="sequences at once")
        yield _section(title, _figure(chart, "tokens a second, all sequences together", _sides(bool(drawn[1:]))))
    whole = [point for point in report.points if point.workload.kind != "decode"]
    if whole:
        rows = [row for p in whole for row in _pair(p.workload.name, p.rate.median, theirs.get(p.workload.name))]
        note = "tokens a second that went through the model"
        yield _section("Prompts", _figure(bars(rows, told=note), note, _sides(len(rows) > len(whole))))
    if points:
        steps = [Bar(name, p.step_ms.median, f"{amount(p.step_ms.median)} ms", p.step_ms.least, p.step_ms.p95)
                 for name, p in points.items()]
        note = "median of a step, from the best to p95"
        yield _section("Steps", _figure(bars(steps, told=note), note))
    yield from _against(report.against)
    yield _section("All figures", _table(engine_table(report)), *(
        element("p", f"{skipped.name}: skipped, {skipped.why}", class_="soft") for skipped in report.skipped
    ), wide=True)


def _chat(report: ChatReport) -> Iterator[Markup]:
    sides: list[tuple[str, Sequence[ChatRun]]] = [("ours", report.runs), ("theirs", report.their_runs)]
    figures = {side: {figure.name: figure.value for figure in medians(runs)} for side, runs in sides}
    both = bool(report.their_runs)
    turns = range(1, max((len(run.turns) for run in report.runs), default=0) + 1)
    ttft = [bar for turn in turns for side, mine in figures.items() for bar in _ttft(turn, side, mine)]
    if ttft:
        chart = bars(ttft, told="time to the first text, by turn")
        yield _section("Time to the first text", _figure(chart, "p50, and the line to p95, in ms", _sides(both)))
    gaps = [
        Bar(name if side == "ours" else "", mine[name], f"{amount(mine[name])} ms", kind=side)
        for name in ("ITL p50", "ITL mean", "ITL p99") for side, mine in figures.items() if name in mine
    ]
    if gaps:
        yield _section("Between two pieces", _figure(bars(gaps, told="ITL"), "milliseconds", _sides(both)))
    rates = [Bar(f"run {number}" if side == "ours" else "", run.output_rate, amount(run.output_rate), kind=side)
             for number, pair in enumerate(_in_turn(report), 1) for side, run in pair]
    if rates:
        yield _section("Output", _figure(bars(rates, told="output"), "answer tokens a second", _sides(both)))
    yield from _against(report.against)
    yield _section("All runs", element("p", load_line(report), class_="soft"), _table(chat_table(report)), *(
        element("p", f"failed: {error}", class_="warning") for error in errors(report)
    ), wide=True)


def _kernels(report: KernelReport) -> Iterator[Markup]:
    for ceiling in report.ceilings:
        rows = [Bar(p.name, p.share, f"{p.share:.0%}", kind="ours" if p.bound == "memory" else "other")
                for p in report.points if p.source == ceiling.source]
        note = "of the time that bytes or arithmetic take at the ceiling"
        colours = legend([("ours", "bound by memory"), ("other", "bound by arithmetic")])
        yield _section(ceiling.source, _figure(bars(rows, told=note, mark=1.0), note, colours))
        yield _section("All figures", element("p", ceiling.text, class_="soft"),
                       _table(kernel_table(report, ceiling.source)))
    if report.phases:
        yield _section("Whole steps", element("p", report.phases[0].description, class_="soft"),
                       _table(phase_table(report)))


def _against(against: Against | None) -> Iterator[Markup]:
    if against is None:
        return
    note = element("p", against_line(against), class_="soft")
    if not against.ratios:
        yield _section("Against a peer", note)
        return
    chart = bars([_times(ratio) for ratio in against.ratios], told="times better than the peer", mark=1.0)
    yield _section("Against a peer", note, _figure(chart, "times better; the dashed line is as good"))
    yield _section("Ratios", _table(ratio_table(against)))


# --- pieces ---


def _ttft(turn: int, side: str, figures: Mapping[str, float]) -> Iterator[Bar]:
    half, most = figures.get(f"TTFT turn {turn} p50"), figures.get(f"TTFT turn {turn} p95")
    if half is not None and most is not None:
        label = f"turn {turn}" if side == "ours" else ""
        yield Bar(label, half, f"{amount(half)} / {amount(most)}", half, most, side)


def _times(ratio: Ratio) -> Bar:
    times = ratio.times
    whisker = (times.least, times.most) if times.count > 1 else (None, None)
    return Bar(ratio.name, times.median, f"{times.median:.2f} ×", *whisker)


def _pair(label: str, ours: float, theirs: float | None) -> Iterator[Bar]:
    yield Bar(label, ours, amount(ours))
    if theirs is not None:
        yield Bar("", theirs, amount(theirs), kind="theirs")


def _in_turn(report: ChatReport) -> Iterator[list[tuple[str, ChatRun]]]:
    for number, run in enumerate(report.runs):
        yield [("ours", run), *(("theirs", theirs) for theirs in report.their_runs[number : number + 1])]


def _sides(both: bool) -> Markup:
    return legend([("ours", "ours"), ("theirs", "theirs")]) if both else Markup()


def _section(title: str, *content: str, wide: bool = False) -> Markup:
    return element("section", element("h2", title), *content, class_="wide" if wide else None)


def _figure(chart: Markup, caption: str, colours: Markup = Markup()) -> Markup:
    return element("figure", colours, chart, element("figcaption", caption))


def _table(table: Table) -> Markup:
    if not table.rows:
        return element("p", "Nothing was measured.", class_="soft")
    head = element("tr", *(element("th", text) for text in table.head))
    rows = (element("tr", *(element("td", text) for text in row)) for row in table.rows)
    return element("div", element("table", element("thead", head), element("tbody", *rows)), class_="scroll")
