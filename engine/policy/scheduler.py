"""Scheduler: which tokens of which sequences are computed next, in which blocks. No torch, no thread, no clock.

    schedule(now) -> Batch      what the runner is to compute
    update(batch, drawn, now)   what came of it; the facts are for whoever reports them

One path: `num_computed` chases `len(ids)`, in prefill, in decode and after a preemption. Between a `schedule` that gave
rows and its `update` nothing else is called: the blocks are being written. Only the batch itself may be asked what it
foresees: where everybody decodes and nobody can join, the next step is known but for its ids, and a GPU need not wait
for us between the two. Whatever is called after the `update`, what the foreseen step writes does no harm: it lies
behind what a sequence has computed, in a block that was its own, and steps are computed in order.
"""
from bisect import insort
from collections.abc import Sequence as Ordered

from ..config import BLOCK_SIZE, EngineConfig
from ..errors import PromptTooLong
from ..events import EngineStats
from .admission import Admission
from .batch import Batch, Broken, Logprobs, Result, Row, Scored
from .block_pool import BlockPool
from .fairness import FairQueue
from .integrity import check
from .progress import Admitted, Appended, Computed, Ended, Progress, PromptScored
from .prompt_rows import SCORED_A_STEP, prompt_rows
from .sequence import Sequence, Status
from .session import Sessions


