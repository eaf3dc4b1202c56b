"""DataFolder: where everything lives, private to its owner, locked by the server that runs on it. It opens nothing."""
import fcntl
import os
from contextlib import suppress
from pathlib import Path
from typing import IO

from .errors import FolderInUse, StorageError

NETWORK = frozenset(
    {"nfs", "nfs4", "cifs", "smb2", "smb3", "smbfs", "afs", "ceph", "lustre", "beegfs", "gpfs", "glusterfs", "sshfs"}
)
OURS = frozenset({"hamdam.db", "hamdam.toml", "models"})
"""By one of these a data folder is known; `cache` and `lock` are in /var, too."""


class DataFolder:
    def __init__(self, path: Path, *, new: bool = True) -> None:
        """Close the folder to everybody else: people's conversations are in it. `new`: make it if it is not there."""
        self.path = path
        self._lock: IO[str] | None = None
        try:
            if not new and not self.database.exists():
                raise StorageError(f"there is no Hamdam in {path} (see --data); `hamdam user add` begins one")
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
            if path.stat().st_mode & 0o077:
                self._refuse_what_is_not_ours()
            path.chmod(0o700)
            if not os.access(path, os.W_OK | os.X_OK):
                raise PermissionError("not writable")
        except OSError as error:
            raise StorageError(f"the data folder {path} cannot be used: {error.strerror or error}") from error

    def _refuse_what_is_not_ours(self) -> None:
        """Before a folder is closed to others: `--data /tmp`, said as root, would take it from everybody."""
        here = {found.name for found in self.path.iterdir()}
        if here and not here & OURS:
            raise StorageError(
                f"the data folder {self.path} holds other things, and others may read it: "
                "give Hamdam a folder of its own (or close this one with chmod 700)"
            )

    @property
    def database(self) -> Path:
        return self.path / "hamdam.db"

    @property
    def models(self) -> Path:
        return self.path / "models"

    @property
    def cache(self) -> Path:
        """What can be made again. Compiled code lies there: like all of the folder it is nobody else's to write."""
        return self.path / "cache"

    @property
    def secrets(self) -> Path:
        return self.path / "secrets"

    def lock(self) -> None:
        """Hold the folder until `unlock`, or until this process ends in whatever way. Raises StorageError."""
        try:
            file = (self.path / "lock").open("a")
        except OSError as error:
            raise StorageError(f"the data folder {self.path} cannot be locked: {error.strerror}") from error
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            file.close()
            raise FolderInUse(f"another hamdam serve uses {self.path}") from error
        self._lock = file

    def unlock(self) -> None:
        if self._lock is not None:
            self._lock.close()
            self._lock = None


def filesystem_type(path: Path) -> str:
    """The kind of file system that holds the path, as the kernel names it; empty where the kernel does not tell."""
    best, kind = "", ""
    with suppress(FileNotFoundError):
        where = str(path.resolve())
        for line in Path("/proc/self/mounts").read_text(errors="replace").splitlines():
            _, mount, found = line.split(" ")[:3]
            mount = mount.replace("\\040", " ")
            inside = where == mount or where.startswith(mount.rstrip("/") + "/")
            if inside and len(mount) >= len(best):
                best, kind = mount, found
    return kind


def is_network(kind: str) -> bool:
    return kind.removeprefix("fuse.") in NETWORK
