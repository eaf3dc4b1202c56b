"""The database: what stands after many writers, after cancellations, after a full disk, and beside other processes."""
import asyncio
import os
import random
import sqlite3
import threading
from collections.abc import Awaitable, Callable
from contextlib import closing
from pathlib import Path

import pytest
from sqlalchemy import text
from sqlalchemy.exc import OperationalError

from hamdam.server.storage.database import Database
from hamdam.server.storage.errors import StorageFull

ADD_ONE = text("UPDATE counter SET n = n + 1")


def on_a_counter(path: Path, work: Callable[[Database], Awaitable[None]]) -> None:
    """Runs `work` on a fresh database with one counter at 0."""

    async def world() -> None:
        database = await Database.open(path / "hamdam.db")
        try:
            async with database.write() as sql:
                await sql.execute(text("CREATE TABLE counter (n INTEGER)"))
                await sql.execute(text("INSERT INTO counter VALUES (0)"))
            await work(database)
        finally:
            await database.close()

    asyncio.run(world())


async def count(database: Database) -> int:
    async with database.read() as sql:
        return int((await sql.execute(text("SELECT n FROM counter"))).scalar_one())


async def read_wait_write(database: Database, times: int) -> None:
    for _ in range(times):
        async with database.write() as sql:
            n = (await sql.execute(text("SELECT n FROM counter"))).scalar_one()
            await asyncio.sleep(0.001)
            await sql.execute(text("UPDATE counter SET n = :n"), {"n": n + 1})


def test_g03_all_160_increments_of_8_tasks_are_there(tmp_path: Path) -> None:
    async def work(database: Database) -> None:
        await asyncio.gather(*(read_wait_write(database, 20) for _ in range(8)))
        assert await count(database) == 160

    on_a_counter(tmp_path, work)


def test_g03_a_second_process_loses_no_update_either(tmp_path: Path) -> None:
    """The `hamdam` command writes beside the server: two Databases on one file share nothing but the file."""

    async def work(database: Database) -> None:
        other = await Database.attach(database.path)
        try:
            await asyncio.gather(*(read_wait_write(one, 20) for one in (database, other) for _ in range(4)))
        finally:
            await other.close()
        assert await count(database) == 160

    on_a_counter(tmp_path, work)


def test_g03_200_cancellations_leave_no_lock_no_thread_and_no_open_file(tmp_path: Path) -> None:
    async def work(database: Database) -> None:
        chance = random.Random(3)
        await asyncio.gather(count(database), read_wait_write(database, 1))
        threads, files = threading.active_count(), len(os.listdir("/proc/self/fd"))
        begun = done = 0

        async def write_a_while() -> None:
            nonlocal begun, done
            begun += 1
            await read_wait_write(database, 1)
            done += 1

        for _ in range(200):
            task = asyncio.create_task(write_a_while())
            for _ in range(chance.randrange(30)):
                await asyncio.sleep(0)
            if chance.random() < 0.5:
                await asyncio.sleep(chance.random() * 0.004)
            task.cancel()
            await asyncio.wait({task})
        assert begun > done, "nothing was cancelled"
        before = await count(database)
        assert before >= done + 1  # a commit that had begun when it was cancelled stands
        async with asyncio.timeout(1):
            await read_wait_write(database, 1)
        assert await count(database) == before + 1
        async with database.read() as sql:
            assert (await sql.execute(text("PRAGMA integrity_check"))).scalars().all() == ["ok"]
        assert (threading.active_count(), len(os.listdir("/proc/self/fd"))) == (threads, files)

    on_a_counter(tmp_path, work)


def test_g03_cancelled_twice_while_rolling_back_still_leaves_no_lock(tmp_path: Path) -> None:
    async def work(database: Database) -> None:
        for ticks in range(40):
            task = asyncio.create_task(read_wait_write(database, 1))
            for _ in range(ticks):
                await asyncio.sleep(0)
            while not task.done():  # as a task group does that is impatient
                task.cancel()
                await asyncio.sleep(0)
        before = await count(database)
        async with asyncio.timeout(1):
            await read_wait_write(database, 1)
        assert await count(database) == before + 1

    on_a_counter(tmp_path, work)


def test_an_exception_rolls_back_and_the_next_writer_gets_on(tmp_path: Path) -> None:
    async def work(database: Database) -> None:
        async def add_one_and_fail() -> None:
            async with database.write() as sql:
                await sql.execute(ADD_ONE)
                raise KeyError

        with pytest.raises(KeyError):
            await add_one_and_fail()
        assert await count(database) == 0
        async with database.write() as sql:
            await sql.execute(ADD_ONE)
        assert await count(database) == 1

    on_a_counter(tmp_path, work)


def test_a_reader_sees_one_moment_and_never_waits_for_the_writer(tmp_path: Path) -> None:
    async def work(database: Database) -> None:
        async with database.read() as reading:
            first = (await reading.execute(text("SELECT n FROM counter"))).scalar_one()
            async with database.write() as sql:
                await sql.execute(ADD_ONE)
                assert await count(database) == 0, "seen before it was committed"
            assert (await reading.execute(text("SELECT n FROM counter"))).scalar_one() == first
        assert await count(database) == 1

    on_a_counter(tmp_path, work)


def test_a_reader_cannot_write(tmp_path: Path) -> None:
    async def work(database: Database) -> None:
        with pytest.raises(OperationalError, match="readonly"):
            async with database.read() as sql:
                await sql.execute(ADD_ONE)
        assert await count(database) == 0

    on_a_counter(tmp_path, work)


def test_more_readers_than_connections_wait_their_turn(tmp_path: Path) -> None:
    async def work(database: Database) -> None:
        assert await asyncio.gather(*(count(database) for _ in range(60))) == [0] * 60

    on_a_counter(tmp_path, work)


def test_what_is_acknowledged_is_on_disk_and_references_are_kept(tmp_path: Path) -> None:
    async def work(database: Database) -> None:
        async with database.write() as sql:
            names = ("journal_mode", "synchronous", "foreign_keys")
            assert [(await sql.execute(text(f"PRAGMA {name}"))).scalar_one() for name in names] == ["wal", 2, 1]

    on_a_counter(tmp_path, work)


def test_a_full_disk_is_said_as_that_and_what_was_there_stands(tmp_path: Path) -> None:
    async def work(database: Database) -> None:
        async with database.write() as sql:
            pages = (await sql.execute(text("PRAGMA page_count"))).scalar_one()
            await sql.execute(text(f"PRAGMA max_page_count = {pages + 2}"))

        async def add_one_and_a_lot() -> None:
            async with database.write() as sql:
                await sql.execute(ADD_ONE)
                await sql.execute(text("CREATE TABLE big AS SELECT zeroblob(1000000) AS b"))

        with pytest.raises(StorageFull, match="the disk is full"):
            await add_one_and_a_lot()
        assert await count(database) == 0
        async with database.write() as sql:
            await sql.execute(ADD_ONE)
        assert await count(database) == 1

    on_a_counter(tmp_path, work)


def test_somebody_else_s_lock_is_waited_for(tmp_path: Path) -> None:
    async def work(database: Database) -> None:
        with closing(sqlite3.connect(database.path, isolation_level=None, check_same_thread=False)) as other:
            other.execute("BEGIN IMMEDIATE")
            writing = asyncio.create_task(read_wait_write(database, 1))
            await asyncio.sleep(0.05)
            assert not writing.done()
            other.execute("ROLLBACK")
            await writing
        assert await count(database) == 1

    on_a_counter(tmp_path, work)
