"""`hamdam bench chat`: users × turns through a server's front door, ours or anybody's, in turn with a peer's."""
import argparse
import asyncio
import secrets
from contextlib import ExitStack
from dataclasses import fields, replace
from functools import partial
from pathlib import Path

from hamdam.engine import PAIRS, BenchError, Ratio, ratios

from ...settings import Settings
from ..models import model_path
from .progress import Progress
from .report.peer_file import earlier_chat
from .report.reports import Against, ChatReport, about
from .traffic.chat_run import ChatRun, chat_run, medians
from .traffic.child_server import child_server
from .traffic.door import Door, open_door
from .traffic.load import Load
from .traffic.talks import Talks

WARM_UP = Load(users=1, turns=1, max_tokens=4, system_repeat=1)


def bench_chat(asked: argparse.Namespace, settings: Settings) -> ChatReport:
    """Raises BenchError, ReportError, ModelError or PullError; an interrupt ends it with what was answered."""
    load = Load(**{field.name: getattr(asked, field.name) for field in fields(Load)})
    earlier = earlier_chat(asked.against, load) if isinstance(asked.against, Path) else None
    progress, complete = Progress(), True
    with ExitStack() as stack:
        stack.callback(progress.clear)
        if asked.url:
            ours, told = open_door(asked.url, model=asked.model, key=asked.key), asked.url
        else:
            progress(0, 1, "starting a server")
            ours, told = stack.enter_context(child_server(model_path(settings), settings))
        doors = [ours, *_peers(asked)]
        report = ChatReport(about=about("chat", model=ours.model, description=told), load=load)
        runs: list[list[ChatRun]] = [[] for _ in doors]
        try:
            take_turns(load, doors, runs, asked.repeats or (PAIRS if len(doors) > 1 else 1), progress)
        except KeyboardInterrupt:
            complete = False
    against = None
    if len(doors) > 1:
        against = Against(name=doors[1].name, alternating=True, ratios=_paired(runs[0], runs[1], load))
    elif earlier:
        compared = ratios([(medians(runs[0]), medians(earlier.runs))])
        against = Against(name=str(asked.against), alternating=False, ratios=tuple(compared))
    return replace(
        report, runs=tuple(runs[0]), their_runs=tuple(*runs[1:]), against=against, complete=complete
    )


def _peers(asked: argparse.Namespace) -> list[Door]:
    if not isinstance(asked.against, str):
        return []
    return [open_door(asked.against, model=asked.against_model, key=asked.against_key)]


def _paired(ours: list[ChatRun], theirs: list[ChatRun], load: Load) -> tuple[Ratio, ...]:
    """Of the pairs in which every answer came, on both sides."""
    pairs = [(a.figures(), b.figures()) for a, b in zip(ours, theirs, strict=False)
             if a.is_whole(load) and b.is_whole(load)]
    return tuple(ratios(pairs))


def take_turns(
    load: Load, doors: list[Door], runs: list[list[ChatRun]], rounds: int, progress: Progress
) -> None:
    """A B A B: adds to each door's runs. An interrupt leaves there what was answered until then. Raises BenchError."""
    for door in doors:
        _warm_up(door)
    total = rounds * len(doors) * load.answers
    for number in range(rounds):
        salt = secrets.token_hex(4)  # the same for both sides of a pair
        for side, door in enumerate(doors):
            before = (number * len(doors) + side) * load.answers
            talks = Talks(door, load, salt)
            try:
                asyncio.run(talks.run(partial(_tell, progress, before, total, f"run {number + 1}: {door.url}")))
            finally:
                if talks.answered or talks.errors:
                    runs[side].append(chat_run(talks))


def _tell(progress: Progress, before: int, total: int, label: str, answered: int) -> None:
    progress(before + answered, total, label)


def _warm_up(door: Door) -> None:
    talks = Talks(door, WARM_UP, secrets.token_hex(4))
    asyncio.run(talks.run(lambda _: None))
    if talks.errors:
        raise BenchError(f"{door.url} answers nothing: {talks.errors[0]}")
