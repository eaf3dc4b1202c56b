"""What this machine's memory is, from what Linux says; a container's limit where that is less."""
from pathlib import Path

import pytest

from hamdam.engine import memory
from hamdam.engine.memory import Memory, memory_here

MIB = 1 << 20


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A machine of 1,000 MiB of which 600 are free."""
    (tmp_path / "meminfo").write_text(f"MemTotal:   {1000 << 10} kB\nMemFree:  5 kB\nMemAvailable: {600 << 10} kB\n")
    (tmp_path / "own").write_text("0::/a/b\n")
    (tmp_path / "a/b").mkdir(parents=True)
    monkeypatch.setattr(memory, "FACTS", tmp_path / "meminfo")
    monkeypatch.setattr(memory, "OWN_GROUP", tmp_path / "own")
    monkeypatch.setattr(memory, "GROUPS", tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("limit", "used", "free"),
    [("max", 100, (1000, 600)), (None, None, (1000, 600)), (f"{2000 * MIB}", 100, (1000, 600)),
     (f"{500 * MIB}", 100, (500, 400)), (f"{900 * MIB}", 100, (900, 600)), (f"{500 * MIB}", 700, (500, 0))],
)
def test_a_limit_counts_where_it_is_less(
    told: Path, limit: str | None, used: int | None, free: tuple[int, int]
) -> None:
    if limit is not None and used is not None:
        (told / "a/b/memory.max").write_text(limit + "\n")
        (told / "a/b/memory.current").write_text(f"{used * MIB}\n")
    assert memory_here() == Memory(free[0] * MIB, free[1] * MIB)


def test_a_system_that_says_it_otherwise_is_asked_for_pages(told: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (told / "meminfo").write_text("nothing of use")
    pages = {"SC_PHYS_PAGES": 10, "SC_AVPHYS_PAGES": 4, "SC_PAGE_SIZE": MIB}
    monkeypatch.setattr(memory.os, "sysconf_names", pages, raising=False)
    monkeypatch.setattr(memory.os, "sysconf", pages.__getitem__, raising=False)
    assert memory_here() == Memory(10 * MIB, 4 * MIB)
    monkeypatch.setattr(memory.os, "sysconf_names", {}, raising=False)
    assert memory_here() == Memory(0, 0)
