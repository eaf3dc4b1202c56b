"""The version of a database's tables, and whether this code can use them. The steps themselves are migration.py's.

Alembic takes longer to import than all of this; nothing asks for it where there is no step to take.
"""
from importlib.resources import files

from sqlalchemy.engine import Connection

from .errors import DatabaseNewer, DatabaseOlder


def upgrade(connection: Connection) -> None:
    """Bring the tables to this code's version, in the connection's transaction. Foreign keys must be off there."""
    version = _version(connection)
    if version != known_versions()[-1]:
        _refuse_newer(version)
        from .migration import take_steps

        take_steps(connection)


def check_current(connection: Connection) -> None:
    """Refuse tables of another version: only the server that holds the data folder changes them."""
    version = _version(connection)
    _refuse_newer(version)
    if version != known_versions()[-1]:
        raise DatabaseOlder("the database is of an older version: start `hamdam serve` once to bring it up to date")


def known_versions() -> list[str]:
    """The oldest first. The name of a step's file begins with the version that it leads to."""
    names = (file.name.partition("_")[0] for file in files("hamdam.migrations.versions").iterdir())
    return sorted(name for name in names if name.isdigit())


def _version(connection: Connection) -> str | None:
    """None in a new database. The table is Alembic's."""
    found = connection.exec_driver_sql("SELECT 1 FROM sqlite_master WHERE type='table' AND name='alembic_version'")
    if found.fetchone() is None:
        return None
    row = connection.exec_driver_sql("SELECT version_num FROM alembic_version").fetchone()
    return None if row is None else str(row[0])


def _refuse_newer(version: str | None) -> None:
    if version is not None and version not in known_versions():
        raise DatabaseNewer(f"the database is of a newer version of Hamdam (step {version}): install that one")
