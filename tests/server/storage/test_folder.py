"""The data folder: private, held by one, and never on a network."""
import os
import subprocess
import sys
from pathlib import Path

import pytest

from hamdam.server.storage.errors import FolderInUse, StorageError
from hamdam.server.storage.folder import DataFolder, filesystem_type, is_network

ROOT = Path(__file__).resolve().parents[3]
HOLD_AND_DIE = f"""
import os, sys
from pathlib import Path
sys.path.insert(0, {str(ROOT / "tests")!r})
import conftest
from hamdam.server.storage.folder import DataFolder
DataFolder(Path(sys.argv[1])).lock()
os._exit(9)
"""


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o777


def test_the_folder_is_made_for_its_owner_alone(tmp_path: Path) -> None:
    assert mode(DataFolder(tmp_path / "a" / "b").path) == 0o700


def test_a_folder_that_others_may_read_is_closed_to_them(tmp_path: Path) -> None:
    (tmp_path / "open").mkdir(mode=0o755)
    assert mode(DataFolder(tmp_path / "open").path) == 0o700


def test_a_folder_of_other_things_is_not_taken_from_whoever_reads_it(tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o1777)
    (shared / "letter.txt").write_text("to somebody else")
    with pytest.raises(StorageError, match="holds other things") as refused:
        DataFolder(shared)
    assert (mode(shared), "\n" in str(refused.value)) == (0o777, False)
    (shared / "hamdam.toml").write_text("")
    assert mode(DataFolder(shared).path) == 0o700


def test_a_folder_that_cannot_be_is_said_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match="cannot be used: ") as refused:
        DataFolder(tmp_path / "file" / "data")
    assert "\n" not in str(refused.value)
    with pytest.raises(StorageError, match="cannot be used: "):
        DataFolder(tmp_path / "file")


def test_a_second_one_is_refused_while_the_first_holds_the_folder(tmp_path: Path) -> None:
    first, second = DataFolder(tmp_path), DataFolder(tmp_path)
    first.lock()
    with pytest.raises(FolderInUse, match="another hamdam serve"):
        second.lock()
    first.unlock()
    second.lock()
    second.unlock()


def test_a_lock_that_cannot_be_written_is_said_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "lock").mkdir()
    with pytest.raises(StorageError, match="cannot be locked: Is a directory"):
        DataFolder(tmp_path).lock()


def test_the_lock_of_a_killed_process_is_free_again(tmp_path: Path) -> None:
    assert subprocess.run([sys.executable, "-c", HOLD_AND_DIE, str(tmp_path)], cwd=ROOT, check=False).returncode == 9
    folder = DataFolder(tmp_path)
    folder.lock()
    folder.unlock()


@pytest.mark.parametrize("kind", ["nfs", "nfs4", "cifs", "smb3", "fuse.sshfs", "ceph", "fuse.glusterfs"])
def test_a_network_file_system_is_known(kind: str) -> None:
    assert is_network(kind)


@pytest.mark.parametrize("kind", ["ext4", "xfs", "btrfs", "tmpfs", "overlay", "zfs", ""])
def test_a_local_file_system_is_none(kind: str) -> None:
    assert not is_network(kind)


def test_the_innermost_mount_counts(tmp_path: Path) -> None:
    assert filesystem_type(Path("/proc/self")) == "proc"
    assert filesystem_type(tmp_path) not in ("proc", "")
    assert os.path.ismount("/proc")
