"""The database in memory: the same transactions over the same tables, and nothing of it in any file."""
import asyncio
from collections.abc import Awaitable, Callable

import pytest
from sqlalchemy import func, select, update

from hamdam.server.storage.errors import StorageFull
from hamdam.server.storage.memory import MemoryDatabase
from hamdam.server.storage.tables import Conversation, Message


def in_memory(test: Callable[[MemoryDatabase], Awaitable[None]]) -> Callable[[], None]:
    async def scene() -> None:
        database = MemoryDatabase()
        try:
            await test(database)
        finally:
            await database.close()

    def run() -> None:
        asyncio.run(scene())

    return run


def conversation(number: int) -> Conversation:
    return Conversation(id=f"conv_{number}", user_id="user_1", created_at=number, updated_at=number)


async def count(database: MemoryDatabase) -> int:
    async with database.read() as sql:
        return int(await sql.scalar(select(func.count()).select_from(Conversation)) or 0)


@in_memory
async def test_what_was_written_is_read_by_whoever_comes_next(database: MemoryDatabase) -> None:
    async def add(number: int) -> None:
        async with database.write() as sql:
            sql.add(conversation(number))

    await asyncio.gather(*(add(number) for number in range(40)), *(count(database) for _ in range(40)))
    assert await count(database) == 40


@in_memory
async def test_an_exception_rolls_back_and_a_cancelled_reader_leaves_it_whole(database: MemoryDatabase) -> None:
    async def break_off() -> None:
        async with database.write() as sql:
            sql.add(conversation(1))
            await sql.flush()
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await break_off()
    async with database.write() as sql:
        sql.add(conversation(2))
    for _ in range(20):
        reader = asyncio.create_task(count(database))
        await asyncio.sleep(0)
        reader.cancel()
        await asyncio.gather(reader, return_exceptions=True)
    assert await count(database) == 1


@in_memory
async def test_it_has_an_end_and_says_so(database: MemoryDatabase) -> None:
    async with database.write() as sql:
        await (await sql.connection()).exec_driver_sql("PRAGMA max_page_count=60")
    names = {"id": "msg_1", "user_id": "user_1", "conversation_id": "conv_1"}

    async def write_much() -> None:
        async with database.write() as sql:
            sql.add(Message(**names, role="user", status="completed", text="x" * 500_000, created_at=1))

    with pytest.raises(StorageFull):
        await write_much()
    async with database.write() as sql:
        sql.add(conversation(3))
    assert await count(database) == 1


@in_memory
async def test_no_file_is_behind_it(database: MemoryDatabase) -> None:
    async with database.write() as sql:
        connection = await sql.connection()
        assert (await connection.exec_driver_sql("PRAGMA database_list")).all() == [(0, "main", "")]
        assert (await connection.exec_driver_sql("PRAGMA temp_store")).scalar() == 2
        assert (await connection.exec_driver_sql("PRAGMA journal_mode")).scalar() == "memory"
        sql.add(conversation(1))
        await sql.flush()
        await sql.execute(update(Conversation).values(title="changed"))
    assert await count(database) == 1


def test_two_of_them_share_nothing() -> None:
    async def scene() -> None:
        one, other = MemoryDatabase(), MemoryDatabase()
        try:
            async with one.write() as sql:
                sql.add(conversation(1))
            assert (await count(one), await count(other)) == (1, 0)
        finally:
            await one.close()
            await other.close()

    asyncio.run(scene())
