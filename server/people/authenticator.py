"""The authenticator: from a cookie or a key to an Identity, and later whether it still holds. It grants nothing.

Every way in asks here: pages, /api, /v1, the WebSocket. A sign-in or key is a row, and where the row is gone so is the
right.
"""
import logging
from collections.abc import Callable

from sqlalchemy import ColumnElement, select
from starlette.requests import HTTPConnection

from ..storage.clock import now_us
from ..storage.database import Database
from ..storage.errors import StorageError
from ..storage.tables import ApiKey, Login, User
from .cookie import Cookie
from .identity import Forbidden, Identity, Unauthorized
from .keys import TOUCHED_EVERY as KEY_TOUCHED_EVERY
from .keys import key_is_alive, looks_like_key, touch_key
from .logins import TOUCHED_EVERY as LOGIN_TOUCHED_EVERY
from .logins import login_is_alive, touch_login
from .opaque import hash_secret
from .watcher import Account, Watcher

log = logging.getLogger("hamdam.people")


class Authenticator:
    def __init__(self, database: Database, cookie: Cookie) -> None:
        self._database = database
        self._cookie = cookie
        self.watcher = Watcher(database)

    async def identify(self, conn: HTTPConnection) -> Identity:
        """Who sends this request or handshake. Raises Unauthorized, or Forbidden for a disabled account."""
        secret, key = self._cookie.read(conn), bearer_key(conn)
        if secret and key:
            raise Unauthorized("Send the sign-in cookie or an API key, not both.")
        if key:
            if not looks_like_key(key):
                raise Unauthorized()
            identity, used = await self._key(ApiKey.hash == hash_secret(key))
            if now_us() - used >= KEY_TOUCHED_EVERY:
                await self._touch(identity)
        elif secret:
            identity, used = await self._login(Login.secret_hash == hash_secret(secret))
            if now_us() - used >= LOGIN_TOUCHED_EVERY:
                await self._touch(identity)
        else:
            raise Unauthorized()
        return identity

    async def check(self, identity: Identity) -> Identity:
        """The same sign-in or key as it is now, with the role of now. Raises like `identify`."""
        if identity.key_id is not None:
            return (await self._key(ApiKey.id == identity.key_id))[0]
        return (await self._login(Login.id == identity.login_id))[0]

    def watch(
        self, identity: Identity, lost: Callable[[int], None], ending: Callable[[int], None] | None = None
    ) -> Callable[[], None]:
        """Call `lost(code)` once, within a second after the right is gone (4401, 4403). Returns how to stop.

        `ending(seconds)`: the sign-in or key runs out in so many seconds, if nothing puts that off.
        """
        return self.watcher.watch(identity, lost, ending)

    def watch_account(self, user_id: str, lost: Callable[[int], None]) -> Callable[[], None]:
        """The same for what outlives the sign-in that began it: told only when the account is disabled or deleted."""
        return self.watcher.watch(Account(user_id), lost)

    async def _login(self, which: ColumnElement[bool]) -> tuple[Identity, int]:
        rows = select(User.id, User.name, User.role, User.state, Login.id, Login.last_used_at)
        rows = rows.join(Login, Login.user_id == User.id).where(which, login_is_alive())
        async with self._database.read() as sql:
            row = (await sql.execute(rows)).first()
        if row is None:
            raise Unauthorized()
        user_id, name, role, state, login_id, used = row
        _refuse_disabled(state)
        return Identity(user_id, name, role, login_id=login_id), used

    async def _key(self, which: ColumnElement[bool]) -> tuple[Identity, int]:
        rows = select(User.id, User.name, User.role, User.state, ApiKey.id, ApiKey.last_used_at, ApiKey.service)
        rows = rows.join(ApiKey, ApiKey.user_id == User.id).where(which, key_is_alive())
        async with self._database.read() as sql:
            row = (await sql.execute(rows)).first()
        if row is None:
            raise Unauthorized()
        user_id, name, role, state, key_id, used, service = row
        _refuse_disabled(state)
        return Identity(user_id, name, role, key_id=key_id, service=service), used or 0

    async def _touch(self, identity: Identity) -> None:
        try:
            async with self._database.write() as sql:
                if identity.key_id is not None:
                    await touch_key(sql, identity.key_id)
                elif identity.login_id is not None:
                    await touch_login(sql, identity.login_id)
        except StorageError as error:  # a full disk must not sign everybody out
            log.warning("when %s was last here could not be noted: %s", identity.user_id, error)


def bearer_key(conn: HTTPConnection) -> str | None:
    """The key of `Authorization: Bearer`, scheme in any case; other schemes are a proxy's affair."""
    values = conn.headers.getlist("authorization")
    keys = [value[7:].strip() for value in values if value[:7].lower() == "bearer "]
    if len(keys) > 1:
        raise Unauthorized("Send one API key, not several.")
    return keys[0] if keys else None


def _refuse_disabled(state: str) -> None:
    if state != "active":
        raise Forbidden("This account is disabled.")
