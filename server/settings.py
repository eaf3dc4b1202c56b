"""Settings: the server's knobs, and the only reader of the environment and of hamdam.toml. Not the engine's own knobs.

A knob is set by the command line, else by HAMDAM_<NAME>, else by the file, else it has its default.
"""
import re
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import platformdirs

from hamdam.engine import EngineConfig

ENGINE = EngineConfig(model=Path())  # for its defaults: they are the engine's to choose
SWITCH = {"true": True, "1": True, "false": False, "0": False}
LARGEST_LIMIT = 1 << 40  # of [limits]: beyond it neither a clock nor a socket counts


class SettingsError(Exception):
    """A value cannot be used; `str(error)` is one line that names it and says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What one peer may take. Clients are told in `session.created.limits`; the file sets them in [limits]."""

    frame_bytes: int = 1 << 20
    text_bytes: int = 256 << 10
    body_bytes: int = 8 << 20
    sockets_per_user: int = 32
    running_per_user: int = 2
    queued_per_user: int = 4
    queued_in_all: int = ENGINE.max_queued
    events_per_second: int = 30
    event_burst: int = 60
    rate_grace_s: float = 10.0
    upgrades_per_minute: int = 10  # unauthenticated, per address
    outgoing_frames: int = 256
    outgoing_bytes: int = 512 << 10
    slow_consumer_s: float = 10.0
    replay_s: float = 60.0  # how long an ended run can be replayed from memory
    temporary_s: float = 1800.0  # how long a conversation that is not stored is kept while nobody watches it
    temporary_per_user: int = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    data: Path
    host: str = "127.0.0.1"
    port: int = 8000
    public_url: str | None = None  # None: the request's own host
    model: str | None = None  # None: the default model
    device: str = ENGINE.device
    dtype: str = ENGINE.dtype
    quantize: str | None = ENGINE.quantize
    kv_dtype: str = ENGINE.kv_dtype
    kv_memory: int | None = ENGINE.kv_memory  # bytes; None: the engine's choice
    gpu_memory: float = ENGINE.gpu_memory  # a share
    invariant: bool = ENGINE.invariant
    max_context: int | None = ENGINE.max_context  # tokens
    limits: Limits = field(default_factory=Limits)


def read_settings(given: Mapping[str, str | None], environ: Mapping[str, str]) -> Settings:
    """`given` are the command line's values by name, None where there is none. Raises SettingsError."""
    said = {name: (value, "--" + name.replace("_", "-")) for name, value in given.items() if value is not None}
    for name in ("data", "config", *OPTIONS):
        variable = f"HAMDAM_{name.upper()}"
        if name not in said and environ.get(variable):  # an empty variable is one that is not set
            said[name] = (environ[variable], variable)
    data = _parse(_path, *said.pop("data")) if "data" in said else platformdirs.user_data_path("hamdam")
    named = _parse(_path, *said.pop("config")) if "config" in said else None
    file = named or data / "hamdam.toml"
    from_file = _read_file(file, must_exist=named is not None)
    limits = _limits(from_file.pop("limits", {}), file)
    for name, value in from_file.items():
        if name not in OPTIONS:
            raise SettingsError(f"{file}: there is no option {name!r}")
        said.setdefault(name, (str(value), f"{file}: {name}"))
    values = {name: _parse(OPTIONS[name], value, where) for name, (value, where) in said.items()}
    return Settings(data=data, limits=limits, **values)


def size(text: str) -> int:
    """Bytes: `512MB` (millions), `1GiB` (2^30), `1.5 GiB`, or a plain number."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(?:([KMGT]?)(I?)B)?", text.strip(), re.IGNORECASE | re.ASCII)
    if match is None:
        raise ValueError("a size such as 512MB or 1GiB")
    number, unit, binary = match.groups()
    power = " KMGT".index((unit or " ").upper())
    found = int(float(number) * (1024 if binary else 1000) ** power)
    if found < 1:
        raise ValueError("a size above 0")
    return found


def _public_url(text: str) -> str:
    try:
        parts = urlsplit(text)
        usable = parts.scheme in ("http", "https") and parts.hostname and (parts.port is None or parts.port > 0)
    except ValueError:
        usable = False
    if not usable or parts.path not in ("", "/") or parts.query or parts.fragment or "@" in parts.netloc:
        raise ValueError("an address such as https://chat.example.org, without a path")
    return text.rstrip("/").lower()


def _number(lowest: int, highest: int) -> Callable[[str], int]:
    def parse(text: str) -> int:
        if not re.fullmatch(r"\d{1,18}", text, re.ASCII) or not lowest <= int(text) <= highest:
            raise ValueError(f"a number from {lowest} to {highest}")
        return int(text)

    return parse


def _share(text: str) -> float:
    if not re.fullmatch(r"\d?(\.\d{1,9})?", text, re.ASCII) or not text.strip(".") or not 0.05 <= float(text) <= 1:
        raise ValueError("a share from 0.05 to 1, such as 0.9")
    return float(text)


def _switch(text: str) -> bool:
    if text.lower() not in SWITCH:
        raise ValueError("true or false")
    return SWITCH[text.lower()]


def _choice(*choices: str) -> Callable[[str], str]:
    def parse(text: str) -> str:
        if text not in choices:
            raise ValueError(f"one of {', '.join(choices)}")
        return text

    return parse


def _path(text: str) -> Path:
    try:
        return Path(text).expanduser()
    except RuntimeError as error:
        raise ValueError("a path below a home that there is") from error


def _text(text: str) -> str:
    return text


# Every option of `hamdam serve` beside --data and --config, and how its text is read.
OPTIONS: Mapping[str, Callable[[str], Any]] = {
    "host": _text,
    "port": _number(0, 65535),
    "public_url": _public_url,
    "model": _text,
    "device": _choice("auto", "cpu", "cuda"),
    "dtype": _choice("auto", "int8", "int16", "float32", "bfloat16"),
    "quantize": _choice("int8", "int4", "fp8"),
    "kv_dtype": _choice("auto", "bfloat16", "float16", "float32", "int8", "fp8"),
    "kv_memory": size,
    "gpu_memory": _share,
    "invariant": _switch,
    "max_context": _number(16, 100_000_000),
}


def _parse(parse: Callable[[str], Any], text: str, where: str) -> Any:
    if not text.strip() or "\0" in text:
        raise SettingsError(f"{where} is empty")
    try:
        return parse(text)
    except ValueError as error:
        raise SettingsError(f"{where} must be {error}, not {text!r}") from error


def _read_file(path: Path, *, must_exist: bool) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError) as error:
        if not must_exist:
            return {}
        raise SettingsError(f"{path} is not there") from error
    except OSError as error:
        raise SettingsError(f"{path} cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:  # broken UTF-8, broken TOML, or nested without end
        raise SettingsError(f"{path}: {error}") from error


def _limits(table: Any, file: Path) -> Limits:
    """The file's [limits]: whole numbers above 0 (seconds may have a fraction)."""
    fractions = {f.name: isinstance(f.default, float) for f in fields(Limits)}
    if not isinstance(table, dict):
        raise SettingsError(f"{file}: limits must be a table")
    for name, value in table.items():
        if name not in fractions:
            raise SettingsError(f"{file}: there is no limit {name!r}")
        number = isinstance(value, int) or (isinstance(value, float) and fractions[name])
        if not number or isinstance(value, bool) or not 0 < value <= LARGEST_LIMIT:
            raise SettingsError(f"{file}: limits.{name} must be a number above 0, not {value!r}")
    return Limits(**table)
