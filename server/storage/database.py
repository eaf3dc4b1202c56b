"""Database: SQLite through SQLAlchemy, one writer and many readers. It knows transactions, not what the tables mean.

    async with database.read() as sql: ...     # one snapshot, on a connection that cannot write
    async with database.write() as sql: ...    # BEGIN IMMEDIATE; commits on a clean exit, rolls back on any other

Why IMMEDIATE: a transaction that reads first and writes later is refused at once (SQLITE_BUSY_SNAPSHOT) when somebody
else wrote in between, whatever the busy timeout; one that takes the write lock first waits its turn instead.
Inside the process writers queue at a lock of ours, so that waiting costs no thread; the busy timeout is for the
`hamdam` command, which writes beside a running server.
"""
import asyncio
import sqlite3
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Self

from sqlalchemy import URL, event
from sqlalchemy.engine import Connection, ExceptionContext
from sqlalchemy.exc import DatabaseError
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, create_async_engine
from sqlalchemy.pool import AsyncAdaptedQueuePool, NullPool

from .errors import DatabaseOlder, StorageError, StorageFull
from .folder import filesystem_type, is_network
from .version import check_current, upgrade
from .whole import WholeSession

BUSY_TIMEOUT_S = 5.0
READERS = 4  # connections kept open for reading; each is a thread of the driver
READERS_AT_MOST = 12


class Database:
    def __init__(self, path: Path, *, prepare: Sequence[str] = ("PRAGMA foreign_keys=ON",)) -> None:
        """Use `open` or `attach`: a Database is only handed out once its tables are known to be right.

        `prepare`: what the writer's connection begins with.
        """
        self.path = path
        self._writer = _engine(path, begin="BEGIN IMMEDIATE", prepare=prepare, pool_size=1, max_overflow=0)
        some = {"pool_size": READERS, "max_overflow": READERS_AT_MOST - READERS}
        self._readers = _engine(path, begin="BEGIN", prepare=("PRAGMA query_only=ON",), **some)
        self._turn_to_write = asyncio.Lock()

    @classmethod
    async def open(cls, path: Path) -> Self:
        """Bring the tables up to date, then open. Only the holder of the data folder's lock may call this."""
        _refuse_network(path)
        await _run_once(path, upgrade)
        return cls(path)

    @classmethod
    async def attach(cls, path: Path) -> Self:
        """Open beside a running server, whose tables are this version's or the attempt is refused."""
        if not await asyncio.to_thread(path.exists):
            raise DatabaseOlder(f"{path}: there is no database yet")
        await _run_once(path, check_current)
        return cls(path)

    async def close(self) -> None:
        await self._readers.dispose()
        await self._writer.dispose()

    @asynccontextmanager
    async def read(self) -> AsyncIterator[AsyncSession]:
        session = WholeSession(self._readers, expire_on_commit=False)
        try:
            await session.connection()  # the moment that is seen is now
            yield session
        finally:
            await session.close()

    @asynccontextmanager
    async def write(self) -> AsyncIterator[AsyncSession]:
        async with self._turn_to_write:
            session = WholeSession(self._writer, expire_on_commit=False)
            try:
                await session.connection()  # BEGIN IMMEDIATE now, not at the first statement
                yield session
                await session.commit()
            finally:
                await session.close()  # rolls back what was not committed


def _engine(path: Path, *, begin: str, prepare: Sequence[str], **pool: Any) -> AsyncEngine:
    """Parameters are hidden in errors: those are logged, and logs never hold what people write."""
    url = URL.create("sqlite+aiosqlite", database=str(path))
    options: dict[str, Any] = {"poolclass": AsyncAdaptedQueuePool, "connect_args": {"timeout": BUSY_TIMEOUT_S}} | pool
    engine = create_async_engine(url, hide_parameters=True, **options)

    @event.listens_for(engine.sync_engine, "connect")
    def _prepare(connection: Any, _record: object) -> None:
        connection.isolation_level = None  # the driver opens no transaction by itself: `_begin` does
        cursor = connection.cursor()
        for statement in ("PRAGMA journal_mode=WAL", "PRAGMA synchronous=FULL", *prepare):
            cursor.execute(statement)
        cursor.close()

    @event.listens_for(engine.sync_engine, "begin")
    def _begin(connection: Connection) -> None:
        connection.exec_driver_sql(begin)

    @event.listens_for(engine.sync_engine, "handle_error")
    def _name_a_full_disk(context: ExceptionContext) -> None:
        if is_full(context.original_exception):
            raise StorageFull(f"{path}: the disk is full") from context.original_exception

    return engine


def is_full(error: BaseException | None) -> bool:
    """Whether SQLite says that there is no room: for the file, or (an I/O error then) for its write-ahead log."""
    while error is not None:
        if getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_FULL:
            return True
        error = error.__cause__
    return False


async def _run_once(path: Path, work: Callable[[Connection], None]) -> None:
    """In one transaction, with foreign keys off: tables are rebuilt, and inside a transaction SQLite cannot switch."""
    engine = _engine(path, begin="BEGIN IMMEDIATE", prepare=("PRAGMA foreign_keys=OFF",), poolclass=NullPool)
    try:
        async with engine.begin() as connection:
            await connection.run_sync(work)
    except DatabaseError as error:
        raise StorageError(f"{path}: {error.orig}") from error
    finally:
        await engine.dispose()


def _refuse_network(path: Path) -> None:
    kind = filesystem_type(path.parent)
    if is_network(kind):
        raise StorageError(f"{path.parent} is on a network file system ({kind}), where SQLite loses data")
