"""The database: what stands after many writers, after cancellations, after a full disk."""
import asyncio
import random
from pathlib import Path

import pytest
from hamdam.server.storage.database import Database
from sqlalchemy import text


def run(coroutine):
    return asyncio.run(coroutine)


async def counter(path: Path) -> Database:
    database = await Database.open(path / "hamdam.db")
    async with database.write() as sql:
        await sql.execute(text("CREATE TABLE counter (n INTEGER)"))
        await sql.execute(text("INSERT INTO counter VALUES (0)"))
    return database


def test_g03_all_160_increments_of_8_tasks_are_there(tmp_path: Path) -> None:
    async def world() -> int:
        database = await counter(tmp_path)

        async def count() -> None:
            for _ in range(20):
                async with database.write() as sql:
                    n = (await sql.execute(text("SELECT n FROM counter"))).scalar_one()
                    await asyncio.sleep(0.001)
                    await sql.execute(text("UPDATE counter SET n = :n"), {"n": n + 1})

        await asyncio.gather(*(count() for _ in range(8)))
        async with database.read() as sql:
            total = (await sql.execute(text("SELECT n FROM counter"))).scalar_one()
        await database.close()
        return total

    assert run(world()) == 160
