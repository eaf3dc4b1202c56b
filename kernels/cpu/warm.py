"""Warm: compiles the CPU path into a folder, in a process of its own, and says where compiled code may be had at once.

    python -m hamdam.kernels.cpu.warm FOLDER

Compiling takes some twenty seconds and loading what was compiled a fifth of one. The folder belongs to this very code,
this processor and these versions, since numba looks only at the file of the function that it compiles.
"""
import hashlib
import os
import shutil
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import numba

from . import processor

HERE = Path(__file__).parent
MARK = "compiled"  # written last


def missing() -> str | None:
    """Why this processor is served faster by PyTorch; None where it is not."""
    lacking = processor.lacking()
    return f"this processor has no {', '.join(lacking)}" if lacking else None


def folder_in(cache: Path) -> Path:
    """Where in `cache` the code lies that was compiled of these sources for this processor.

    numba also asks where its source lies, and some versions how old it is: what was installed anew is compiled anew.
    """
    digest = hashlib.sha256()
    for path in sorted(HERE.glob("*.py")):
        digest.update(path.read_bytes())
    source = (str(HERE), (HERE / "step.py").stat().st_mtime_ns)
    machine = (processor.NAME, processor.FEATURES)
    digest.update(repr((source, machine, version("numba"), version("llvmlite"), sys.version_info[:2])).encode())
    return cache / f"compiled-{digest.hexdigest()[:16]}"


def is_compiled(folder: Path) -> bool:
    return (folder / MARK).exists()


def use(folder: Path) -> None:
    """From now on compiled code is kept there. To be called before step.py is imported."""
    numba.config.CACHE_DIR = str(folder)


def use_beside() -> None:
    """Compiled code is kept beside its source, where nobody said another place; never what other sources were compiled
    to, which numba alone would not see."""
    if not numba.config.CACHE_DIR:
        use(folder_in(HERE / "__pycache__"))


def start_compiling(folder: Path) -> subprocess.Popen[bytes]:
    """A process that compiles and then ends with 0. It makes room for whoever wants the processor."""
    folder.mkdir(parents=True, exist_ok=True)
    return subprocess.Popen(
        [sys.executable, "-m", __spec__.name, str(folder)], stdin=subprocess.DEVNULL, stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL, env=os.environ | {"OMP_NUM_THREADS": "1"}, start_new_session=True,
    )


def _compile(folder: Path) -> None:
    use(folder)
    from .step import compile_step

    compile_step()
    (folder / MARK).touch()
    for old in folder.parent.glob("compiled-*"):
        if old != folder:
            shutil.rmtree(old, ignore_errors=True)


if __name__ == "__main__":
    os.nice(5)
    _compile(Path(sys.argv[1]))
