"""Memory: how much of it this machine has for us, in all and free, and giving back what was freed. It knows no GPU."""
import ctypes
import os
import re
from dataclasses import dataclass
from pathlib import Path

FACTS = Path("/proc/meminfo")
OWN_GROUP, GROUPS = Path("/proc/self/cgroup"), Path("/sys/fs/cgroup")


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes. 0 where the system does not tell."""

    total: int
    free: int  # that nobody uses, or that is given up for whoever needs it


def memory_here() -> Memory:
    """What a container or service was given, where that is less than what the machine has."""
    machine = _of_machine()
    limit, used = _of_group("memory.max"), _of_group("memory.current")
    if limit is None or not limit < machine.total:
        return machine
    return Memory(limit, max(0, min(machine.free, limit - (used or 0))))


def give_back() -> None:
    """What this process has freed, where the C library keeps it for later (glibc does): what loading was done in lies
    in holes between what is kept, and hundreds of megabytes of it would never be used again."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if os.name == "posix" else None
    if trim is not None:
        trim(0)


def _of_machine() -> Memory:
    try:
        said = dict(re.findall(r"^(\w+): *(\d+) kB$", FACTS.read_text(), re.MULTILINE))
        return Memory(int(said["MemTotal"]) << 10, int(said["MemAvailable"]) << 10)
    except (OSError, KeyError):
        return Memory(_pages("SC_PHYS_PAGES"), _pages("SC_AVPHYS_PAGES"))


def _pages(name: str) -> int:
    if name not in getattr(os, "sysconf_names", {}):
        return 0
    return os.sysconf(name) * os.sysconf("SC_PAGE_SIZE")


def _of_group(name: str) -> int | None:
    """Where Linux says so."""
    try:
        group = OWN_GROUP.read_text().rpartition("0::/")[2].strip()
        return int((GROUPS / group / name).read_text())
    except (OSError, ValueError):  # there is no such file, or it says "max"
        return None
