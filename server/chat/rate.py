"""Rate: how many events a socket, and how many failed handshakes an address, may send. Time is an argument."""
from collections import OrderedDict, deque

REMEMBERED = 10_000  # addresses; the one unused for longest is forgotten


class Rate:
    """A bucket of `burst` events that fills with `per_second`; and for how long a peer has wanted more than that."""

    def __init__(self, per_second: int, burst: int) -> None:
        self._per_second, self._burst = per_second, burst
        self._left, self._at = float(burst), float("-inf")
        self._refused_since = self._refused_at = float("-inf")

    def take(self, now: float) -> float:
        """0.0, or the seconds until the next event is taken."""
        self._left = min(self._burst, self._left + (now - self._at) * self._per_second)
        self._at = now
        if self._left >= 1:
            self._left -= 1
            return 0.0
        if now - self._refused_at > 1:  # a second without a refusal: the peer had understood
            self._refused_since = now
        self._refused_at = now
        return (1 - self._left) / self._per_second

    def left(self, now: float) -> tuple[int, float]:
        """How many events would be taken now, and the seconds until it is a whole burst."""
        left = min(self._burst, self._left + (now - self._at) * self._per_second)
        return int(left), (self._burst - left) / self._per_second

    def insisting(self, now: float) -> float:
        """Seconds for which the peer has gone on although it was refused."""
        return now - self._refused_since if now - self._refused_at <= 1 else 0.0


class Failures:
    """Failed handshakes of each address within the last minute."""

    def __init__(self, per_minute: int) -> None:
        self._per_minute = per_minute
        self._of: OrderedDict[str, deque[float]] = OrderedDict()

    def wait(self, address: str, now: float) -> float:
        """Seconds until this address may fail again; 0.0 where it may now."""
        times = self._of.get(address, deque())
        while times and times[0] <= now - 60:
            times.popleft()
        return times[0] + 60 - now if len(times) >= self._per_minute else 0.0

    def note(self, address: str, now: float) -> None:
        self._of.setdefault(address, deque(maxlen=self._per_minute)).append(now)
        self._of.move_to_end(address)
        while len(self._of) > REMEMBERED:
            self._of.popitem(last=False)
