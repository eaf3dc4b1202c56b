"""Reports: what a bench found, as it is kept in a JSON file and read back from one. It neither measures nor prints.

`schema` grows when a field changes its meaning; new fields have defaults, so that older files stay readable.
"""
import datetime
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TypeVar

import msgspec

from hamdam.engine import BenchError, Ceiling, KernelPoint, Machine, Phases, Point, Ratio, Skipped, this_machine

from ..traffic.chat_run import ChatRun
from ..traffic.load import Load

SCHEMA = 1
ROOT = Path(__file__).resolve().parents[4]


class ReportError(BenchError):
    """A file is no report, or none can be written there; `str(error)` is one line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class About:
    """What was measured, on what, when. No key and no address of a person is in it."""

    kind: str  # engine | chat | kernels
    schema: int
    at: str  # RFC 3339
    version: str
    commit: str  # "" where this is no checkout
    machine: Machine
    model: str
    description: str  # what computes and in what
    threads: int | None = None
    options: dict[str, str | int | float | bool | None] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Against:
    """The other side. `alternating`: it was measured in turn with ours, in the same minutes."""

    name: str
    alternating: bool
    ratios: tuple[Ratio, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineReport:
    about: About
    points: tuple[Point, ...] = ()
    skipped: tuple[Skipped, ...] = ()
    against: Against | None = None
    complete: bool = True  # False: it was interrupted


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatReport:
    about: About
    load: Load
    runs: tuple[ChatRun, ...] = ()
    their_runs: tuple[ChatRun, ...] = ()  # of a peer that took turns with us: one after each of ours
    against: Against | None = None
    complete: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelReport:
    about: About
    ceilings: tuple[Ceiling, ...] = ()
    points: tuple[KernelPoint, ...] = ()
    phases: tuple[Phases, ...] = ()
    complete: bool = True


class Kind(msgspec.Struct):
    kind: str
    schema: int


class Header(msgspec.Struct):
    """What is read of a file before anything else."""

    about: Kind


Report = EngineReport | ChatReport | KernelReport
R = TypeVar("R", bound=Report)
KINDS: Mapping[type, str] = {EngineReport: "engine", ChatReport: "chat", KernelReport: "kernels"}


def about(
    kind: str, *, model: str, description: str, threads: int | None = None,
    options: dict[str, str | int | float | bool | None] | None = None,
) -> About:
    return About(
        kind=kind, schema=SCHEMA, version=_version(), commit=_commit(), machine=this_machine(),
        at=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        model=model, description=description, threads=threads, options=options or {},
    )


def write(report: Report, path: Path) -> None:
    put(path, msgspec.json.format(msgspec.json.encode(report), indent=1) + b"\n")


def put(path: Path, data: bytes) -> None:
    """Raises ReportError."""
    try:
        path.write_bytes(data)
    except OSError as error:
        raise ReportError(f"{path} cannot be written: {error.strerror}") from error


def load(path: Path) -> bytes:
    """Raises ReportError."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise ReportError(f"{path} cannot be read: {error.strerror}") from error


def parse(data: bytes, path: Path, kind: type[R]) -> R:
    """What `write` wrote to `path`. Raises ReportError."""
    try:
        told = msgspec.json.decode(data, type=Header).about
        if told.schema != SCHEMA:
            raise ReportError(f"{path} has schema {told.schema}; this version reads {SCHEMA}")
        if told.kind != KINDS[kind]:
            raise ReportError(f"{path} is a report of bench {told.kind}, not of bench {KINDS[kind]}")
        return msgspec.json.decode(data, type=kind)
    except msgspec.MsgspecError as error:
        raise ReportError(f"{path} is no report of a bench: {error}") from error


def _version() -> str:
    try:
        return version("hamdam")
    except PackageNotFoundError:
        return ""


def _commit() -> str:
    """Of the checkout that this code runs from, with a `+` where it was changed since."""
    if not (ROOT / ".git").exists():
        return ""
    git = ["git", "-C", str(ROOT)]
    try:
        head = subprocess.run([*git, "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=True)
        changed = subprocess.run([*git, "status", "--porcelain", "-uno"], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return ""
    return head.stdout.strip() + ("+" if changed.stdout.strip() else "")
