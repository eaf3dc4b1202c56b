"""Migration: takes the steps that are missing, with Alembic. Which there are is version.py's to know."""
from importlib.resources import as_file, files
from pathlib import Path

from alembic import command
from alembic.config import Config
from sqlalchemy.engine import Connection

from .errors import StorageError


def take_steps(connection: Connection) -> None:
    """In the connection's transaction, which the caller commits. Foreign keys must be off, for tables are changed by
    building them anew; what they ask for is looked at afterwards."""
    with as_file(files("hamdam.migrations")) as folder:
        config = _config(folder)
        config.attributes["connection"] = connection
        command.upgrade(config, "head")
    broken = connection.exec_driver_sql("PRAGMA foreign_key_check").fetchone()
    if broken is not None:
        raise StorageError(f"the database is damaged: {broken[0]} points to {broken[2]} that are not there")


def _config(folder: Path) -> Config:
    config = Config()
    config.set_main_option("script_location", str(folder).replace("%", "%%"))
    return config
