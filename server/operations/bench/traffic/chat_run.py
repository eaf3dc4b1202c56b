"""ChatRun: what is told of one run of a load: times, tokens, errors. It is computed from Talks and sends nothing."""
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import pairwise

from hamdam.engine import Figure, Spread

from .load import Load
from .talks import Answered, Talks

ERRORS_KEPT = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnFigures:
    turn: int  # from 1
    ttft_ms: Spread  # from sending the question to the first text
    prompt_tokens: int
    cached_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatRun:
    seconds: float
    answers: int
    failed: int
    errors: tuple[str, ...]  # the first of them
    turns: tuple[TurnFigures, ...]
    itl_ms: Spread | None  # between two pieces of text; None where no answer had two
    output_tokens: int
    prompt_tokens: int
    cached_tokens: int

    @property
    def output_rate(self) -> float:
        """Answer tokens a second, over the whole run."""
        return self.output_tokens / self.seconds if self.seconds else 0.0

    @property
    def cached_share(self) -> float:
        """Of the prompt tokens, as far as the server tells."""
        return self.cached_tokens / self.prompt_tokens if self.prompt_tokens else 0.0

    def is_whole(self, load: Load) -> bool:
        """Whether every answer came: the only kind of run that compares."""
        return self.answers == load.answers

    def figures(self) -> Iterator[Figure]:
        """What two servers are compared by."""
        yield Figure(name="output", value=self.output_rate, unit="tok/s", more_is_better=True)
        for turn in self.turns:
            name, spread = f"TTFT turn {turn.turn}", turn.ttft_ms
            yield Figure(name=f"{name} p50", value=spread.median, unit="ms", more_is_better=False)
            yield Figure(name=f"{name} p95", value=spread.p95, unit="ms", more_is_better=False)
        if self.itl_ms:
            yield Figure(name="ITL p50", value=self.itl_ms.median, unit="ms", more_is_better=False)
            yield Figure(name="ITL mean", value=self.itl_ms.mean, unit="ms", more_is_better=False)
            yield Figure(name="ITL p99", value=self.itl_ms.p99, unit="ms", more_is_better=False)


def chat_run(talks: Talks) -> ChatRun:
    answers = [answered.streamed for answered in talks.answered]
    gaps = [(b - a) * 1e3 for answer in answers for a, b in pairwise(answer.pieces)]
    return ChatRun(
        seconds=talks.seconds,
        answers=len(answers),
        failed=len(talks.errors),
        errors=tuple(talks.errors[:ERRORS_KEPT]),
        turns=tuple(_turns(talks.answered)),
        itl_ms=Spread.of(gaps) if gaps else None,
        output_tokens=sum(answer.tokens for answer in answers),
        prompt_tokens=sum(answer.prompt_tokens for answer in answers),
        cached_tokens=sum(answer.cached_tokens for answer in answers),
    )


def _turns(answered: list[Answered]) -> Iterator[TurnFigures]:
    for turn in sorted({one.turn for one in answered}):
        answers = [one.streamed for one in answered if one.turn == turn]
        yield TurnFigures(
            turn=turn,
            ttft_ms=Spread.of([(answer.pieces[0] - answer.asked) * 1e3 for answer in answers]),
            prompt_tokens=sum(answer.prompt_tokens for answer in answers),
            cached_tokens=sum(answer.cached_tokens for answer in answers),
        )


def medians(runs: Iterable[ChatRun]) -> list[Figure]:
    """Each figure's median over the runs."""
    seen: dict[str, list[Figure]] = {}
    for run in runs:
        for figure in run.figures():
            seen.setdefault(figure.name, []).append(figure)
    return [replace(f[0], value=Spread.of([figure.value for figure in f]).median) for f in seen.values()]
