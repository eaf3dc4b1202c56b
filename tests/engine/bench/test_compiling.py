"""Compiling before measuring: only where native code will compute and is not there yet; a failure is one line."""
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tiny_models import write_folder

import hamdam.kernels.cpu
from hamdam.engine.bench.compiling import compile_native
from hamdam.engine.bench.driver import BenchError
from hamdam.engine.config import EngineConfig
from hamdam.engine.execution import runners


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The folders that something was compiled into; a folder called `broken` cannot be."""
    folders: list[Path] = []

    def start(folder: Path) -> Any:
        folders.append(folder)
        failed = folder.parent.name == "broken"
        said = (b"", b"a long story\nno room left" if failed else b"")
        return SimpleNamespace(communicate=lambda: said, kill=lambda: None, returncode=int(failed))

    warm = SimpleNamespace(
        folder_in=lambda cache: cache / "compiled", is_compiled=lambda folder: folder in folders, start_compiling=start
    )
    monkeypatch.setattr(hamdam.kernels.cpu, "warm", warm, raising=False)
    monkeypatch.setattr(runners, "no_native", lambda shape, config: None)
    return folders


def test_native_code_is_compiled_once(started: list[Path], tmp_path: Path) -> None:
    model = write_folder(tmp_path / "tiny")
    for dtype in ("auto", "int8", "int16"):
        compile_native(EngineConfig(model=model, cache=tmp_path, dtype=dtype))
    assert started == [tmp_path / "compiled"]


def test_nothing_is_compiled_where_pytorch_computes(
    started: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = write_folder(tmp_path / "tiny")
    compile_native(EngineConfig(model=model, cache=None))
    compile_native(EngineConfig(model=model, cache=tmp_path, dtype="float32"))
    monkeypatch.setattr(runners, "no_native", lambda shape, config: "no numba")
    compile_native(EngineConfig(model=model, cache=tmp_path))
    assert started == []


def test_what_cannot_be_compiled_is_said(started: list[Path], tmp_path: Path) -> None:
    with pytest.raises(BenchError, match=r"native code could not be compiled: .*no room left"):
        compile_native(EngineConfig(model=write_folder(tmp_path / "tiny"), cache=tmp_path / "broken"))
