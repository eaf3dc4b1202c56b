"""Pairing: a ratio for each pair and the median of them; above 1 ours is better, whichever way the figure goes."""
from hamdam.engine.bench.pairing import Figure, ratios


def rate(value: float, name: str = "output") -> Figure:
    return Figure(name=name, value=value, unit="tok/s", more_is_better=True)


def wait(value: float) -> Figure:
    return Figure(name="TTFT", value=value, unit="ms", more_is_better=False)


def test_the_ratio_is_the_median_over_the_pairs_and_not_of_the_medians() -> None:
    pairs = [([rate(100)], [rate(10)]), ([rate(20)], [rate(20)]), ([rate(60)], [rate(30)])]
    (found,) = ratios(pairs)
    assert (found.ours, found.theirs) == (60, 20)
    assert (found.times.least, found.times.median, found.times.most, found.times.count) == (1, 2, 10, 3)


def test_less_is_better_where_time_is_measured() -> None:
    (found,) = ratios([([wait(50)], [wait(200)])])
    assert (found.ours, found.theirs, found.times.median, found.unit) == (50, 200, 4, "ms")


def test_what_one_side_lacks_or_has_as_nothing_is_left_out() -> None:
    ours, theirs = [rate(5, "a"), rate(5, "b"), rate(0, "c"), rate(5, "d")], [rate(5, "a"), rate(5, "c"), rate(0, "d")]
    assert [found.name for found in ratios([(ours, theirs)])] == ["a"]


def test_a_figure_that_came_in_some_pairs_is_compared_in_those() -> None:
    (found,) = ratios([([rate(4)], [rate(2)]), ([rate(9)], [])])
    assert (found.times.count, found.ours) == (1, 4)


def test_no_pairs_are_no_ratios() -> None:
    assert ratios([]) == []
