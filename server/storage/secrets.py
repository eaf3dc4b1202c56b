"""Secrets: a random key for each purpose, made once and kept in the data folder. No default, none from a setting."""
import os
import secrets
from contextlib import suppress
from pathlib import Path

from .errors import StorageError

SIZE = 32  # bytes


class Secrets:
    """`cache_root`: keyed hashing of who shares cached blocks with whom, so that no client can name or guess a root."""

    def __init__(self, folder: Path) -> None:
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            folder.chmod(0o700)
            self.cache_root = _key(folder / "cache_root")
        except OSError as error:  # a full disk, or something else of this name
            raise StorageError(f"{error.filename or folder} cannot be used: {error.strerror}") from error


def _key(path: Path) -> bytes:
    """The key of one purpose. A file that is too short, or open to others, stops the start: anybody may know it."""
    if not path.exists():
        _make(path)
    if path.stat().st_mode & 0o077:
        raise StorageError(f"{path} may be read by others: chmod 600 it, or delete it to get a new key")
    try:
        key = bytes.fromhex(path.read_text(encoding="ascii").strip())
    except ValueError as error:
        raise StorageError(f"{path} is not a key: delete it to get a new one") from error
    if len(key) < SIZE or len(set(key)) < 8:
        raise StorageError(f"{path} has no {SIZE} random bytes: delete it to get a new key")
    return key


def _make(path: Path) -> None:
    """Whole or not at all, and once: of two processes that make it together both go on with the first one's."""
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    with open(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="ascii") as file:
        file.write(secrets.token_hex(SIZE) + "\n")
        file.flush()
        os.fsync(file.fileno())
    with suppress(FileExistsError):
        os.link(draft, path)
    draft.unlink()
