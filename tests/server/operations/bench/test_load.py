"""Load: every run is the same work but for its salt, which stands before anything that a server could have kept."""
import random
from itertools import pairwise

import pytest

from hamdam.server.operations.bench.traffic.load import Load


def test_two_runs_share_no_beginning_and_the_users_of_one_share_all_of_it() -> None:
    load = Load(system="Be brief. ", system_repeat=3)
    assert load.opening("a") == "[a] Be brief. Be brief. Be brief."
    assert load.opening("b")[:2] != load.opening("a")[:2]


def test_every_user_asks_another_first_question() -> None:
    load = Load(users=50)
    assert len({load.question(user, 0) for user in range(50)}) == 50
    assert load.question(0, 0) != load.question(0, 1)
    assert load.question(0, 1_000)


def test_all_come_at_once_unless_a_rate_is_said() -> None:
    assert list(Load(users=3).arrival_s()) == [0.0, 0.0, 0.0]


def test_arrivals_are_at_random_at_the_rate_and_the_same_every_time() -> None:
    load = Load(users=2_000, arrivals=4.0)
    arrivals = list(load.arrival_s())
    assert arrivals == list(load.arrival_s())
    assert arrivals == sorted(arrivals)
    gaps = [b - a for a, b in pairwise(arrivals)]
    assert sum(gaps) / len(gaps) == pytest.approx(0.25, rel=0.1)
    expected = random.Random(0)
    assert gaps[0] == pytest.approx(expected.expovariate(4.0))
