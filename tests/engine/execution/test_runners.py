"""open_runner: which runner a model gets, why not a faster one, and that it is said once."""
import logging
import subprocess
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numba
import pytest
from compiled_code import compiled_in
from native_path import TINY, exact_tensors
from tiny_models import CONFIG, write_folder

from hamdam.engine.config import EngineConfig
from hamdam.engine.errors import ModelError
from hamdam.engine.execution import runners
from hamdam.engine.execution.model_runner import ModelRunner
from hamdam.engine.execution.native_runner import NativeRunner, describe
from hamdam.engine.execution.runners import open_runner, threads_of
from hamdam.engine.loading.checkpoint import open_checkpoint
from hamdam.engine.policy.batch import Runner
from hamdam.kernels.cpu import warm

TESTS = Path(__file__).resolve().parents[2]
PYTORCH = "computing with PyTorch, several times slower than native code: "


@pytest.fixture(autouse=True)
def _this_processor_will_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(warm, "missing", lambda: None)
    monkeypatch.setattr(numba.config, "CACHE_DIR", numba.config.CACHE_DIR)  # put back at the end


@pytest.fixture
def opened(tmp_path: Path, request: pytest.FixtureRequest) -> Callable[..., Runner]:
    """Opens a tiny model; what it compiled of, if anything, lies in the folder `cache` of the test's own."""

    def open(config: dict[str, Any] = TINY, **knobs: Any) -> Runner:
        checkpoint = open_checkpoint(write_folder(tmp_path / "model", config, exact_tensors(config)))
        settings = {"device": "cpu", "kv_memory": 1 << 20, "threads": 1} | knobs
        runner = open_runner(checkpoint, EngineConfig(model=tmp_path, **settings))
        request.addfinalizer(runner.close)
        return runner

    return open


@pytest.fixture
def compiled(tmp_path: Path) -> Path:
    cache = tmp_path / "cache"
    (compiled_in(cache) / warm.MARK).touch()
    return cache


@pytest.mark.parametrize(
    ("dtype", "words"),
    [("auto", describe("int8", 1)), ("int8", describe("int8", 1)), ("int16", describe("int16", 1)),
     ("float32", "float32 on cpu"), ("bfloat16", "bfloat16 on cpu")],
)  # fmt: skip
def test_a_dtype_means_one_way_to_compute(
    opened: Callable[..., Runner], compiled: Path, caplog: pytest.LogCaptureFixture, dtype: str, words: str
) -> None:
    runner = opened(dtype=dtype, cache=compiled)
    assert runner.description == words
    assert isinstance(runner, NativeRunner if "int" in words else ModelRunner)
    assert not caplog.records


def test_without_a_cache_auto_is_pytorch_and_native_code_is_had_by_asking(
    opened: Callable[..., Runner], caplog: pytest.LogCaptureFixture
) -> None:
    assert opened(cache=None).description == "float32 on cpu"
    assert opened(cache=None, dtype="int8").description == describe("int8", 1)
    assert not caplog.records


def no_numba(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runners, "find_spec", lambda name: None if name == "numba" else find_spec(name))


