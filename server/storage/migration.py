"""Migration: brings the tables to this code's version, or says why not. The steps are in migrations/versions."""
from importlib.resources import as_file, files
from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy.engine import Connection

from .errors import DatabaseNewer, DatabaseOlder, StorageError


def upgrade(connection: Connection) -> None:
    """Run the missing steps in the connection's transaction, which the caller commits. Foreign keys must be off:

    tables are changed by building them anew.
    """
    with as_file(files("hamdam.migrations")) as folder:
        config = _config(folder)
        _refuse_newer(connection, ScriptDirectory.from_config(config))
        config.attributes["connection"] = connection
        command.upgrade(config, "head")
    broken = connection.exec_driver_sql("PRAGMA foreign_key_check").fetchone()
    if broken is not None:
        raise StorageError(f"the database is damaged: {broken[0]} points to {broken[2]} that are not there")


def check_current(connection: Connection) -> None:
    """Refuse tables of another version: only the server that holds the data folder changes them."""
    with as_file(files("hamdam.migrations")) as folder:
        steps = ScriptDirectory.from_config(_config(folder))
        _refuse_newer(connection, steps)
        if _version(connection) != steps.get_current_head():
            raise DatabaseOlder("the database is of an older version: start `hamdam serve` once to bring it up to date")


def _version(connection: Connection) -> str | None:
    return MigrationContext.configure(connection).get_current_revision()


def _refuse_newer(connection: Connection, steps: ScriptDirectory) -> None:
    version = _version(connection)
    if version is not None and version not in {step.revision for step in steps.walk_revisions()}:
        raise DatabaseNewer(f"the database is of a newer version of Hamdam (step {version}): install that one")


def _config(folder: Path) -> Config:
    config = Config()
    config.set_main_option("script_location", str(folder).replace("%", "%%"))
    return config
