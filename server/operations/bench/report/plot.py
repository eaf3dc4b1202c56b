"""Plots as inline SVG: bars and lines, in the page's own colours. Given numbers and texts, they know no bench."""
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import floor, log10

from .markup import Markup, element, joined

WIDTH = 400  # units; the page shows it as wide as a phone or a column is
LABELS, FIGURES, ROW = 138, 62, 22  # left of the bars, right of them, and a bar's height with its gap
LONGEST = 22  # letters of a label that fit
LINE_HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 220, 44, 14, 14, 34


@dataclass(frozen=True, slots=True)
class Bar:
    label: str
    value: float
    text: str
    low: float | None = None  # a whisker from here
    high: float | None = None  # to here
    kind: str = "ours"  # its colour: ours | theirs | other


@dataclass(frozen=True, slots=True)
class Line:
    label: str
    values: Sequence[float | None]  # one for each place; None leaves a gap
    kind: str = "ours"
    dashed: bool = False


def bars(rows: Sequence[Bar], *, told: str, mark: float | None = None) -> Markup:
    """Lying bars from 0, one below the other; `mark` is a value that a line stands at. `told` is read out loud."""
    most = max((value for row in rows for value in (row.value, row.high or 0, mark or 0)), default=0) or 1
    scale = (WIDTH - LABELS - FIGURES) / most
    height = ROW * len(rows) + 4
    drawn = [part for number, row in enumerate(rows) for part in _bar(row, ROW * number + 2, scale)]
    if mark is not None:
        at = _place(LABELS + mark * scale)
        drawn.append(element("line", x1=at, x2=at, y1=0, y2=height, class_="mark"))
    return _svg(height, told, drawn)


def _bar(row: Bar, top: float, scale: float) -> Iterator[Markup]:
    middle = top + ROW / 2
    yield element("text", _cut(row.label), x=LABELS - 8, y=middle + 4, class_="label", text_anchor="end")
    yield element("rect", x=LABELS, y=top + 3, width=_place(max(row.value * scale, 1)), height=ROW - 6, rx=2,
                  class_=f"bar {row.kind}")
    if row.low is not None and row.high is not None:
        low, high = _place(LABELS + row.low * scale), _place(LABELS + row.high * scale)
        yield element("path", d=f"M{low} {middle}H{high}M{low} {middle - 4}v8M{high} {middle - 4}v8", class_="whisker")
    reach = LABELS + max(row.value, row.high or 0) * scale
    yield element("text", row.text, x=_place(reach + 6), y=middle + 4, class_="figure")


def lines(places: Sequence[str], series: Sequence[Line], *, told: str, across: str) -> Markup:
    """Values over places that stand evenly, from 0 up. `across` names what the places are."""
    most = _nice(max((value for line in series for value in line.values if value is not None), default=1))
    wide, tall = WIDTH - LEFT - RIGHT, LINE_HEIGHT - TOP - BOTTOM
    xs = [_place(LEFT + (wide * number / (len(places) - 1) if len(places) > 1 else wide / 2))
          for number in range(len(places))]

    def y(value: float) -> float:
        return _place(TOP + tall * (1 - value / most))

    drawn: list[Markup] = []
    for part in range(5):
        value = most * part / 4
        drawn.append(element("line", x1=LEFT, x2=WIDTH - RIGHT, y1=y(value), y2=y(value), class_="grid"))
        drawn.append(element("text", f"{value:,.10g}", x=LEFT - 6, y=y(value) + 4, class_="label", text_anchor="end"))
    for x, place in zip(xs, places, strict=True):
        drawn.append(element("text", place, x=x, y=LINE_HEIGHT - BOTTOM + 16, class_="label", text_anchor="middle"))
    drawn.append(element("text", across, x=LEFT + wide / 2, y=LINE_HEIGHT - 3, class_="label", text_anchor="middle"))
    for line in series:
        points = [(x, y(value), value) for x, value in zip(xs, line.values, strict=True) if value is not None]
        path = " ".join(f"{x},{height}" for x, height, _ in points)
        drawn.append(element("polyline", points=path, class_=f"line {line.kind}{' dashed' if line.dashed else ''}"))
        for x, height, value in points:
            drawn.append(element("g", element("title", f"{line.label}: {value:,.1f}"),
                                 element("circle", cx=x, cy=height, r=3.5, class_=f"dot {line.kind}")))
    return _svg(LINE_HEIGHT, told, drawn)


def legend(entries: Iterable[tuple[str, str]]) -> Markup:
    """(kind, label) of each colour."""
    shown = (element("span", element("i", class_=kind), label) for kind, label in entries)
    return element("p", *shown, class_="legend")


def _svg(height: float, told: str, drawn: Sequence[Markup]) -> Markup:
    return element("svg", joined(drawn), viewBox=f"0 0 {WIDTH} {height}", role="img", aria_label=told)


def _place(value: float) -> float:
    return round(value, 1)


def _cut(label: str) -> str:
    return label if len(label) <= LONGEST else f"{label[:LONGEST - 1]}…"


def _nice(most: float) -> float:
    """The next value above that a scale may end at, so that its quarters are short numbers."""
    if most <= 0:
        return 1.0
    unit = 10.0 ** floor(log10(most))
    return next(step for step in (1, 2, 4, 6, 8, 10) if step * unit >= most or step == 10) * unit
