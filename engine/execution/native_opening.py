"""open_native: the CPU path for a model, at once or as soon as it is compiled. Whether it fits is runners.py's."""
import logging
import threading
from collections.abc import Callable
from pathlib import Path

from hamdam.kernels.cpu import warm

from ..config import EngineConfig
from ..loading.checkpoint import Checkpoint
from ..policy.batch import Runner
from .changing_runner import ChangingRunner, First
from .native_runner import NativeRunner, fingerprint
from .packed_weights import open_packed

log = logging.getLogger("hamdam.engine")
POLL_S = 0.1


def open_native(
    checkpoint: Checkpoint, config: EngineConfig, meanwhile: Callable[[], First], *, threads: int, passes: int
) -> Runner:
    """Native code right away where it was compiled before, or where nothing may be kept and it has to be compiled now;
    else what `meanwhile` opens, until a process of its own has compiled it."""

    def native() -> NativeRunner:
        weights = open_packed(checkpoint, config.cache)
        return NativeRunner(checkpoint, config, weights, threads=threads, passes=passes)

    if config.cache is None:
        return native()
    folder = warm.folder_in(config.cache)
    if warm.is_compiled(folder):
        return native()

    def prepare(stop: threading.Event) -> NativeRunner | None:
        return native() if _compiled(folder, stop) else None

    return ChangingRunner(meanwhile(), prepare, fingerprint=fingerprint(checkpoint, passes))


def _compiled(folder: Path, stop: threading.Event) -> bool:
    compiling = warm.start_compiling(folder)
    try:
        while compiling.poll() is None:
            if stop.wait(POLL_S):
                return False
    finally:
        compiling.kill()
        _, said = compiling.communicate()
    if compiling.returncode:
        log.warning("native code could not be compiled; PyTorch goes on: %s", said.decode(errors="replace")[-400:])
    return compiling.returncode == 0