def broken_numba(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is installed and does not go with what else is."""
    for name in ("warm", "processor"):
        monkeypatch.delitem(sys.modules, f"hamdam.kernels.cpu.{name}")
        monkeypatch.delattr(sys.modules["hamdam.kernels.cpu"], name)
    monkeypatch.setitem(sys.modules, "llvmlite.binding", None)


def no_instructions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(warm, "missing", lambda: "this processor has no avx512vnni")


def nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    pass


REASONS: dict[str, tuple[Callable[[pytest.MonkeyPatch], None], dict[str, Any], str]] = {
    "no numba": (no_numba, TINY, "numba is not installed"),
    "a numba that cannot be imported": (broken_numba, TINY, "numba cannot be used: "),
    "no instructions": (no_instructions, TINY, "this processor has no avx512vnni"),
    "hidden size": (nothing, TINY | {"hidden_size": 40}, "hidden_size of this model is 40, no multiple of 16"),
    "inner size": (nothing, TINY | {"intermediate_size": 72}, "intermediate_size of this model is 72, no multiple"),
    "a peculiar model": (
        nothing, TINY | {"model_type": "smollm3", "no_rope_layers": [1, 0]}, "this model has layers whose positions"
    ),
    "head dim": (nothing, CONFIG, "head_dim of this model is 8, no multiple of 16"),
}


@pytest.mark.parametrize(("change", "config", "why"), REASONS.values(), ids=REASONS)
def test_what_cannot_be_had_is_refused_where_it_was_asked_for_and_else_said_once(
    opened: Callable[..., Runner], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture,
    change: Callable[[pytest.MonkeyPatch], None], config: dict[str, Any], why: str,
) -> None:  # fmt: skip
    change(monkeypatch)
    for dtype in ("int8", "int16"):
        with pytest.raises(ModelError, match=f"^dtype {dtype} cannot be had: {why}"):
            opened(config, dtype=dtype, cache=tmp_path / "cache")
    assert opened(config, cache=tmp_path / "cache").description == "float32 on cpu"
    [record] = caplog.records
    assert record.levelno == logging.WARNING
    assert record.message.startswith(PYTORCH + why)
    assert not (tmp_path / "cache").exists()


@pytest.mark.parametrize("dtype", ["auto", "int8"])
def test_an_unknown_device_or_dtype_is_refused_whatever_else_is_asked(
    opened: Callable[..., Runner], compiled: Path, dtype: str
) -> None:
    with pytest.raises(ModelError, match="abacus" if dtype == "auto" else "cannot be had"):
        opened(device="abacus", dtype=dtype, cache=compiled)
    with pytest.raises(ModelError, match="dtype 'int3' is not known"):
        opened(dtype="int3", cache=compiled)


def test_threads_are_those_asked_for_or_the_cores_that_may_be_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runners.os, "sched_getaffinity", lambda process: {2, 5, 7}, raising=False)
    monkeypatch.setattr(runners, "OWN_GROUP", tmp_path / "nothing")
    assert threads_of(EngineConfig(model=Path(), threads=5)) == 5
    assert threads_of(EngineConfig(model=Path())) == 3


@pytest.mark.parametrize(
    ("limit", "threads"),
    [("max 100000", 3), ("200000 100000", 2), ("250000 100000", 2), ("50000 100000", 1), ("900000 100000", 3), ("", 3)],
)
def test_a_container_with_fewer_cores_of_time_gets_fewer_threads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: str, threads: int
) -> None:
    monkeypatch.setattr(runners.os, "sched_getaffinity", lambda process: {2, 5, 7}, raising=False)
    service = "system.slice/chat.service"
    for own, folder in (("0::/\n", ""), (f"1:name=systemd:/old\n0::/{service}\n", service)):
        (tmp_path / "own").write_text(own)
        (tmp_path / folder).mkdir(parents=True, exist_ok=True)
        (tmp_path / folder / "cpu.max").write_text(f"{limit}\n")
        monkeypatch.setattr(runners, "OWN_GROUP", tmp_path / "own")
        monkeypatch.setattr(runners, "GROUPS", tmp_path)
        assert threads_of(EngineConfig(model=Path())) == threads
        (tmp_path / folder / "cpu.max").unlink()


SECOND_START = """
import sys
sys.path.insert(0, sys.argv[1])
import conftest
from pathlib import Path
from hamdam.engine import EngineConfig
from hamdam.engine.opening import open_engine
from hamdam.engine.policy.batch import Batch, Row
from hamdam.kernels.cpu import warm
from stepping import sequence

warm.missing = lambda: None
cache = Path(sys.argv[3])
engine = open_engine(EngineConfig(model=Path(sys.argv[2]), device="cpu", kv_memory=1 << 20, cache=cache, threads=2))
one = sequence(1, range(3, 20))
one.block_table = [0, 1]
assert engine.runner.run(Batch([Row(one, 0, 17, sample=True)]))[0] > 0
engine.runner.close()
from hamdam.kernels.cpu.step import run_step
print(engine.runner.description, sum(run_step.stats.cache_misses.values()), "torch" in sys.modules)
"""


def test_a_second_start_computes_at_once_compiles_nothing_and_imports_no_torch(tmp_path: Path, compiled: Path) -> None:
    model = write_folder(tmp_path / "model", TINY, exact_tensors(TINY))
    for _ in range(2):  # packed, then from the cache
        command = [sys.executable, "-c", SECOND_START, str(TESTS), str(model), str(compiled)]
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.stdout.strip() == f"{describe('int8', 2)} 0 False", done.stderr
    assert len(list(compiled.glob("*.packed"))) == 1


@pytest.mark.parametrize("dtype", ["auto", "int8", "int16"])
def test_to_quantize_is_pytorchs_and_native_code_does_as_it_does(
    opened: Callable[..., Runner], compiled: Path, dtype: str
) -> None:
    with pytest.raises(ModelError, match="quantize int4 is PyTorch's, and native code has weights of 8 bits, or their"):
        opened(dtype=dtype, cache=compiled, quantize="int4")
    runner = opened(dtype="bfloat16", cache=compiled, quantize="int4")
    assert runner.description == "bfloat16 on cpu, weights in int4"


def test_kv_in_another_dtype_than_native_codes_is_pytorchs(opened: Callable[..., Runner], compiled: Path) -> None:
    for name in ("auto", "bfloat16"):
        assert isinstance(opened(cache=compiled, kv_dtype=name), NativeRunner)
    runner = opened(cache=compiled, kv_dtype="int8")
    assert runner.description == "float32 on cpu, KV in int8"
    with pytest.raises(ModelError, match="dtype int16 cannot be had: it keeps KV in bfloat16, not in fp8"):
        opened(dtype="int16", cache=compiled, kv_dtype="fp8")
