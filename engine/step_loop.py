"""StepLoop: the engine's thread. It obeys orders, schedules, runs, updates, and tells what came of it. No event loop.

What it may be ordered and what it tells are the dataclasses below; they cross in crossing.py and nowhere else. Idle, it
sleeps on its orders and costs nothing.
"""
import logging
import threading
import time
from dataclasses import dataclass, replace

from .crossing import Crossing
from .events import EngineStats
from .policy.batch import Runner
from .policy.progress import Progress
from .policy.scheduler import Scheduler
from .policy.sequence import Sequence

log = logging.getLogger("hamdam.engine")
PLACES_EVERY = 0.5  # seconds between two tellings of queue places
NOTHING_FITS = 0.05  # seconds to sleep if nobody can advance: policy rules it out, but must not spin if it errs
CHECK_EVERY = 10.0  # seconds between two looks, in idle moments, at whether all adds up; of a large pool it takes time
STALLED_AFTER = 30.0  # seconds without a finished step, while there is work


@dataclass(frozen=True, slots=True)
class Add:
    sequence: Sequence


@dataclass(frozen=True, slots=True)
class Cancel:
    sequence_id: int
    keep: int | None  # generated tokens that count


@dataclass(frozen=True, slots=True)
class CloseSession:
    session_id: str


@dataclass(frozen=True, slots=True)
class Stop:
    pass


@dataclass(frozen=True, slots=True)
class Places:
    """The waiting sequences, next to be taken first."""

    sequence_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Died:
    why: str


Order = Add | Cancel | CloseSession | Stop
Fact = Progress | Places | Died


class StepLoop:
    """`start` it once with the crossing it obeys and tells; `stop` waits for the step that runs."""

    def __init__(self, scheduler: Scheduler, runner: Runner) -> None:
        self.scheduler, self.runner = scheduler, runner
        self.fault: str | None = None  # why it died
        self._crossing: Crossing[Fact, Order] | None = None
        self._thread: threading.Thread | None = None
        self._steps = 0
        self._stats = scheduler.stats()
        self._last_step = time.monotonic()
        self._last_places = 0.0
        self._last_check = -CHECK_EVERY

    def start(self, crossing: Crossing[Fact, Order]) -> None:
        self._crossing = crossing
        self._thread = threading.Thread(target=self._run, args=(crossing,), name="hamdam-engine", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Idempotent."""
        if self._crossing and self._thread and self._thread.is_alive():
            self._crossing.order(Stop())
            self._thread.join()

    def stats(self) -> EngineStats:
        """From any thread, without waiting: the state after the last finished step."""
        stats, age = self._stats, time.monotonic() - self._last_step
        if self.fault is not None:
            return replace(stats, state="dead", last_step_age=age)
        stalled = stats.state != "idle" and age > STALLED_AFTER
        return replace(stats, state="stalled" if stalled else stats.state, last_step_age=age)

    # On the engine's thread ------------------------------------------------------------------------------------------

    def _run(self, crossing: Crossing[Fact, Order]) -> None:
        try:
            patience: float | None = None  # idle: sleep until there is an order
            while self._obey(crossing.orders(patience)):
                patience = self._step(crossing)
        except Exception as fault:
            log.critical("the engine's step loop died", exc_info=fault)
            self.fault = f"the engine died: {type(fault).__name__}: {fault}"
            crossing.tell([Died(self.fault)])
        finally:
            self.runner.close()

    def _step(self, crossing: Crossing[Fact, Order]) -> float | None:
        """Schedule, run, update: one token for everybody who decodes, and a piece of somebody's prompt.

        Returns how long the thread may sleep before the next one: not at all, or without end where there is no work.
        """
        now = time.monotonic()
        batch = self.scheduler.schedule(now)
        progress = self.scheduler.update(batch, self.runner.run(batch), time.monotonic()) if batch.rows else []
        if not self.scheduler.has_work and now - self._last_check >= CHECK_EVERY:
            self.scheduler.check_integrity()
            self._last_check = now
        self._steps += bool(batch.rows)
        self._last_step = time.monotonic()
        self._stats = self.scheduler.stats(self._steps)  # before anybody hears of the step: who hears may look
        crossing.tell([*progress, *self._places(now)])
        if not self.scheduler.has_work:
            return None
        return 0.0 if batch.rows else NOTHING_FITS

    def _obey(self, orders: list[Order]) -> bool:
        for order in orders:
            match order:
                case Add(sequence=sequence):
                    self.scheduler.add(sequence, time.monotonic())
                case Cancel(sequence_id=sequence_id, keep=keep):
                    self.scheduler.cancel(sequence_id, keep)
                case CloseSession(session_id=session_id):
                    self.scheduler.close_session(session_id)
                case Stop():
                    return False
        return True

    def _places(self, now: float) -> list[Places]:
        """Once in a while, who waits where; never when nobody waits."""
        if now - self._last_places < PLACES_EVERY or not self.scheduler.num_waiting:
            return []
        self._last_places = now
        return [Places(tuple(self.scheduler.waiting_ids()))]
