"""open_checkpoint: the door of this room, whatever the format. It computes nothing and downloads nothing."""
from pathlib import Path

from ..errors import ModelError
from .contents import Checkpoint
from .gguf_checkpoint import open_gguf

__all__ = ["Checkpoint", "open_checkpoint"]


def open_checkpoint(path: Path) -> Checkpoint:
    """Reads headers and small files only; its `tensors()` reads the rest. ModelError says in one line what is wrong."""
    if path.suffix == ".gguf":
        return open_gguf(path)
    raise ModelError(f"{path}: neither a .gguf file nor a model folder")
