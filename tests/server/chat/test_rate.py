"""Rates: time is given, nobody waits."""
from world import World, in_world

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


def test_what_is_left_fills_again() -> None:
    rate = Rate(30, 60)
    assert rate.left(0.0) == (60, 0.0)
    for _ in range(60):
        rate.take(0.0)
    assert rate.left(0.0) == (0, 2.0)
    assert rate.left(0.5) == (15, 1.5)


@in_world(gate=True)
async def test_who_asks_is_told_what_is_left(world: World) -> None:
    async with world.client(await world.key("ana")) as ana, world.client(await world.key("ana")) as other:
        for running in (1, 2):
            await ana.start(f"say {running}")
        await ana.send(type="ping", t=1)
        await ana.until("pong")
        told = [event for event in ana.log if event["type"] == "rate_limits.updated"]
        assert [limits["in_reply_to"] for limits in told] == [run.client_id for run in ana.runs.values()]
        events, responses = told[-1]["rate_limits"]
        assert responses == {"name": "responses", "limit": 6, "remaining": 4}
        assert (events["name"], events["limit"]) == ("events", 60)
        assert events["remaining"] in (58, 59, 60)
        await other.send(type="ping", t=1)
        await other.until("pong")
        assert not [event for event in other.log if event["type"] == "rate_limits.updated"]
    async with world.client(await world.key("ana", service=True)) as back_end:
        await back_end.start("say three")
        await back_end.send(type="ping", t=1)
        await back_end.until("pong")
        (told,) = [event for event in back_end.log if event["type"] == "rate_limits.updated"]
        assert [limit["name"] for limit in told["rate_limits"]] == ["events"]
