"""Recording: a ModelRunner whose decode steps are recorded, or launched ahead, without a GPU. Not a test."""
from collections.abc import Callable
from pathlib import Path

import torch
from tiny_models import CONFIG, random_tensors, write_folder

from hamdam.engine.config import EngineConfig
from hamdam.engine.execution.decode_graphs import Record, Scores
from hamdam.engine.execution.model_runner import ModelRunner
from hamdam.engine.loading.checkpoint import open_checkpoint
from hamdam.kernels.device import for_device

CPU = torch.device("cpu")
POISON = 11  # a token whose embedding is not a number


class Recorder:
    """Implements Record; counts. It only remembers what to do again."""

    def __init__(self) -> None:
        self.recorded = self.replayed = 0

    def __call__(self, work: Callable[[], Scores]) -> tuple[Callable[[], None], Scores]:
        self.recorded += 1
        left = work()

        def again() -> None:
            self.replayed += 1
            left.logits.fill_(torch.nan)  # whatever a graph forgets to write
            left.hidden.copy_(work().hidden)

        return again, left


def load(folder: Path, record: Record | None = None, *, ahead: bool = False, **knobs: int) -> ModelRunner:
    """A tiny model of random weights, one of whose tokens breaks what reads it."""
    tensors = random_tensors(CONFIG)
    tensors["model.embed_tokens.weight"][POISON] = torch.nan
    path = write_folder(folder, CONFIG, tensors)
    config = EngineConfig(model=path, **{"kv_memory": 1 << 18, "max_running": 6} | knobs)
    return ModelRunner(
        open_checkpoint(path), config, for_device(CPU), device=CPU, dtype=torch.float32, record=record, ahead=ahead
    )
