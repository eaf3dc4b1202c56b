"""Rates: time is given, nobody waits."""
from hamdam.server.chat.rate import REMEMBERED, Failures, Rate


def test_a_burst_is_taken_and_then_as_many_as_fill_again() -> None:
    rate = Rate(30, 60)
    assert [rate.take(0.0) for _ in range(60)] == [0.0] * 60
    assert rate.take(0.0) > 0
    assert [rate.take(1.0) for _ in range(30)] == [0.0] * 30
    assert rate.take(1.0) > 0


def test_a_peer_that_insists_is_known_by_how_long_it_does() -> None:
    rate = Rate(1, 1)
    times = [step / 10 for step in range(101)]
    for now in times:
        rate.take(now)
    assert rate.insisting(10.0) > 9.0
    rate.take(30.0)
    rate.take(30.0)
    assert rate.insisting(30.0) == 0.0


def test_a_peer_that_waits_as_told_never_insists() -> None:
    rate = Rate(2, 1)
    now = 0.0
    for _ in range(100):
        now += rate.take(now) + 1e-9
        assert rate.insisting(now) < 1.0 or rate.take(now) == 0.0


def test_failures_are_counted_by_address_and_forgotten_after_a_minute() -> None:
    failures = Failures(2)
    for now in (0.0, 1.0):
        assert failures.wait("a", now) == 0.0
        failures.note("a", now)
    assert failures.wait("a", 2.0) == 58.0
    assert failures.wait("b", 2.0) == 0.0
    assert failures.wait("a", 60.5) == 0.0


def test_addresses_that_are_remembered_are_bounded() -> None:
    failures = Failures(1)
    for number in range(REMEMBERED + 10):
        failures.note(str(number), 0.0)
    assert failures.wait("0", 0.1) == 0.0
    assert failures.wait(str(REMEMBERED + 9), 0.1) > 0
