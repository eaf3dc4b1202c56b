"""The set-up link: makes the first admin, once. Printed at start while there is none, kept as a hash; not a login."""
from sqlalchemy import delete, select

from ..errors import ApiError
from ..storage.clock import now_us
from ..storage.database import Database
from ..storage.tables import SetupLink
from .accounts import Accounts, add_user, has_admin
from .audit import record
from .identity import Forbidden
from .logins import create_login
from .names import clean_name
from .opaque import hash_secret, new_secret
from .visitor import Visitor


class SetUp:
    def __init__(self, database: Database, accounts: Accounts) -> None:
        self._database = database
        self._accounts = accounts

    async def renew(self) -> str | None:
        """A new link's secret, which voids the one before; None once there is an admin."""
        async with self._database.write() as sql:
            await sql.execute(delete(SetupLink))
            if await has_admin(sql):
                return None
            secret = new_secret()
            sql.add(SetupLink(secret_hash=hash_secret(secret), created_at=now_us()))
        return secret

    async def valid(self, secret: str) -> bool:
        async with self._database.read() as sql:
            link = select(SetupLink.secret_hash).where(SetupLink.secret_hash == hash_secret(secret))
            return await sql.scalar(link) is not None

    async def redeem(self, secret: str, name: str, password: str, visitor: Visitor) -> str:
        """Make the first admin and sign them in: the login's secret. The link is used up in the same transaction."""
        self._accounts.attempts.take("", visitor.address)
        if not await self.valid(secret):  # before any hashing; decided once more below
            raise _void()
        name = clean_name(name)
        hashed = await self._accounts.passwords.hash(password)
        async with self._database.write() as sql:
            used = delete(SetupLink).where(SetupLink.secret_hash == hash_secret(secret))
            found = (await sql.scalars(used.returning(SetupLink.secret_hash))).first()
            if found is None or await has_admin(sql):
                raise _void()
            user = await add_user(sql, name, hashed, role="admin")
            record(sql, "first admin created", actor_id=user.id, address=visitor.address, target=user.id)
            login = await create_login(sql, user.id, agent=visitor.agent, replaces=visitor.old_login)
        self._accounts.attempts.give_back("", visitor.address)
        return login


def _void() -> ApiError:
    return Forbidden("This set-up link is not valid, or not any more. While there is no admin every start prints one.")
