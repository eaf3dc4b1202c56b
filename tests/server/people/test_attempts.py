"""Attempts: who guesses is slowed down, by account and by address, and nobody is locked out for good."""
import contextlib

import pytest
from starlette.requests import HTTPConnection

from hamdam.server.errors import ApiError
from hamdam.server.people.attempts import REMEMBERED, Attempts
from hamdam.server.people.visitor import address_of


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def allowed(attempts: Attempts, account: str, address: str, times: int) -> int:
    done = 0
    for _ in range(times):
        with contextlib.suppress(ApiError):
            attempts.take(account, address)
            done += 1
    return done


def test_five_guesses_a_minute_on_an_account_from_an_address() -> None:
    assert allowed(Attempts(Clock()), "ana", "10.0.0.1", 8) == 5


def test_an_address_cannot_try_all_accounts() -> None:
    attempts = Attempts(Clock())
    assert sum(allowed(attempts, f"user{i}", "10.0.0.1", 1) for i in range(100)) == 30


def test_an_account_cannot_be_tried_from_all_addresses() -> None:
    attempts = Attempts(Clock())
    assert sum(allowed(attempts, "ana", f"10.0.0.{i}", 1) for i in range(100)) == 20


def test_the_refusal_says_when_to_come_again_and_means_it() -> None:
    clock = Clock()
    attempts = Attempts(clock)
    assert allowed(attempts, "ana", "10.0.0.1", 5) == 5
    with pytest.raises(ApiError) as refused:
        attempts.take("ana", "10.0.0.1")
    assert refused.value.code == "rate_limit_exceeded"
    assert refused.value.retry_after_ms is not None
    assert 0 < refused.value.retry_after_ms <= 12_001
    clock.now += refused.value.retry_after_ms / 1000
    attempts.take("ana", "10.0.0.1")


def test_nobody_is_locked_out_for_good() -> None:
    clock = Clock()
    attempts = Attempts(clock)
    assert allowed(attempts, "ana", "10.0.0.1", 1000) == 5
    clock.now += 60
    assert allowed(attempts, "ana", "10.0.0.1", 1000) == 5


def test_who_knows_the_password_uses_nothing_up() -> None:
    attempts = Attempts(Clock())
    for _ in range(100):
        attempts.take("ana", "10.0.0.1")
        attempts.give_back("ana", "10.0.0.1")
    assert allowed(attempts, "ana", "10.0.0.1", 8) == 5


def test_a_refused_guess_uses_up_no_other_bucket() -> None:
    attempts = Attempts(Clock())
    allowed(attempts, "ana", "10.0.0.1", 100)
    assert allowed(attempts, "ben", "10.0.0.1", 5) == 5


def test_memory_is_bounded_whoever_comes() -> None:
    attempts = Attempts(Clock())
    for i in range(REMEMBERED):
        allowed(attempts, f"u{i}", f"10.0.{i}", 1)
    assert len(attempts._buckets) == REMEMBERED


@pytest.mark.parametrize(
    ("peer", "address"),
    [
        ("10.0.0.1", "10.0.0.1"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("2001:db8:1:2:ffff::1", "2001:db8:1:2::/64"),
        ("::ffff:10.0.0.1", "10.0.0.1"),
        ("fe80::1%eth0", "fe80::/64"),
        ("testclient", "testclient"),
    ],
)
def test_an_address_is_the_peer_s_own_and_a_subscriber_s_whole_network(peer: str, address: str) -> None:
    forged = [(name, b"198.51.100.1") for name in (b"x-forwarded-for", b"x-real-ip", b"forwarded")]
    assert address_of(HTTPConnection({"type": "http", "client": (peer, 1), "headers": forged})) == address
