"""The model that `serve` opens: found in the data folder, or fetched with progress shown. Fetching is pull.py's."""
import sys
import time
from pathlib import Path

from hamdam.engine import Engine, EngineConfig, open_engine

from ..settings import Settings
from ..storage.folder import DataFolder
from .sources import DEFAULT_MODEL, already_here, find_model

SHOWN_EVERY_S = 0.2


class ProgressLine:
    """One line on standard error, written over while it grows; where that is no terminal, a line for each label."""

    def __init__(self) -> None:
        self._terminal = sys.stderr.isatty()
        self._label, self._ended, self._shown = "", False, 0.0

    def __call__(self, done: int, total: int | None, label: str) -> None:
        new, ended = label != self._label, total is not None and done >= total
        if not new and self._ended:
            return
        if not self._terminal:
            if new:
                print(f"{label} ({total / 1e6:.0f} MB)" if total else label, file=sys.stderr, flush=True)
        elif new or ended or time.monotonic() - self._shown >= SHOWN_EVERY_S:
            of = f" of {total / 1e6:.0f} MB, {min(done / total, 1):.0%}" if total else " MB"
            end = "\n" if ended else ""
            print(f"\r\x1b[K{label}: {done / 1e6:.0f}{of}", end=end, file=sys.stderr, flush=True)
            self._shown = time.monotonic()
        self._label, self._ended = label, ended


def model_path(settings: Settings) -> Path:
    """Raises PullError. The default model is fetched at its first use; any other only by `hamdam pull`, on purpose."""
    models = DataFolder(settings.data).models
    if settings.model is None or settings.model == DEFAULT_MODEL.source:
        return fetch(DEFAULT_MODEL.source, models)
    return find_model(settings.model, models)


def fetch(source: str, models_dir: Path) -> Path:
    """Raises PullError. Shows how far it is, and asks nobody where the model is here already."""
    here = already_here(source, models_dir)
    if here is not None:
        return here
    from .pull import pull  # the hub's client, archives, locks: nothing that a start with its model at hand waits for

    return pull(source, models_dir, ProgressLine())


def engine_for(settings: Settings) -> Engine:
    """Raises PullError or ModelError."""
    return open_engine(
        EngineConfig(
            model=model_path(settings),
            device=settings.device,
            dtype=settings.dtype,
            quantize=settings.quantize,
            kv_dtype=settings.kv_dtype,
            kv_memory=settings.kv_memory,
            gpu_memory=settings.gpu_memory,
            invariant=settings.invariant,
            max_context=settings.max_context,
            max_queued=settings.limits.queued_in_all,
            cache=DataFolder(settings.data).cache,
        )
    )
