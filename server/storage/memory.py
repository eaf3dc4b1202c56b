"""MemoryDatabase: the tables of conversations in this process's memory alone. Nothing of it ever reaches a disk.

It is gone with the process, or when it is closed. Of its users it knows only the ids.
"""
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from sqlalchemy.dialects import sqlite
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.schema import CreateIndex, CreateTable

from .database import Database
from .tables import Conversation, Message

PAGE, AT_MOST = 4096, 256 << 20  # bytes


class MemoryDatabase(Database):
    """A connection is a database here: there is one, it begins with empty tables, and readers wait for the writer."""

    def __init__(self) -> None:
        limits = (f"PRAGMA page_size={PAGE}", f"PRAGMA max_page_count={AT_MOST // PAGE}")
        no_files = "PRAGMA temp_store=MEMORY"  # what a sort needs room for would else go to a file
        super().__init__(Path(":memory:"), prepare=(*limits, no_files, *_tables()))

    @asynccontextmanager
    async def read(self) -> AsyncIterator[AsyncSession]:
        async with self.write() as sql:
            yield sql


def _tables() -> list[str]:
    tables = [kind.__table__ for kind in (Conversation, Message)]
    elements = [CreateTable(table) for table in tables]  # type: ignore[arg-type]
    elements += [CreateIndex(index) for table in tables for index in table.indexes]  # type: ignore[attr-defined, misc]
    return [str(element.compile(dialect=sqlite.dialect())) for element in elements]
