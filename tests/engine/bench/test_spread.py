"""Spread: quantiles by proportion between neighbours, and nothing made up where nothing was measured."""
import random

import numpy as np
import pytest

from hamdam.engine.bench.spread import Spread, quantile


def test_the_quantiles_are_those_of_numpy() -> None:
    chance = random.Random(1)
    for count in (1, 2, 3, 10, 101):
        values = [chance.expovariate(1) for _ in range(count)]
        spread = Spread.of(values)
        assert (spread.count, spread.least, spread.most) == (count, min(values), max(values))
        assert spread.mean == pytest.approx(np.mean(values))
        for found, share in ((spread.median, 0.5), (spread.p95, 0.95), (spread.p99, 0.99)):
            assert found == pytest.approx(np.quantile(values, share))


def test_the_order_of_values_does_not_matter() -> None:
    assert Spread.of([3.0, 1.0, 2.0]) == Spread.of([1.0, 2.0, 3.0])


def test_the_ends_are_the_least_and_the_most() -> None:
    assert [quantile([1.0, 2.0, 4.0], share) for share in (0, 0.25, 0.5, 0.75, 1)] == [1, 1.5, 2, 3, 4]


def test_nothing_measured_is_no_figure() -> None:
    with pytest.raises(ValueError, match="nothing was measured"):
        Spread.of([])
