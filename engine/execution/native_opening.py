"""open_native: the CPU path for a model, at once or as soon as it is compiled. Whether it fits is runners.py's."""
import logging
import subprocess
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from hamdam.kernels.cpu import warm
from hamdam.kernels.cpu.step import compile_step

from ..config import EngineConfig
from ..loading.checkpoint import Checkpoint
from ..policy.batch import Runner
from .changing_runner import ChangingRunner, First
from .native_runner import NativeRunner, fingerprint
from .packed_weights import open_packed

log = logging.getLogger("hamdam.engine")
POLL_S = 0.1


def open_native(
    checkpoint: Checkpoint, config: EngineConfig, meanwhile: Callable[[], First], *, threads: int, dtype: str
) -> Runner:
    """Native code right away where it was compiled before, or where nothing may be kept and it has to be compiled now;
    else what `meanwhile` opens, until a process of its own has compiled it. `invariant` waits for that instead: PyTorch
    would answer the same seed otherwise."""

    def native() -> NativeRunner:
        with ThreadPoolExecutor(1, thread_name_prefix="hamdam-read") as beside:
            weights = beside.submit(open_packed, checkpoint, config.cache)
            compile_step()  # or loads what was compiled
            return NativeRunner(checkpoint, config, weights.result(), threads=threads, dtype=dtype)

    if config.cache is None:
        return native()
    folder = warm.folder_in(config.cache)
    if warm.is_compiled(folder) or (config.invariant and _compiled(folder, threading.Event())):
        return native()

    def prepare(stop: threading.Event) -> NativeRunner | None:
        return native() if _compiled(folder, stop) else None

    return ChangingRunner(meanwhile(), prepare, fingerprint=fingerprint(checkpoint, config, dtype))


def _compiled(folder: Path, stop: threading.Event) -> bool:
    try:
        process = warm.start_compiling(folder)
    except OSError as error:
        log.warning("native code cannot be compiled; PyTorch goes on: %s", error)
        return False
    with process as compiling:
        try:
            said = _said_until(compiling, stop)
        finally:
            compiling.kill()
    if said is not None and compiling.returncode:
        log.warning("native code could not be compiled; PyTorch goes on: %s", said.decode(errors="replace")[-400:])
    return said is not None and compiling.returncode == 0


def _said_until(process: "subprocess.Popen[bytes]", stop: threading.Event) -> bytes | None:
    """What it wrote to stderr until it ended; None where it was told to stop before."""
    while not stop.is_set():
        try:
            return process.communicate(timeout=POLL_S)[1]
        except subprocess.TimeoutExpired:
            continue
    return None
