"""Ids sort by time and never repeat; times are exact to the microsecond."""
import re

import pytest

from hamdam.server.storage.clock import now_us, rfc3339
from hamdam.server.storage.ids import new_id


def test_ids_are_a_prefix_and_a_uuid_7_and_sort_by_time() -> None:
    ids = [new_id("conv") for _ in range(1000)]
    assert ids == sorted(set(ids))
    uuid7 = r"conv_[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}"
    assert all(re.fullmatch(uuid7, one) for one in ids)


@pytest.mark.parametrize(
    ("us", "said"),
    [
        (0, "1970-01-01T00:00:00.000000Z"),
        (1, "1970-01-01T00:00:00.000001Z"),
        (1_738_324_800_999_999, "2025-01-31T12:00:00.999999Z"),
        (253_402_300_799_999_999, "9999-12-31T23:59:59.999999Z"),
    ],
)
def test_times_are_said_in_utc_to_the_microsecond(us: int, said: str) -> None:
    assert rfc3339(us) == said


def test_now_is_in_microseconds() -> None:
    assert 1_700_000_000_000_000 < now_us() < 10_000_000_000_000_000
