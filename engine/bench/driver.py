"""Driver: workloads on a real runner through the real scheduler, step by step as engine/step_loop.py takes them.

There is no thread, no text and no event loop here: what is timed is the engine's step and nothing else.
"""
import random
import time
from dataclasses import dataclass, field, replace

from ..chat import Owner
from ..config import EngineConfig
from ..policy.batch import Broken, Runner
from ..policy.sampling_params import SamplingParams
from ..policy.scheduler import Scheduler
from ..policy.sequence import Sequence
from .workload import WARM_UP, Workload

NOBODY = Owner("bench", "bench", max_running=None, max_queued=None)


class BenchError(Exception):
    """A workload cannot be measured; `str(error)` is one line."""


@dataclass(slots=True)
class Repeat:
    """One timed run of a workload. Whoever measures decoding times many steps; a prompt's steps are its pieces."""

    seconds: float = 0.0
    computed: int = 0  # tokens that went through the model
    sampled: int = 0  # tokens that were drawn
    steps_ms: list[float] = field(default_factory=list)
    outside_ms: list[float] = field(default_factory=list)  # of each step, what was scheduling and not the runner


class Driver:
    """Repeats workloads on one runner. Prompts are random ids, and no id ends an answer."""

    def __init__(self, runner: Runner, config: EngineConfig, *, temperature: float = 0.0, seed: int = 0) -> None:
        self.runner, self._config = runner, config
        self._params = SamplingParams(temperature=temperature, ignore_eos=True)
        self._random = random.Random(seed)
        self._next_id = 0
        self._scheduler = self._new_scheduler(config.max_batch_tokens)
        self._prompts: dict[int, list[list[int]]] = {}  # by context: their KV is in the scheduler's cache

    @property
    def description(self) -> str:
        return self.runner.description

    def why_not(self, workload: Workload) -> str | None:
        """One line where a workload does not fit this runner."""
        if workload.longest > self.runner.max_context:
            return f"the model's context is {self.runner.max_context} tokens, and this needs {workload.longest}"
        if workload.blocks > self.runner.num_blocks:
            return f"KV memory has {self.runner.num_blocks} blocks, and this needs {workload.blocks} (see --kv-memory)"
        return None

    def repeat(self, workload: Workload) -> Repeat:
        """Raises BenchError where a row fails."""
        if (budget := workload.budget(self._config.max_batch_tokens)) != self._budget:
            self._scheduler = self._new_scheduler(budget)
        if workload.kind == "prefill":
            return self._prefill(workload)
        return self._decode(workload)

    def _decode(self, workload: Workload) -> Repeat:
        """All rows get one token a step. With a prompt, each step also computes a new one whole: nothing is foreseen
        then, as who comes meanwhile would be computed a step later."""
        self._scheduler.foresees = not workload.prompt
        rows = [self._add(prompt, self.runner.max_context) for prompt in self._computed_prompts(workload)]
        while min(row.num_generated for row in rows) < WARM_UP - 1:
            self._step(Repeat())
        counted = Repeat()
        for repeat in (Repeat(), *[counted] * workload.steps):
            if workload.prompt:
                self._add(self._random_ids(workload.prompt), 1)
            self._step(repeat)
        for row in rows:
            self._scheduler.cancel(row.id)
        counted.seconds = sum(counted.steps_ms) / 1e3
        expected = workload.steps * (workload.batch + workload.prompt)
        if counted.computed != expected or self._scheduler.has_work:
            raise BenchError(f"{workload.name}: {counted.computed} tokens were computed instead of {expected}")
        return counted

    def _prefill(self, workload: Workload) -> Repeat:
        counted = Repeat()
        self._add(self._random_ids(workload.prompt), 1)
        while self._scheduler.has_work:
            self._step(counted)
        counted.seconds = sum(counted.steps_ms) / 1e3
        return counted

    def _computed_prompts(self, workload: Workload) -> list[list[int]]:
        """As many distinct prompts as the workload has rows, all found in the prefix cache but for their last token.

        Each has its own blocks, so that attention reads as much memory as it would for as many strangers.
        """
        prompts = self._prompts.setdefault(workload.context, [])
        while len(prompts) < workload.batch:
            prompts.append(self._random_ids(workload.context))
            self._add(prompts[-1], 1)
        while self._scheduler.has_work:
            self._step(Repeat())
        return prompts[: workload.batch]

    def _step(self, repeat: Repeat) -> None:
        begun = time.perf_counter()
        batch = self._scheduler.schedule(begun)
        scheduled = time.perf_counter()
        drawn = self.runner.run(batch)
        computed = time.perf_counter()
        self._scheduler.update(batch, drawn, computed)
        ended = time.perf_counter()
        for result in drawn:
            if isinstance(result, Broken):
                raise BenchError(f"a row failed: {result.why}")
        if not batch.rows:
            raise BenchError("nothing fits the KV memory (see --kv-memory)")
        repeat.computed += batch.tokens
        repeat.sampled += sum(row.sample for row in batch.rows)
        repeat.steps_ms.append((ended - begun) * 1e3)
        repeat.outside_ms.append((ended - computed + scheduled - begun) * 1e3)

    def _add(self, ids: list[int], max_tokens: int) -> Sequence:
        self._next_id += 1
        sequence = Sequence(
            id=self._next_id, owner=NOBODY, ids=list(ids), num_prompt=len(ids), params=self._params,
            seed=self._next_id, max_tokens=max_tokens,
        )
        self._scheduler.add(sequence, time.perf_counter())
        return sequence

    def _random_ids(self, count: int) -> list[int]:
        return [self._random.randrange(self.runner.vocab_size) for _ in range(count)]

    def _new_scheduler(self, budget: int) -> Scheduler:
        """Another budget is another scheduler, with an empty cache over the same blocks."""
        self._budget, self._prompts = budget, {}
        return Scheduler(
            replace(self._config, max_batch_tokens=budget, max_running=budget),
            num_blocks=self.runner.num_blocks,
            max_context=self.runner.max_context,
            kv_fingerprint=self.runner.kv_fingerprint,
        )
