"""open_checkpoint: the door of this room, whatever the format. It computes nothing and downloads nothing."""
from pathlib import Path

from ..errors import ModelError
from .contents import Checkpoint

__all__ = ["Checkpoint", "open_checkpoint"]


def open_checkpoint(path: Path) -> Checkpoint:
    """A .gguf file, or a folder with config.json and .safetensors files, or with one .gguf file.

    Reads headers and small files only; its `tensors()` reads the rest. ModelError says in one line what is wrong.
    Only what reads this format is imported: each takes as long as a hundredth of a start.
    """
    if path.is_dir():
        files = sorted(path.glob("*.gguf"))
        if (path / "config.json").is_file() or not files:
            from .safetensors_checkpoint import open_folder

            return open_folder(path)
        if len(files) > 1:
            raise ModelError(f"{path}: {len(files)} .gguf files; say which one")
        path = files[0]
    if not path.exists():
        raise ModelError(f"{path}: there is no such file or folder")
    from .gguf.checkpoint import open_gguf

    return open_gguf(path)
