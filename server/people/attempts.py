"""Attempts: how often somebody may guess a password. In memory, by time only; it never learns what was right.

Three buckets fill again evenly within a minute: an address on one account, an address on all accounts, and an account
from all addresses (who rotates addresses). Nobody is locked out for good, a bucket only slows down.
"""
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass

from ..errors import ApiError

PER_MINUTE = {"account and address": 5, "address": 30, "account": 20}
REMEMBERED = 20_000  # buckets; the one unused for longest is forgotten (it is full again after a minute anyway)


@dataclass(slots=True)
class Bucket:
    left: float
    at: float


class Attempts:
    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._buckets: OrderedDict[Hashable, Bucket] = OrderedDict()

    def take(self, account: str, address: str) -> None:
        """Count one guess, before it is looked at. Raises ApiError(rate_limit_exceeded) with the time to wait."""
        now = self._clock()
        buckets = [(self._bucket(key, limit, now), limit) for key, limit in self._keys(account, address)]
        wait = max((1 - bucket.left) * 60 / limit for bucket, limit in buckets)
        if wait > 0:
            raise ApiError("rate_limit_exceeded", "Too many attempts.", retry_after_ms=int(wait * 1000) + 1)
        for bucket, _ in buckets:
            bucket.left -= 1

    def give_back(self, account: str, address: str) -> None:
        """The guess was right: people who know their password use up nothing."""
        now = self._clock()
        for key, limit in self._keys(account, address):
            bucket = self._bucket(key, limit, now)
            bucket.left = min(limit, bucket.left + 1)

    def _keys(self, account: str, address: str) -> list[tuple[Hashable, int]]:
        named = {"account and address": (account, address), "address": address, "account": account}
        return [((kind, named[kind]), limit) for kind, limit in PER_MINUTE.items()]

    def _bucket(self, key: Hashable, limit: int, now: float) -> Bucket:
        bucket = self._buckets.setdefault(key, Bucket(limit, now))
        bucket.left = min(limit, bucket.left + (now - bucket.at) * limit / 60)
        bucket.at = now
        self._buckets.move_to_end(key)
        while len(self._buckets) > REMEMBERED:
            self._buckets.popitem(last=False)
        return bucket

