"""Engine: the front door and the step loop. It knows no HTTP, no user and no database.

Policy is engine/policy, arithmetic is the runner's; what is here brings the two together, step by step.

Two threads. The event loop calls `submit`, `warm`, `close_session`, `stats`; the engine's thread steps. They meet in
text/stream.py and nowhere else. Idle, the thread sleeps on its orders and costs nothing.
"""
import asyncio
import logging
import secrets
import threading
import time
from collections import Counter
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any
from weakref import WeakValueDictionary

from .chat import Chat, Owner
from .config import EngineConfig
from .errors import EngineStopped, InvalidField, PromptTooLong, QueueFull, Refusal, TooManyInFlight
from .events import EngineStats
from .generation import Generation
from .policy.batch import Runner
from .policy.progress import Progress
from .policy.sampling_params import SamplingParams
from .policy.scheduler import Scheduler
from .policy.sequence import Sequence
from .text.codec import Codec
from .text.stream import Crossing

log = logging.getLogger("hamdam.engine")
PLACES_EVERY = 0.5  # seconds between two tellings of queue places
NOTHING_FITS = 0.05  # seconds to sleep if nobody can advance: policy rules it out, but must not spin if it errs
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


class Engine:
    """`start` on a running event loop, then `submit`; `stop` ends every open generation."""

    def __init__(
        self,
        config: EngineConfig,
        codec: Codec,
        runner: Runner,
        *,
        model_name: str = "default",
        sampling: Mapping[str, Any] = MappingProxyType({}),
    ) -> None:
        """`sampling`: what the model's makers recommend, for what a client leaves open."""
        self.config, self.codec, self.runner, self.model_name = config, codec, runner, model_name
        self.sampling = sampling
        self.scheduler = Scheduler(
            config, num_blocks=runner.num_blocks, max_context=runner.max_context, kv_fingerprint=runner.kv_fingerprint
        )
        self.max_context = self.scheduler.max_ids
        if self.max_context < runner.max_context:
            log.warning("KV memory holds %d tokens of a context of %d", self.max_context, runner.max_context)
        self.max_prompt = self.scheduler.max_prompt
        self.ids_fingerprint = codec.fingerprint
        self._open: dict[int, Generation] = {}
        self._in_flight: Counter[str] = Counter()
        self._reserved = 0  # places of requests that are still being encoded
        self._next_id = 0
        self._seconds_per_answer = 5.0  # running mean, for estimates only
        self._encoders = ThreadPoolExecutor(2, thread_name_prefix="hamdam-encode")
        self._encoding: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()  # by owner, while it is needed
        self._warming: dict[asyncio.Task[None], str] = {}  # the session of each
        self._crossing: Crossing[Fact, Order] | None = None
        self._thread: threading.Thread | None = None
        self._stats = EngineStats(blocks_total=runner.num_blocks, blocks_free=runner.num_blocks)
        self._steps = 0
        self._last_step = time.monotonic()
        self._last_places = 0.0
        self._ended: str | None = None  # why no more work is taken

    # The event loop's side ------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Starts the engine's thread; the running event loop is the one that all generations live on."""
        self._crossing = Crossing(asyncio.get_running_loop(), self._receive)
        self._thread = threading.Thread(target=self._run, args=(self._crossing,), name="hamdam-engine", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Ends the thread after its current step and every open generation with `stopped`. Idempotent."""
        self._ended = self._ended or "the engine was stopped"
        if self._crossing and self._thread and self._thread.is_alive():
            self._crossing.order(Stop())
            self._thread.join()
        self._encoders.shutdown(wait=False, cancel_futures=True)
        self._fail_all(self._ended)

    def sampling_params(self, asked: Mapping[str, Any]) -> SamplingParams:
        """A client's object, what it leaves open as the model's makers recommend. Raises InvalidField by name."""
        said = {name: value for name, value in asked.items() if value is not None or name not in self.sampling}
        return SamplingParams.from_dict({**self.sampling, **said})

    async def submit(
        self, chat: Chat, params: SamplingParams, *, owner: Owner, session_id: str | None = None
    ) -> Generation:
        """Takes a place in the queue; no forward work happens before `Generation.start()`.

        Raises PromptTooLong, QueueFull, TooManyInFlight, InvalidField, EngineStopped.
        """
        self._refuse(owner, params)
        self._reserve(owner)
        try:
            self._refuse_hopeless(chat)
            async with self._encoding.setdefault(owner.id, asyncio.Lock()):  # nobody fills all encoders
                ids = await asyncio.get_running_loop().run_in_executor(self._encoders, self.codec.encode_chat, chat)
            if len(ids) > self.max_prompt:
                raise PromptTooLong(len(ids), self.max_prompt)
            if self._ended:
                raise EngineStopped(self._ended)
            sequence = self._sequence(ids, params, owner, session_id)
            text = self.codec.text_stream(prompt_ids=ids if chat.continue_last else (), stops=params.stop)
        except BaseException:
            self._give_back(owner)
            raise
        finally:
            self._reserved -= 1
        generation = self._open[sequence.id] = Generation(sequence, text, self._begin, self._end)
        return generation

    def warm(self, session_id: str, chat: Chat, *, owner: Owner) -> None:
        """The reader opened a chat: brings its blocks up. A hint only: a refusal changes nothing but speed."""
        task = asyncio.get_running_loop().create_task(self._warm(session_id, chat, owner))
        self._warming[task] = session_id
        task.add_done_callback(self._warming.pop)

    async def _warm(self, session_id: str, chat: Chat, owner: Owner) -> None:
        try:
            params = SamplingParams(temperature=0, max_tokens=1)
            generation = await self.submit(chat, params, owner=owner, session_id=session_id)
        except (Refusal, EngineStopped) as refusal:
            log.debug("not warmed: %s", refusal)
            return
        generation.start()
        async for _ in generation:
            pass

    def close_session(self, session_id: str) -> None:
        """Ends what runs in it and forgets its blocks at once."""
        for warming in [task for task, warmed in self._warming.items() if warmed == session_id]:
            warming.cancel()  # it may still be encoding, and would open the session again
        for generation in [g for g in self._open.values() if g.sequence.session_id == session_id]:
            generation.cancel()
        self._order(CloseSession(session_id))

    def stats(self) -> EngineStats:
        """Never blocks: the state after the last finished step."""
        stats, age = self._stats, time.monotonic() - self._last_step
        if self._ended and not self._ended.startswith("the engine was stopped"):
            return replace(stats, state="dead", last_step_age=age)
        stalled = stats.state != "idle" and age > STALLED_AFTER
        return replace(stats, state="stalled" if stalled else stats.state, last_step_age=age)

    @property
    def waiting(self) -> int:
        return self._reserved + sum(not g.scheduled for g in self._open.values())

    def in_flight(self, owner_id: str) -> int:
        """How many of this owner's answers run or wait."""
        return self._in_flight[owner_id]

    def _refuse(self, owner: Owner, params: SamplingParams) -> None:
        if self._ended or self._crossing is None:
            raise EngineStopped(self._ended or "the engine has not started")
        for token in params.stop_token_ids:
            if token >= self.runner.vocab_size:
                size = self.runner.vocab_size
                raise InvalidField("stop_token_ids", f"{token} is not below {size}, the size of the vocabulary")
        if owner.max_running is not None and owner.max_queued is not None:
            limit = owner.max_running + owner.max_queued
            if self._in_flight[owner.id] >= limit:
                raise TooManyInFlight(limit, retry_after=self._seconds_per_answer)
        if self.waiting >= self.config.max_queued:
            raise QueueFull(self.waiting + 1, retry_after=max(1.0, self._eta(self.waiting + 1) / 1e3))

    def _refuse_hopeless(self, chat: Chat) -> None:
        """A text that cannot fit whatever it says is refused by its length, before anybody tokenises it."""
        size = sum(len(part) for message in chat.messages for part in message.parts)
        at_least = size // self.codec.longest_token
        if at_least > self.max_prompt:
            raise PromptTooLong(at_least, self.max_prompt)

    def _reserve(self, owner: Owner) -> None:
        self._in_flight[owner.id] += 1
        self._reserved += 1

    def _give_back(self, owner: Owner) -> None:
        self._in_flight[owner.id] -= 1
        if not self._in_flight[owner.id]:
            del self._in_flight[owner.id]

    def _sequence(self, ids: list[int], params: SamplingParams, owner: Owner, session_id: str | None) -> Sequence:
        self._next_id += 1
        eos, asked = self.runner.eos_ids, frozenset(params.stop_token_ids)
        room = self.max_context - len(ids)
        return Sequence(
            id=self._next_id,
            owner=owner,
            ids=ids,
            num_prompt=len(ids),
            params=params,
            seed=params.seed if params.seed is not None else secrets.randbits(63),
            max_tokens=min(params.max_tokens or room, room),
            stop_ids=asked if params.ignore_eos else asked | eos,
            held_back_ids=asked | eos,
            session_id=session_id,
        )

    def _begin(self, generation: Generation) -> None:
        self._order(Add(generation.sequence))

    def _end(self, generation: Generation, keep: int | None) -> None:
        """A generation ended: its place is free. With `keep` the scheduler does not know yet."""
        if self._open.pop(generation.sequence.id, None) is None:
            return
        self._give_back(generation.sequence.owner)
        if keep is not None and generation.begun:
            self._order(Cancel(generation.sequence.id, keep))
        if generation.finished and generation.scheduled:
            self._seconds_per_answer += 0.1 * (generation.finished.timings.total_ms / 1e3 - self._seconds_per_answer)

    def _order(self, order: Order) -> None:
        if self._crossing and not self._ended:
            self._crossing.order(order)

    def _receive(self, facts: list[Fact]) -> None:
        """All that was told since the last time, on the event loop."""
        for fact in facts:
            match fact:
                case Places(sequence_ids=waiting):
                    for place, sequence_id in enumerate(waiting, 1):
                        if generation := self._open.get(sequence_id):
                            generation.place(place, self._eta(place))
                case Died(why=why):
                    self._fail_all(why)
                case _:
                    if generation := self._open.get(fact.sequence.id):
                        generation.take(fact)

    def _eta(self, place: int) -> float:
        """Milliseconds until the sequence at `place` may start, from how long answers took lately. An estimate."""
        return 1e3 * self._seconds_per_answer * place / self.config.max_running

    def _fail_all(self, why: str) -> None:
        for generation in list(self._open.values()):
            generation.fail(why)

    # The engine thread's side ---------------------------------------------------------------------------------------

    def _run(self, crossing: Crossing[Fact, Order]) -> None:
        try:
            patience: float | None = None  # idle: sleep until there is an order
            while self._obey(crossing.orders(patience)):
                patience = self._step(crossing)
        except Exception as fault:
            log.critical("the engine's step loop died", exc_info=fault)
            self._ended = f"the engine died: {type(fault).__name__}: {fault}"
            crossing.tell([Died(self._ended)])
        finally:
            self.runner.close()

    def _step(self, crossing: Crossing[Fact, Order]) -> float | None:
        """Schedule, run, update: one token for everybody who decodes, and a piece of somebody's prompt.

        Returns how long the thread may sleep before the next one: not at all, or without end where there is no work.
        """
        now = time.monotonic()
        batch = self.scheduler.schedule(now)
        progress = self.scheduler.update(batch, self.runner.run(batch), time.monotonic()) if batch.rows else []
        self._steps += bool(batch.rows)
        if not self.scheduler.has_work:
            self.scheduler.check_integrity()
        self._publish_stats()  # before anybody hears of the step, so that who hears and looks sees it
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

    def _publish_stats(self) -> None:
        self._last_step = time.monotonic()
        self._stats = self.scheduler.stats(self._steps)
