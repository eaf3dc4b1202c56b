"""Migrations: the steps end in exactly the tables of the code, and a database of another version is left alone."""
import asyncio
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import create_engine

from hamdam.server.storage import database as storage
from hamdam.server.storage import migration
from hamdam.server.storage.database import Database
from hamdam.server.storage.errors import DatabaseNewer, DatabaseOlder, StorageError
from hamdam.server.storage.tables import Table
from hamdam.server.storage.version import known_versions

ROOT = Path(__file__).resolve().parents[3]


def open_and_close(path: Path) -> None:
    async def world() -> None:
        await (await Database.open(path)).close()

    asyncio.run(world())


def attach_and_close(path: Path) -> None:
    async def world() -> None:
        await (await Database.attach(path)).close()

    asyncio.run(world())


def set_version(path: Path, version: str) -> None:
    with closing(sqlite3.connect(path)) as database:
        database.execute("UPDATE alembic_version SET version_num = ?", (version,))
        database.commit()


def test_the_steps_end_in_exactly_the_tables_of_the_code(tmp_path: Path) -> None:
    open_and_close(tmp_path / "hamdam.db")
    engine = create_engine(f"sqlite:///{tmp_path / 'hamdam.db'}")
    with engine.connect() as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": True, "compare_server_default": True})
        assert compare_metadata(context, Table.metadata) == []
        assert len(Table.metadata.tables) >= 7
    engine.dispose()


def test_the_constraints_have_the_names_that_later_steps_will_use(tmp_path: Path) -> None:
    """What a comparison does not look at: a step that drops a constraint needs its name."""
    open_and_close(tmp_path / "stepped.db")
    made = create_engine(f"sqlite:///{tmp_path / 'made.db'}")
    Table.metadata.create_all(made)
    made.dispose()

    def constraints(path: Path) -> dict[str, set[str]]:
        with closing(sqlite3.connect(path)) as database:
            tables = dict(database.execute("SELECT name, sql FROM sqlite_master WHERE type = 'table'").fetchall())
        tables.pop("alembic_version", None)
        lines = {name: sql.splitlines() for name, sql in tables.items()}
        return {name: {line.strip(" ,\t\n)") for line in lines[name] if "CONSTRAINT" in line} for name in lines}

    assert constraints(tmp_path / "stepped.db") == constraints(tmp_path / "made.db")


def test_opening_again_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "hamdam.db"
    open_and_close(path)
    with closing(sqlite3.connect(path)) as database:
        before = database.execute("PRAGMA schema_version").fetchall()
    open_and_close(path)
    with closing(sqlite3.connect(path)) as database:
        assert database.execute("PRAGMA schema_version").fetchall() == before


@pytest.mark.parametrize("way_in", [open_and_close, attach_and_close])
def test_a_newer_database_is_refused_in_one_line_and_not_touched(tmp_path: Path, way_in) -> None:
    path = tmp_path / "hamdam.db"
    open_and_close(path)
    set_version(path, "9999")
    with pytest.raises(DatabaseNewer, match="newer version") as refused:
        way_in(path)
    assert "\n" not in str(refused.value)
    with closing(sqlite3.connect(path)) as database:
        assert database.execute("SELECT version_num FROM alembic_version").fetchall() == [("9999",)]


def test_a_step_that_fails_leaves_the_database_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "hamdam.db"

    def fails_at_the_end(connection) -> None:
        upgrade(connection)
        raise RuntimeError("power")

    upgrade = storage.upgrade
    monkeypatch.setattr(storage, "upgrade", fails_at_the_end)
    with pytest.raises(RuntimeError, match="power"):
        open_and_close(path)
    with closing(sqlite3.connect(path)) as database:
        assert database.execute("SELECT name FROM sqlite_master").fetchall() == []


def test_beside_a_server_no_tables_are_made_or_changed(tmp_path: Path) -> None:
    path = tmp_path / "hamdam.db"
    with pytest.raises(DatabaseOlder):
        attach_and_close(path)
    assert not path.exists()


def test_what_is_no_database_is_said_in_one_line(tmp_path: Path) -> None:
    path = tmp_path / "hamdam.db"
    path.write_bytes(b"not a database" * 1000)
    for way_in in (open_and_close, attach_and_close):
        with pytest.raises(StorageError, match="not a database") as refused:
            way_in(path)
        assert "\n" not in str(refused.value)


def test_a_folder_on_the_network_is_refused_loudly(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(storage, "filesystem_type", lambda path: "nfs4")
    with pytest.raises(StorageError, match=r"network file system \(nfs4\)"):
        open_and_close(tmp_path / "hamdam.db")
    assert not (tmp_path / "hamdam.db").exists()


def test_a_step_is_known_by_the_name_of_its_file() -> None:
    """Which is read at every start, so that Alembic is asked only where there is a step to take."""
    script = ScriptDirectory(str(ROOT / "migrations"))
    steps = [step.revision for step in script.walk_revisions()]
    assert known_versions() == sorted(steps)
    assert known_versions()[-1] == script.get_current_head()


def test_tables_that_are_up_to_date_are_opened_without_alembic(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "hamdam.db"
    open_and_close(path)
    monkeypatch.setattr(migration, "take_steps", None)
    open_and_close(path)
    attach_and_close(path)
