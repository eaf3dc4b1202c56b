"""The checks that read the code without running it: ruff and strict mypy (tsc: tests/web). One command runs all."""
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def passes(*command: str, cwd: Path = ROOT) -> None:
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_ruff_finds_nothing() -> None:
    passes(sys.executable, "-m", "ruff", "check", ".")


def test_strict_mypy_finds_nothing() -> None:
    link = ROOT / ".typing" / "hamdam"  # the root *is* the package `hamdam`; mypy sees it through this link
    link.parent.mkdir(exist_ok=True)
    if not link.is_symlink():
        link.symlink_to("..")
    passes(sys.executable, "-m", "mypy")
