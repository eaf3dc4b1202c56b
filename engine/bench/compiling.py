"""Compiling: what a server does beside its first answers is done before anything is measured. It measures nothing."""
from ..config import EngineConfig
from .driver import BenchError


def compile_native(config: EngineConfig) -> None:
    """Returns at once where native code is there already, or is not for this model, machine or dtype.

    Else half a minute, once. Raises ModelError, or BenchError where it cannot be compiled.
    """
    # As in engine/opening.py: nothing heavy is imported before it is needed.
    from ..execution.runners import PASSES, no_native
    from ..loading.checkpoint import open_checkpoint

    if config.cache is None or config.dtype not in (*PASSES, "auto"):
        return
    if no_native(open_checkpoint(config.model).config, config) is not None:
        return
    from hamdam.kernels.cpu import warm

    folder = warm.folder_in(config.cache)
    if warm.is_compiled(folder):
        return
    compiling = warm.start_compiling(folder)
    try:
        _, said = compiling.communicate()
    finally:
        compiling.kill()
    if compiling.returncode:
        raise BenchError(f"native code could not be compiled: {' '.join(said.decode(errors='replace').split())[-200:]}")
