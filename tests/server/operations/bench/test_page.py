"""The page of a report: whole, quiet and safe, whatever a model, a peer or an error is called; and its plots."""
import re
from dataclasses import replace
from html.parser import HTMLParser

import pytest
from bench_reports import against, chat_report, engine_report, every_report, made_about, made_run

from hamdam.server.operations.bench.report.markup import Markup, element
from hamdam.server.operations.bench.report.page import page
from hamdam.server.operations.bench.report.plot import Bar, Line, bars, lines
from hamdam.server.operations.bench.report.reports import EngineReport
from hamdam.server.operations.bench.report.text import report_text

EVIL = """<script>alert("1")</script><img src=x onerror='alert(2)'> & </style>"""
VOID = {"meta"}


class Reader(HTMLParser):
    """Notes every element, and that each is closed where it should be."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(page)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open[-1:] != ["style"]:
            self.text += data


@pytest.mark.parametrize("report", every_report(), ids=lambda report: type(report).__name__)
def test_a_page_is_well_formed_and_needs_nothing_from_elsewhere(report) -> None:
    found = Reader(page(report).decode())
    tags = {tag for tag, _ in found.seen}
    assert not tags & {"script", "link", "img", "iframe", "object", "form"}
    said = [(name, value) for _, attributes in found.seen for name, value in attributes.items()]
    assert not [name for name, _ in said if name in ("src", "href", "style") or name.startswith("on")]
    assert "url(" not in page(report).decode()
    assert "@import" not in page(report).decode()
    assert report.about.model in found.text
    assert ("Interrupted" in found.text) is not report.complete


def test_no_name_and_no_error_can_break_into_the_page() -> None:
    reports = [
        EngineReport(about=made_about("engine", model=EVIL), points=engine_report().points, against=against(EVIL)),
        chat_report(runs=(made_run(errors=[EVIL]),), against=against(EVIL)),
    ]
    for report in reports:
        text = page(report).decode()
        assert "<script" not in text
        assert "<img" not in text
        assert EVIL in Reader(text).text


def test_plain_text_is_escaped_and_only_markup_is_not() -> None:
    made = element("p", "a < b", element("b", '"'), Markup("<i>x</i>"), class_="a", data_x='"<&>"', hidden=None)
    assert made == '<p class="a" data-x="&quot;&lt;&amp;&gt;&quot;">a &lt; b<b>&quot;</b><i>x</i></p>'
    assert element("p", str(Markup("<b>")) + "") == "<p>&lt;b&gt;</p>", "what was joined as text is text"


def test_bars_are_as_long_as_their_values() -> None:
    drawn = bars([Bar("a", 10, "ten"), Bar("b", 5, "five"), Bar("c", 0, "none")], told="t", mark=5)
    widths = [float(width) for width in re.findall(r'<rect[^>]* width="([\d.]+)"', drawn)]
    assert widths[0] == pytest.approx(2 * widths[1])
    assert widths[2] == 1
    at = float(re.search(r'<line x1="([\d.]+)"', drawn)[1])
    left = float(re.search(r'<rect x="([\d.]+)"', drawn)[1])
    assert at - left == pytest.approx(widths[1])


def test_lines_leave_a_gap_where_a_value_is_missing() -> None:
    drawn = lines(["1", "4", "16"], [Line("ours", [1.0, None, 3.0])], told="t", across="batch")
    assert drawn.count("<circle") == 2
    points = re.search(r'points="([^"]+)"', drawn)[1].split()
    heights = [float(point.split(",")[1]) for point in points]
    assert heights[0] > heights[1], "more is higher"


@pytest.mark.parametrize("most", [0.0, 0.003, 1.0, 9.99, 10.0, 2150.0, 123456.0])
def test_a_plot_of_any_size_stays_inside_its_frame(most: float) -> None:
    for drawn in (bars([Bar("a", most, "x")], told="t"), lines(["1"], [Line("a", [most])], told="t", across="b")):
        width, height = map(float, re.search(r'viewBox="0 0 (\d+) (\d+)"', drawn).groups())
        assert all(0 <= float(x) <= width for x in re.findall(r' (?:x|x1|x2|cx|width)="([\d.]+)"', drawn))
        assert all(0 <= float(y) <= height for y in re.findall(r' (?:y|y1|y2|cy|height)="([\d.]+)"', drawn))


@pytest.mark.parametrize("report", every_report(), ids=lambda report: type(report).__name__)
def test_the_terminal_says_the_same_and_no_line_ends_in_spaces(report) -> None:
    text = report_text(report)
    assert report.about.model in text
    assert ("interrupted" in text) is not report.complete
    assert all(line == line.rstrip() for line in text.splitlines())
    if isinstance(report, EngineReport):
        assert all(point.workload.name in text for point in report.points)


def test_a_hint_is_not_called_a_comparison() -> None:
    hint = report_text(engine_report(against=against(alternating=False)))
    assert "not taken in the same hour: a hint, no comparison" in hint
    turned = report_text(engine_report(against=against()))
    assert "taken in turn" in turned
    assert re.search(r"decode 4 × 128 +400 +200 +tok/s +2\.00 × +1\.50–2\.20 +3", turned)


def test_what_was_not_computed_alike_is_told() -> None:
    first, *others = engine_report().points
    mixed = engine_report()
    mixed = replace(mixed, points=(replace(first, description="PyTorch"), *others))
    for text in (report_text(mixed), page(mixed).decode()):
        assert "Not all was computed alike: decode 1 × 128 in PyTorch" in text
    assert "alike" not in report_text(engine_report())


def test_a_busy_machine_is_told_of() -> None:
    busy = EngineReport(about=made_about("engine", load=1.5))
    assert "The machine was busy" in report_text(busy)
    assert "The machine was busy" in page(busy).decode()
    assert "The machine was busy" not in report_text(EngineReport(about=made_about("engine", load=1.0)))
