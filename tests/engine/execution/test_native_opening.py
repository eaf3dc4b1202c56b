"""open_native: where nothing is compiled PyTorch answers first, and the process that compiles ends with the runner."""
import logging
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import numba
import pytest
from compiled_code import compiled_in
from native_path import TINY, exact_tensors
from stepping import run, scheduler_for, sequence
from tiny_models import write_folder

from hamdam.engine.config import EngineConfig
from hamdam.engine.errors import ModelError
from hamdam.engine.execution.changing_runner import ChangingRunner
from hamdam.engine.execution.native_runner import NativeRunner
from hamdam.engine.execution.runners import open_runner
from hamdam.engine.loading.checkpoint import open_checkpoint
from hamdam.engine.policy.batch import Runner
from hamdam.kernels.cpu import warm

PREPARING = "hamdam-prepare"
Started = list["subprocess.Popen[bytes]"]


@pytest.fixture(autouse=True)
def _this_processor_will_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(warm, "missing", lambda: None)
    monkeypatch.setattr(numba.config, "CACHE_DIR", numba.config.CACHE_DIR)  # put back at the end


@pytest.fixture
def opened(tmp_path: Path) -> Callable[[], Runner]:
    def open(**knobs: bool) -> Runner:
        checkpoint = open_checkpoint(write_folder(tmp_path / "model", TINY, exact_tensors(TINY)))
        cache = tmp_path / "cache"
        config = EngineConfig(model=tmp_path, device="cpu", kv_memory=1 << 20, threads=2, cache=cache, **knobs)
        return open_runner(checkpoint, config)

    return open


def compiling_is(monkeypatch: pytest.MonkeyPatch, code: str) -> Started:
    """Another process in place of the one that compiles."""
    started: Started = []

    def start(folder: Path) -> "subprocess.Popen[bytes]":
        started.append(subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.DEVNULL, stderr=subprocess.PIPE))
        return started[-1]

    monkeypatch.setattr(warm, "start_compiling", start)
    return started


def until_prepared() -> None:
    for thread in threading.enumerate():
        if thread.name == PREPARING:
            thread.join()


def answer(runner: Runner) -> list[int]:
    return run(scheduler_for(runner), runner, sequence(1, range(3, 40)))[0].ids


def test_a_first_start_answers_in_pytorch_then_in_native_code_and_a_second_at_once(
    opened: Callable[[], Runner], tmp_path: Path
) -> None:
    folder = compiled_in(tmp_path / "cache")
    first = opened()
    assert isinstance(first, ChangingRunner)
    assert first.description == "bfloat16 on cpu, until a faster path is ready"
    until_prepared()  # the real process, which finds compiled what these tests share
    assert warm.is_compiled(folder)
    found = answer(first)
    assert first.description == "int8 on cpu, 2 threads"
    first.close()
    second = opened()
    assert isinstance(second, NativeRunner)
    assert second.kv_fingerprint == first.kv_fingerprint
    assert answer(second) == found
    second.close()


def test_who_wants_invariant_answers_waits_for_native_code_and_gets_no_other(
    opened: Callable[..., Runner], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = compiled_in(tmp_path / "cache")
    with closing(opened(invariant=True)) as runner:
        assert isinstance(runner, NativeRunner)
    assert warm.is_compiled(folder)
    with closing(opened(invariant=True)) as again:
        assert isinstance(again, NativeRunner)
    (folder / warm.MARK).unlink()
    compiling_is(monkeypatch, "raise SystemExit(1)")
    with pytest.raises(ModelError, match="invariant cannot be had"):
        opened(invariant=True)


def test_closing_ends_the_process_that_compiles(opened: Callable[[], Runner], monkeypatch: pytest.MonkeyPatch) -> None:
    started = compiling_is(monkeypatch, "import signal; signal.pause()")
    runner = opened()
    assert answer(runner)
    runner.close()
    assert all(process.returncode == -signal.SIGKILL for process in started)
    assert not {thread.name for thread in threading.enumerate()} & {PREPARING, "hamdam-step-1"}


def test_what_cannot_be_compiled_is_said_in_its_own_words(
    opened: Callable[[], Runner], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    compiling_is(monkeypatch, "import sys; sys.exit('x' * 200_000 + ' no room on the disk')")  # more than a pipe holds
    runner = opened()
    until_prepared()
    assert answer(runner)
    assert runner.description == "bfloat16 on cpu"
    runner.close()
    [record] = caplog.records
    assert record.levelno == logging.WARNING
    assert "PyTorch goes on" in record.message
    assert "no room on the disk" in record.message


def test_a_folder_that_cannot_be_made_is_one_line_and_pytorch_goes_on(
    opened: Callable[[], Runner], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "cache").touch()
    runner = opened()
    until_prepared()
    assert answer(runner)
    runner.close()
    [record] = caplog.records
    assert record.levelno == logging.WARNING
    assert "native code cannot be compiled" in record.message
    assert not record.exc_info


def test_compiled_code_belongs_to_its_sources_where_they_lie_and_to_their_age(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def copied(name: str) -> Path:
        folder = tmp_path / name
        folder.mkdir()
        for path in warm.HERE.glob("*.py"):
            (folder / path.name).write_bytes(path.read_bytes())
            os.utime(folder / path.name, ns=(0, 0))
        return folder

    def key(sources: Path) -> str:
        monkeypatch.setattr(warm, "HERE", sources)
        return warm.folder_in(tmp_path).name

    one, other = copied("one"), copied("other")
    keys = [key(one), key(other)]
    os.utime(one / "step.py", ns=(0, 10**9))
    keys.append(key(one))
    os.utime(one / "step.py", ns=(0, 0))
    assert key(one) == keys[0]
    (one / "tiles.py").write_text("# other tiles")
    keys.append(key(one))
    assert len(set(keys)) == 4
