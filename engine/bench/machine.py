"""Machine: what a figure was measured on, and how busy it was with other things. It measures nothing."""
import os
import platform
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    cpu: str
    cores: int  # that this process may use
    memory: int  # bytes; 0 where the system does not tell
    system: str
    python: str
    torch: str
    load: float  # how many processes wanted a core in the minute before; 0 where the system does not tell

    @property
    def is_busy(self) -> bool:
        """Whether others take so much of the cores that timings say more about them than about us."""
        return self.load > self.cores / 2


def this_machine() -> Machine:
    return Machine(
        cpu=_cpu() or platform.processor() or platform.machine(),
        cores=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
        memory=memory("SC_PHYS_PAGES"),
        system=f"{platform.system()} {platform.release()}",
        python=platform.python_version(),
        torch=_version("torch"),
        load=round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else 0.0,
    )


def memory(pages: str) -> int:
    """Bytes: SC_PHYS_PAGES is all there is, SC_AVPHYS_PAGES what nobody uses. 0 where the system does not tell."""
    if pages not in getattr(os, "sysconf_names", {}):
        return 0
    return os.sysconf(pages) * os.sysconf("SC_PAGE_SIZE")


def _cpu() -> str:
    try:
        facts = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    names = [line.partition(":")[2].strip() for line in facts.splitlines() if line.startswith("model name")]
    return names[0] if names else ""


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""
