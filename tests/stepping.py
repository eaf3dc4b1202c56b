"""Drives a runner through the real scheduler, step by step, without thread or clock. Not the engine: it has no text."""
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hamdam.engine.chat import Owner
from hamdam.engine.config import EngineConfig
from hamdam.engine.policy.batch import Logprobs, Runner
from hamdam.engine.policy.progress import Admitted, Appended, Ended, PromptScored
from hamdam.engine.policy.sampling_params import SamplingParams
from hamdam.engine.policy.scheduler import Scheduler
from hamdam.engine.policy.sequence import Sequence

ANYONE = Owner("anyone", "root", max_running=None, max_queued=None)


@dataclass
class Answer:
    ids: list[int] = field(default_factory=list)
    logprobs: list[Logprobs] = field(default_factory=list)  # where they were asked for
    prompt: list[Logprobs] = field(default_factory=list)  # the same of the prompt's tokens from the second one on
    cached: int = 0
    reason: str = ""
    error: str | None = None


def scheduler_for(runner: Runner, *, num_blocks: int | None = None, **knobs: Any) -> Scheduler:
    return Scheduler(
        EngineConfig(model=Path(), **knobs), num_blocks=num_blocks or runner.num_blocks,
        max_context=runner.max_context, kv_fingerprint=runner.kv_fingerprint,
    )


def sequence(id: int, prompt: Iterable[int], *, seed: int = 0, max_tokens: int = 16, **fields: Any) -> Sequence:
    """`fields` may hold `params`, a session or stop ids; greedy where nothing is said."""
    ids = list(prompt)
    fields.setdefault("params", SamplingParams(temperature=0))
    return Sequence(id=id, owner=ANYONE, ids=ids, num_prompt=len(ids), seed=seed, max_tokens=max_tokens, **fields)


def run(scheduler: Scheduler, runner: Runner, *sequences: Sequence) -> list[Answer]:
    """All of them at once, to the end."""
    answers = {sequence.id: Answer() for sequence in sequences}
    for sequence in sequences:
        scheduler.add(sequence, 0.0)
    while scheduler.has_work:
        batch = scheduler.schedule(0.0)
        assert batch.rows, "there is work, and nobody advances"
        for fact in scheduler.update(batch, runner.run(batch), 0.0):
            answer = answers[fact.sequence.id]
            match fact:
                case Admitted(cached=cached):
                    answer.cached = cached
                case PromptScored(logprobs=logprobs):
                    answer.prompt.append(logprobs)
                case Appended(token=token, logprobs=logprobs):
                    answer.ids.append(token)
                    answer.logprobs += [] if logprobs is None else [logprobs]
                case Ended(reason=reason, error=error):
                    answer.reason, answer.error = reason, error
    scheduler.check_integrity()
    return [answers[sequence.id] for sequence in sequences]
