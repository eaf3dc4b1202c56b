"""The clock of what is stored: whole microseconds since 1970, UTC. Not for measuring: it may jump."""
import time
from datetime import UTC, datetime, timedelta

SECOND = 1_000_000  # microseconds
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def now_us() -> int:
    return time.time_ns() // 1000


def rfc3339(us: int) -> str:
    """`2025-01-31T12:00:00.000001Z`: integers all the way, a float would round the microseconds."""
    return (EPOCH + timedelta(microseconds=us)).isoformat(timespec="microseconds").replace("+00:00", "Z")
