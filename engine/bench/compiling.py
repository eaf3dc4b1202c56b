"""Compiling: what a server does beside its first answers is done before anything is measured. It measures nothing."""
from ..config import EngineConfig
from ..execution.quality import EXACT_ABOVE
from .driver import BenchError


def has_native(config: EngineConfig) -> bool:
    """Whether native code computes this model here, now or once it is compiled. Raises ModelError."""
    # As in engine/opening.py: nothing heavy is imported before it is needed.
    from ..execution.runners import no_native
    from ..loading.checkpoint import open_checkpoint

    chosen = config.dtype in EXACT_ABOVE or (config.dtype == "auto" and config.cache is not None)
    return chosen and no_native(open_checkpoint(config.model).config, config) is None


def compile_native(config: EngineConfig) -> None:
    """Returns at once where native code is there already, or is not for this model, machine or dtype.

    Else half a minute, once. Raises ModelError, or BenchError where it cannot be compiled.
    """
    if config.cache is None or not has_native(config):
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


def keep_compiled(config: EngineConfig) -> None:
    """What the bench alone calls is compiled when it is called, and kept beside what servers call."""
    from hamdam.kernels.cpu import warm

    if config.cache is not None:
        warm.use(warm.folder_in(config.cache))
