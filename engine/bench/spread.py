"""Spread: what is told of many timings of one thing. Not the timings themselves."""
from collections.abc import Sequence
from dataclasses import dataclass
from math import floor, fsum


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """Of `count` values. The median is the figure to quote; the others say how far to trust it."""

    count: int
    least: float
    mean: float
    median: float
    p95: float
    p99: float
    most: float

    @classmethod
    def of(cls, values: Sequence[float]) -> "Spread":
        """ValueError where there are none: a figure that was not measured is not made up."""
        if not values:
            raise ValueError("nothing was measured")
        ordered = sorted(values)
        return cls(
            count=len(ordered), least=ordered[0], mean=fsum(ordered) / len(ordered), median=quantile(ordered, 0.5),
            p95=quantile(ordered, 0.95), p99=quantile(ordered, 0.99), most=ordered[-1],
        )


def quantile(ordered: Sequence[float], share: float) -> float:
    """What `share` of the ascending values lie below; between two of them by proportion (Hyndman and Fan's type 7)."""
    place = share * (len(ordered) - 1)
    below = min(floor(place), len(ordered) - 2)
    if below < 0:
        return ordered[0]
    return ordered[below] + (place - below) * (ordered[below + 1] - ordered[below])
