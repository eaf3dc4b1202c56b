"""Migration: brings the tables to the version this code speaks, in one transaction, or says why not. The steps are in migrations/versions."""
from importlib.resources import as_file, files
from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy.engine import Connection

from .errors import DatabaseNewer, StorageError


def upgrade(connection: Connection) -> None:
    """Run the missing steps inside the connection's transaction; the caller commits. Foreign keys must be off (tables are rebuilt)."""
    with as_file(files("hamdam.migrations")) as folder:
        config = _config(folder)
        _refuse_newer(connection, ScriptDirectory.from_config(config))
        config.attributes["connection"] = connection
        command.upgrade(config, "head")
    broken = connection.exec_driver_sql("PRAGMA foreign_key_check").fetchone()
    if broken is not None:
        raise StorageError(f"the database is damaged: a row of {broken[0]} refers to a row of {broken[2]} that is not there")


def check_current(connection: Connection) -> None:
    """Refuse tables of another version: only the server that holds the data folder changes them."""
    with as_file(files("hamdam.migrations")) as folder:
        steps = ScriptDirectory.from_config(_config(folder))
        _refuse_newer(connection, steps)
        if _version(connection) != steps.get_current_head():
            raise StorageError("the database is of an older version: start `hamdam serve` once to bring it up to date")


def _version(connection: Connection) -> str | None:
    return MigrationContext.configure(connection).get_current_revision()


def _refuse_newer(connection: Connection, steps: ScriptDirectory) -> None:
    version = _version(connection)
    if version is not None and version not in {step.revision for step in steps.walk_revisions()}:
        raise DatabaseNewer(f"the database was made by a newer version of Hamdam (step {version}); install that one, or go back to a backup")


def _config(folder: Path) -> Config:
    config = Config()
    config.set_main_option("script_location", str(folder).replace("%", "%%"))
    return config
