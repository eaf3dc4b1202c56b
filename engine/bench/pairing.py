"""Pairing: two sides measured in turn, and the ratios between them. It measures nothing itself.

A machine is faster in one minute than in the next, so two figures are compared only where they were taken one right
after the other: A B A B A B, a ratio for each pair, and the median of the ratios. Every ratio says how many times
better *ours* is, whether more of it is better (tok/s) or less (ms).
"""
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from .spread import Spread

PAIRS = 3  # at least


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One number of one run, under the name it is compared by."""

    name: str
    value: float
    unit: str
    more_is_better: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Ratio:
    name: str
    unit: str
    ours: float  # the median of our runs
    theirs: float
    times: Spread  # how many times better ours is, over the pairs


def ratios(pairs: Sequence[tuple[Iterable[Figure], Iterable[Figure]]]) -> list[Ratio]:
    """(ours, theirs) of each pair. What one side does not have in any of its runs, or has as 0, is left out."""
    names: dict[str, Figure] = {}
    values: dict[str, list[tuple[float, float]]] = {}
    for ours, theirs in pairs:
        other = {figure.name: figure.value for figure in theirs}
        for figure in ours:
            if figure.value > 0 and other.get(figure.name, 0) > 0:
                names.setdefault(figure.name, figure)
                values.setdefault(figure.name, []).append((figure.value, other[figure.name]))
    return [_ratio(figure, values[name]) for name, figure in names.items()]


def _ratio(figure: Figure, pairs: list[tuple[float, float]]) -> Ratio:
    return Ratio(
        name=figure.name, unit=figure.unit,
        ours=Spread.of([ours for ours, _ in pairs]).median,
        theirs=Spread.of([theirs for _, theirs in pairs]).median,
        times=Spread.of([ours / theirs if figure.more_is_better else theirs / ours for ours, theirs in pairs]),
    )
