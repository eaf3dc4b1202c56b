"""The watcher: notices that a right was lost, by whatever process took it, and tells the sockets that stand on it.

It looks at the database twice a second, and only while something is watched. Looking beats being told: the `hamdam`
command, an expiry and a request on another socket are all the same to it.
"""
import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass

from sqlalchemy import select
from sqlalchemy.exc import SQLAlchemyError

from ..storage.clock import now_us
from ..storage.database import Database
from ..storage.errors import StorageError
from ..storage.tables import ApiKey, Login, User
from .identity import Identity

SIGN_IN_ENDED, DISABLED = 4401, 4403
EVERY_S = 0.5

log = logging.getLogger("hamdam.people")


@dataclass(frozen=True, slots=True)
class Account:
    """What stands on the account alone, and stays when the sign-in or key that began it is gone."""

    user_id: str


class Watcher:
    def __init__(self, database: Database) -> None:
        self._database = database
        self._watched: dict[object, tuple[Identity | Account, Callable[[int], None]]] = {}
        self._something = asyncio.Event()

    def watch(self, right: Identity | Account, lost: Callable[[int], None]) -> Callable[[], None]:
        handle = object()
        self._watched[handle] = (right, lost)
        self._something.set()

        def unwatch() -> None:
            self._watched.pop(handle, None)

        return unwatch

    async def run(self) -> None:
        """For ever; a task of the app."""
        while True:
            if not self._watched:
                self._something.clear()
                await self._something.wait()
            await asyncio.sleep(EVERY_S)
            try:
                await self.look()
            except (SQLAlchemyError, StorageError):
                log.exception("rights could not be read again; trying on")

    async def look(self) -> None:
        """One look at all that is watched; each loss is told once."""
        watched = dict(self._watched)
        lost = await self._lost({right for right, _ in watched.values()})
        for handle, (right, tell) in watched.items():
            if right in lost and self._watched.pop(handle, None) is not None:
                asyncio.get_running_loop().call_soon(tell, lost[right])

    async def _lost(self, rights: set[Identity | Account]) -> dict[Identity | Account, int]:
        identities = {right for right in rights if isinstance(right, Identity)}
        users = select(User.id, User.state, User.role).where(User.id.in_({right.user_id for right in rights}))
        logins = select(Login.id).where(Login.id.in_({i.login_id for i in identities}), Login.expires_at > now_us())
        keys = select(ApiKey.id).where(
            ApiKey.id.in_({i.key_id for i in identities}),
            ApiKey.revoked_at.is_(None),
            ApiKey.expires_at.is_(None) | (ApiKey.expires_at > now_us()),
        )
        async with self._database.read() as sql:
            now = {user_id: (state, role) for user_id, state, role in await sql.execute(users)}
            alive = {*await sql.scalars(logins), *await sql.scalars(keys)}
        ended = {i for i in identities if (i.login_id or i.key_id) not in alive}
        lost: dict[Identity | Account, int] = {}
        for right in rights:
            state, role = now.get(right.user_id, ("deleted", ""))
            if state == "disabled":
                lost[right] = DISABLED
            elif state != "active" or right in ended or (isinstance(right, Identity) and role != right.role):
                lost[right] = SIGN_IN_ENDED
        return lost
