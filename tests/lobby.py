"""A server without a socket, for tests of people and of what stands before the routes. The engine is not started.

    @in_lobby(public_url="https://chat.example.org")
    async def test_…(lobby: Lobby) -> None:
        await lobby.person("ana")
        async with lobby.browser() as ana: …

Requests go straight into the app.
"""
import contextlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import httpx
from argon2 import PasswordHasher
from scenes import Scene, given
from scripted import scripted_engine
from sqlalchemy import select

from hamdam.server.app import create_app
from hamdam.server.people.keys import create_key
from hamdam.server.people.passwords import Passwords
from hamdam.server.settings import Settings
from hamdam.server.storage.database import Database
from hamdam.server.storage.tables import AuditEntry

CHEAP = PasswordHasher(time_cost=1, memory_cost=8, parallelism=1)  # nobody guesses here
PASSWORD = "a good long passphrase"
HOST = "chat.test"


class Lobby:
    def __init__(self, app: Any, database: Database, public_url: str | None) -> None:
        self.app, self.house, self.database = app, app.state.house, database
        self.origin = public_url or f"http://{HOST}"
        self.users: dict[str, str] = {}

    async def person(self, name: str, *, role: str = "member") -> str:
        self.users[name] = (await self.house.accounts.create(name, PASSWORD, role=role)).id
        return self.users[name]

    async def key(self, name: str, **kind: Any) -> str:
        async with self.database.write() as sql:
            return (await create_key(sql, self.users[name], **kind))[1]

    @contextlib.asynccontextmanager
    async def browser(self, name: str | None = None, *, address: str = "10.0.0.7") -> AsyncIterator[httpx.AsyncClient]:
        """As our own pages send: with their Origin, keeping cookies; signed in where a name is given."""
        async with self.program(address=address) as client:
            client.headers["origin"] = self.origin
            if name is not None:
                said = await client.post("/api/sign-in", json={"name": name, "password": PASSWORD})
                assert said.status_code == 200, said.text
            yield client

    @contextlib.asynccontextmanager
    async def program(self, key: str | None = None, *, address: str = "10.0.0.7") -> AsyncIterator[httpx.AsyncClient]:
        headers = {"authorization": f"Bearer {key}"} if key else {}
        transport = httpx.ASGITransport(self.app, client=(address, 5000), raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url=self.origin, headers=headers) as client:
            yield client

    async def audited(self) -> list[str]:
        async with self.database.read() as sql:
            return list(await sql.scalars(select(AuditEntry.action).order_by(AuditEntry.id)))


@contextlib.asynccontextmanager
async def lobby(data: Path, **settings: Any) -> AsyncIterator[Lobby]:
    database = await Database.open(data / "hamdam.db")
    try:
        app = create_app(Settings(data=data, **settings), scripted_engine(), database, passwords=Passwords(CHEAP))
        yield Lobby(app, database, settings.get("public_url"))
    finally:
        await database.close()


def in_lobby(**settings: Any) -> Callable[[Scene], Callable[..., None]]:
    """Gives an async test a Lobby as `lobby`."""
    return given("lobby", lambda folder: lobby(folder, **settings))
