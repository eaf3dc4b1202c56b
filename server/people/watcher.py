"""The watcher: notices that a right was lost or soon ends, by whatever process, and tells the sockets that stand on it.

It looks at the database twice a second, and only while something is watched. Looking beats being told: the `hamdam`
command, an expiry and a request on another socket are all the same to it.
"""
import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass

from sqlalchemy import select
from sqlalchemy.exc import SQLAlchemyError

from ..storage.clock import SECOND, now_us
from ..storage.database import Database
from ..storage.errors import StorageError
from ..storage.tables import ApiKey, Login, User
from .identity import Identity
from .keys import key_is_alive
from .logins import login_is_alive

SIGN_IN_ENDED, DISABLED = 4401, 4403  # the codes that sockets are closed with
EVERY_S = 0.5
SOON = 300 * SECOND  # a sign-in or key with less than this left: time to come back or to save what one writes

log = logging.getLogger("hamdam.people")


@dataclass(frozen=True, slots=True)
class Account:
    """What stands on the account alone, and stays when the sign-in or key that began it is gone."""

    user_id: str


@dataclass(slots=True)
class Watch:
    """`lost(code)` is called once; `ending(seconds)` once each time that the end comes near (a use may put it off)."""

    right: Identity | Account
    lost: Callable[[int], None]
    ending: Callable[[int], None] | None = None
    told: bool = False


@dataclass(frozen=True, slots=True)
class Sight:
    """What one look found: the rights that are lost, with their codes, and when those that end soon do."""

    lost: dict[Identity | Account, int]
    ends: dict[str, int]  # by login or key


class Watcher:
    def __init__(self, database: Database) -> None:
        self._database = database
        self._watched: dict[object, Watch] = {}
        self._something = asyncio.Event()

    def watch(
        self, right: Identity | Account, lost: Callable[[int], None], ending: Callable[[int], None] | None = None
    ) -> Callable[[], None]:
        handle = object()
        self._watched[handle] = Watch(right, lost, ending)
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
        """One look at all that is watched; each loss is told once, and so is each end that comes near."""
        watched, soon = dict(self._watched), asyncio.get_running_loop().call_soon
        sight = await self._look({watch.right for watch in watched.values()})
        for handle, watch in watched.items():
            if watch.right in sight.lost:
                if self._watched.pop(handle, None) is not None:
                    soon(watch.lost, sight.lost[watch.right])
            elif watch.ending is not None and isinstance(watch.right, Identity):
                end = sight.ends.get(watch.right.login_id or watch.right.key_id or "")
                if end is not None and not watch.told:
                    soon(watch.ending, max(0, (end - now_us()) // SECOND))
                watch.told = end is not None

    async def _look(self, rights: set[Identity | Account]) -> Sight:
        identities = {right for right in rights if isinstance(right, Identity)}
        users = select(User.id, User.state, User.role).where(User.id.in_({right.user_id for right in rights}))
        login_ids, key_ids = {i.login_id for i in identities}, {i.key_id for i in identities}
        logins = select(Login.id, Login.expires_at).where(login_is_alive(), Login.id.in_(login_ids))
        keys = select(ApiKey.id, ApiKey.expires_at).where(key_is_alive(), ApiKey.id.in_(key_ids))
        async with self._database.read() as sql:
            now = {user_id: (state, role) for user_id, state, role in await sql.execute(users)}
            alive = {id: end for rows in (logins, keys) for id, end in await sql.execute(rows)}
        ended = {i for i in identities if (i.login_id or i.key_id) not in alive}
        lost: dict[Identity | Account, int] = {}
        for right in rights:
            state, role = now.get(right.user_id, ("deleted", ""))
            if state == "disabled":
                lost[right] = DISABLED
            elif state != "active" or right in ended or (isinstance(right, Identity) and role != right.role):
                lost[right] = SIGN_IN_ENDED
        return Sight(lost, {id: end for id, end in alive.items() if end is not None and end < now_us() + SOON})
