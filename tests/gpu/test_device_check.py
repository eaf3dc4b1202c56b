"""The script for a GPU machine runs here in small, with nothing that such a machine does not have: it works before it
is needed. What it finds in small is that every kernel is right; its times mean nothing."""
import json
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parent / "device_check.py"
MISSING = (  # on a machine that has torch, triton, tokenizers, safetensors, pytest and hypothesis
    "aiosqlite", "alembic", "argon2", "gguf", "llvmlite", "msgspec", "numba", "openai", "platformdirs", "playwright",
    "sqlalchemy", "starlette", "transformers", "uuid_utils", "uvicorn", "uvloop", "websockets",
)  # fmt: skip
BARE = f"""
import os, runpy, sys
sys.modules.update(dict.fromkeys({MISSING!r}))
sys.argv = sys.argv[1:]
sys.path.insert(0, os.path.dirname(sys.argv[0]))  # as for a script
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def test_everything_for_a_gpu_works_in_small_on_a_bare_machine(tmp_path: Path) -> None:
    kept = tmp_path / "found.json"
    command = [sys.executable, "-c", BARE, SCRIPT, "--tiny", "--seconds", "100000", "--json", kept]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(kept.read_text())
    assert found["left_out"] == []
    assert all(check["passed"] for check in found["checks"])
    kinds = {"bf16", "fp8", "int4", "bf16 invariant"}
    assert {model["model"].removeprefix("tiny ") for model in found["models"]} == kinds
    for word in ("attention", "w16a16", "store_kv", "rms_norm", "silu_and_mul", "quantise_rows", "sample", "int4",
                 "fp8", "int8", "one layer", "alone, in company"):
        assert any(word in check["name"] for check in found["checks"]), word
    assert len(found["kernels"]) > 30
    assert "0 failed" in done.stdout


def test_a_kernel_that_is_wrong_fails_the_script(tmp_path: Path) -> None:
    other_reference = """
import sys
sys.path.insert(0, sys.argv[1].rpartition("/gpu/")[0])
import conftest
from hamdam.kernels.reference import Reference
Reference.sample = lambda self, logits, *settings: logits.argmin(-1)
"""
    command = [sys.executable, "-c", other_reference + BARE, SCRIPT, "--tiny", "--only", "sample"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "0 checks passed, 1 failed" in done.stdout
    assert "FAILED sample, 12 rows: off by" in done.stdout


def test_what_the_time_is_not_enough_for_is_said(tmp_path: Path) -> None:
    command = [sys.executable, SCRIPT, "--tiny", "--seconds", "0", "--only", "int4"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    said = [line for line in done.stdout.splitlines() if line.startswith("left out: ")]
    assert {line.split(":")[1].strip() for line in said} == {"check", "kernel", "model"}
