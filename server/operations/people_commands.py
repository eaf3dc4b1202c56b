"""`hamdam user` and `hamdam key`: people and keys from the machine's own terminal, beside a running server or alone."""
import argparse
import asyncio
import getpass
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from sqlalchemy import select

from ..errors import ApiError
from ..people.accounts import Accounts, find_user
from ..people.attempts import Attempts
from ..people.audit import record
from ..people.keys import create_key, find_key, list_keys, revoke_key
from ..people.passwords import Passwords
from ..storage.clock import rfc3339
from ..storage.database import Database
from ..storage.errors import DatabaseOlder
from ..storage.folder import DataFolder
from ..storage.tables import User


def run_user(arguments: argparse.Namespace, data: Path) -> None:
    """Raises ApiError or StorageError."""
    asyncio.run(_user(arguments, data))


def run_key(arguments: argparse.Namespace, data: Path) -> None:
    """Raises ApiError or StorageError."""
    asyncio.run(_key(arguments, data))


async def _user(arguments: argparse.Namespace, data: Path) -> None:
    async with _database(data, new=arguments.action == "add") as database:
        accounts = Accounts(database, Passwords(), Attempts())
        match arguments.action:
            case "add":
                role = "admin" if arguments.admin else "member"
                user = await accounts.create(arguments.name, _password(from_stdin=arguments.password_stdin), role=role)
                print(f"{user.name} can sign in now.")
            case "list":
                for user in await accounts.list():
                    print(f"{user.name}\t{user.role}\t{user.state}")
            case "disable":
                print(f"{(await accounts.set_state(arguments.name, 'disabled')).name} is disabled and signed out.")
            case "enable":
                print(f"{(await accounts.set_state(arguments.name, 'active')).name} can sign in again.")
            case "delete":
                print(f"{(await accounts.delete(arguments.name)).name} is deleted with all conversations and keys.")
            case "reset-password":
                user = await accounts.set_password(arguments.name, _password(from_stdin=arguments.password_stdin))
                print(f"{user.name} has a new password and is signed out everywhere.")


async def _key(arguments: argparse.Namespace, data: Path) -> None:
    async with _database(data) as database:
        match arguments.action:
            case "add":
                async with database.write() as sql:
                    user = await find_user(sql, arguments.user)
                    row, key = await create_key(sql, user.id, label=arguments.label, service=arguments.service)
                    record(sql, "key created", target=row.id, owner=user.id, service=arguments.service)
                print(key)  # alone: `KEY=$(hamdam key add …)`
            case "list":
                async with database.read() as sql:
                    names = {user.id: user.name for user in await sql.scalars(select(User))}
                    keys = await list_keys(sql)
                for row in keys:
                    used = "never used" if row.last_used_at is None else f"used {rfc3339(row.last_used_at)}"
                    kind = "service" if row.service else "personal"
                    print(f"{row.prefix}\t{names[row.user_id]}\t{kind}\t{used}\t{row.label}")
            case "revoke":
                async with database.write() as sql:
                    row = await find_key(sql, arguments.key)
                    await revoke_key(sql, row.user_id, row.id)
                    record(sql, "key revoked", target=row.id, owner=row.user_id)
                print(f"{row.prefix} is revoked.")


@asynccontextmanager
async def _database(data: Path, *, new: bool = False) -> AsyncIterator[Database]:
    """The server's database. An older one is brought up to date as `serve` would, under its lock; `new`: also made."""
    folder = DataFolder(data, new=new)
    try:
        database = await Database.attach(folder.database)
    except DatabaseOlder:
        folder.lock()
        try:
            database = await Database.open(folder.database)
        finally:
            folder.unlock()
    try:
        yield database
    finally:
        await database.close()


def _password(*, from_stdin: bool) -> str:
    if from_stdin:
        return sys.stdin.readline().rstrip("\r\n")
    try:
        password = getpass.getpass("Password: ")
        again = getpass.getpass("Once more: ")
    except EOFError as error:
        raise ApiError("invalid_field", "No password was given (see --password-stdin).", param="password") from error
    if again != password:
        raise ApiError("invalid_field", "The two passwords differ.", param="password")
    return password