class Scheduler:
    """`num_blocks` are usable ones. `max_ids` is how long a sequence can get: its last id is drawn, never computed."""

    def __init__(self, config: EngineConfig, *, num_blocks: int, max_context: int, kv_fingerprint: str) -> None:
        self.max_ids = min(max_context, num_blocks * BLOCK_SIZE + 1)
        self.max_prompt = self.max_ids - 1
        self.foresees = True  # whether a batch may be asked what comes after it
        self.pool = BlockPool(num_blocks)
        self.sessions = Sessions(self.pool, ttl=config.session_ttl, quota=int(config.session_quota * num_blocks))
        self._queue = FairQueue()
        self._admission = Admission(self.pool, self.sessions, self._queue, kv_fingerprint)
        self._budget = config.max_batch_tokens
        self._max_running = max(1, min(config.max_running, self._budget - 1))  # a token each, and one for a prompt
        self._known: dict[int, Sequence] = {}  # waiting and running, by id
        self._running: list[Sequence] = []  # oldest first
        self._facts: list[Progress] = []  # to be told by the next update
        self._in_flight: Batch | None = None
        self._foreseen: Batch | None = None
        self._now = 0.0
        self._computed = self._sampled = self._reused = self._preemptions = 0

    # --- what is asked of it ---

    def add(self, sequence: Sequence, now: float) -> None:
        """Takes its place in the queue; nothing is computed, looked up or held for it yet."""
        if not self.fits(sequence.num_prompt):
            raise PromptTooLong(sequence.num_prompt, self.max_prompt)
        self._now = now
        sequence.max_tokens = min(sequence.max_tokens, self.max_ids - sequence.num_prompt)
        self._known[sequence.id] = sequence
        self.sessions.join(sequence, now)
        self._queue.push(sequence)

    def cancel(self, sequence_id: int, keep: int | None = None) -> Ended | None:
        """Everything is given back at once. With `keep`, only so many generated tokens count, for the session too.

        A sequence that ended by itself meanwhile is cut all the same, as long as nothing followed it in its session.
        """
        assert not self._in_flight
        sequence = self._known.get(sequence_id)
        ended = self._end(sequence, "cancelled") if sequence else None
        if keep is not None:
            self.sessions.cut(sequence_id, keep)
            if sequence:
                del sequence.ids[sequence.num_prompt + keep :]
        return ended

    def close_session(self, session_id: str) -> list[Ended]:
        """Ends what runs or waits in it, then forgets all of it that nobody else holds."""
        ended = [end for sequence_id in self.sessions.members(session_id) if (end := self.cancel(sequence_id))]
        self.sessions.close(session_id)
        return ended

    def expire(self, now: float) -> None:
        self._now = now
        self.sessions.expire(now)

    def schedule(self, now: float) -> Batch:
        """Those who run get room for their next id, who fits joins them, and the step's tokens are shared out."""
        assert not self._in_flight
        self.expire(now)
        if self._foreseen is not None:
            self._in_flight, self._foreseen = self._foreseen, None
            return self._in_flight
        batch = Batch(foresee=self._foresee)
        self._make_room()
        self._admit(batch)
        scored = SCORED_A_STEP
        for sequence, count in self._queue.share(self._running, self._budget):
            start = sequence.num_computed
            if sequence.is_scoring:
                count = min(count, scored)
                scored -= count
                batch.rows += prompt_rows(sequence, start, count)
            else:
                batch.rows.append(Row(sequence, start, count, sample=start + count == len(sequence.ids)))
        self._in_flight = batch if batch.rows else None
        return batch

    def update(self, batch: Batch, drawn: Ordered[Result], now: float) -> list[Progress]:
        """`drawn` has one entry a row, as `Runner.run` gives them. A broken row ends its own sequence alone."""
        self._now, self._in_flight = now, None
        facts, self._facts = self._facts, []
        for row, token in zip(batch.rows, drawn, strict=True):
            sequence = row.scores or row.sequence
            if sequence.status is Status.FINISHED:  # a token of its prompt broke, or it ended after this was foreseen
                continue
            if isinstance(token, Broken):
                facts.append(self._end(sequence, "failed", broken=token))
                continue
            facts += self._advance(sequence, row.count)
            if row.scores and isinstance(token, Scored):
                sequence.num_scored += 1
                facts.append(PromptScored(sequence, token.logprobs))
            elif isinstance(token, Scored):
                facts += self._draw(sequence, token.id, token.logprobs)
            elif token is not None:
                facts += self._draw(sequence, token)
        return facts

    # --- what is asked about it ---

    def fits(self, num_prompt: int) -> bool:
        """Whether a prompt of so many tokens can ever be computed and answered by at least one."""
        return 0 < num_prompt <= self.max_prompt

    @property
    def has_work(self) -> bool:
        return bool(self._known)

    @property
    def num_running(self) -> int:
        return len(self._running)

    @property
    def num_waiting(self) -> int:
        return len(self._queue)

    def waiting_ids(self) -> list[int]:
        """The waiting sequences, next to be taken first: the place in the queue is the index plus one."""
        return [sequence.id for sequence in self._queue.in_turn()]

    def stats(self, steps: int = 0) -> EngineStats:
        decoding = bool(self._running) and all(sequence.num_uncomputed == 1 for sequence in self._running)
        return EngineStats(
            state="decoding" if decoding else "prefilling" if self._known else "idle",
            steps=steps,
            running=len(self._running),
            queued=len(self._queue),
            sessions=len(self.sessions),
            blocks_total=self.pool.num_blocks,
            blocks_free=self.pool.num_empty,
            blocks_cached=self.pool.num_cached,
            blocks_pinned=self.pool.num_pinned,
            blocks_running=self.pool.num_running,
            tokens_computed=self._computed,
            tokens_sampled=self._sampled,
            tokens_reused=self._reused,
            preemptions=self._preemptions,
        )

    def check_integrity(self) -> None:
        """Adds everything up; raises IntegrityError with what does not. For idle moments and tests: it looks at all."""
        for sequence in self._running:
            check(sequence.status is Status.RUNNING, f"sequence {sequence.id} runs and is {sequence.status.value}")
        for sequence in self._queue.in_turn():
            check(sequence.status is Status.WAITING, f"sequence {sequence.id} waits and is {sequence.status.value}")
            check(not sequence.block_table, f"sequence {sequence.id} waits and holds blocks")
        check(len(self._known) == len(self._running) + len(self._queue), "some sequence neither runs nor waits")
        self.sessions.check_integrity(self._known)
        self._queue.check_integrity(self._running)
        self._admission.check_integrity(self._running)
        self.pool.check_integrity([s.block_table for s in self._running], self.sessions.held_blocks())

    # --- inside a step ---

    def _foresee(self) -> Batch | None:
        """The step after the one in flight, if everybody who runs decodes in it, nobody could join, and there is room
        without taking from anybody. Who has to end then is not in it; who ends before is, in vain."""
        if not self.foresees or self._in_flight is None or self._foreseen is not None:
            return None
        rows = [row for row in self._in_flight.rows if row.sequence.status is Status.RUNNING]
        joining = len(self._queue) > 0 and len(self._running) < self._max_running
        if joining or len(rows) < len(self._running) or not all(row.sample for row in rows):
            return None
        going_on = [row.sequence for row in rows if row.sequence.num_generated + 1 < row.sequence.max_tokens]
        if not going_on or not all(self._has_room(sequence, len(sequence.ids) + 1) for sequence in going_on):
            return None
        next_rows = [Row(sequence, len(sequence.ids), 1, sample=True) for sequence in going_on]
        self._foreseen = Batch(next_rows, foresee=self._foresee)
        return self._foreseen

    def _has_room(self, sequence: Sequence, length: int) -> bool:
        """Whether it has blocks for so many ids, of which one may be new; takes a free block if need be."""
        if len(sequence.block_table) * BLOCK_SIZE < length:
            self.sessions.reclaim(1)
            if not self.pool.num_allocatable:
                return False
            sequence.block_table += self.pool.allocate(1)
        return True

    def _make_room(self) -> None:
        """A block for every running sequence whose last id needs one, from the oldest on; the youngest pay for it."""
        for sequence in tuple(self._running):
            while sequence.status is Status.RUNNING and not self._has_room(sequence, len(sequence.ids)):
                self._preempt(self._running[-1])

    def _preempt(self, sequence: Sequence) -> None:
        """Back to the queue; what it computed stays with its session or in the index while nobody needs the room."""
        assert sequence is not self._running[0], "the oldest running sequence is never taken from"
        self._running.remove(sequence)
        self._admission.leave(sequence)
        self.sessions.give(sequence, self._now)
        sequence.status, sequence.num_computed = Status.WAITING, 0
        self._queue.push_back(sequence)
        self._preemptions += 1

    def _admit(self, batch: Batch) -> None:
        if len(self._running) == self._max_running or not len(self._queue):
            return
        for sequence in self._admission.admit(len(self._running), self._max_running, batch):
            sequence.status = Status.RUNNING
            insort(self._running, sequence, key=lambda running: running.id)
            if not sequence.started:
                sequence.started, sequence.num_cached = True, sequence.num_computed
                self._reused += sequence.num_cached
                self._facts.append(Admitted(sequence, sequence.num_cached))

    def _advance(self, sequence: Sequence, count: int) -> list[Progress]:
        before = sequence.num_computed
        sequence.num_computed += count
        self._computed += count
        self._queue.charge(sequence, count)
        if sequence.num_computed // BLOCK_SIZE > before // BLOCK_SIZE:
            self._admission.publish(sequence, before // BLOCK_SIZE, sequence.num_computed // BLOCK_SIZE)
        if sequence.num_generated:
            return []
        return [Computed(sequence, sequence.num_computed, sequence.num_prompt)]

    def _draw(self, sequence: Sequence, token: int, logprobs: Logprobs | None = None) -> list[Progress]:
        """A stop id ends the answer and is no part of its ids: its KV is not computed, and nobody keeps it."""
        self._sampled += 1
        self._queue.charge(sequence, 1)
        if token in sequence.stop_ids:
            return [self._end(sequence, "stop", stop_id=token)]
        sequence.ids.append(token)
        appended = Appended(sequence, token, logprobs)
        if sequence.num_generated < sequence.max_tokens:
            return [appended]
        return [appended, self._end(sequence, "length")]

    def _end(
        self, sequence: Sequence, reason: str, *, stop_id: int | None = None, broken: Broken | None = None
    ) -> Ended:
        """Gives everything back. Blocks of a sequence that failed are not to be trusted: nobody finds them again."""
        if sequence.status is Status.RUNNING:
            self._running.remove(sequence)
            self._admission.leave(sequence)
            if reason == "failed":
                self.pool.withdraw(sequence.block_table)
                sequence.num_computed = 0
            self.sessions.give(sequence, self._now)
            self._queue.end(sequence)
        else:
            self._queue.remove(sequence)
        del self._known[sequence.id]
        if self._foreseen is not None and not self._running:
            self._foreseen.rows.clear()  # nobody is left in it; a runner that began it keeps nothing of anybody's
            self._foreseen = None
        sequence.status, sequence.finish_reason = Status.FINISHED, reason
        self.sessions.part(sequence)
        if broken is not None:
            return Ended(sequence, reason, error=broken.why, refused=broken.refused)
        return Ended(sequence, reason, stop_id)
