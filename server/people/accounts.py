"""Accounts: make, find, disable, delete people, and sign them in. Their sign-ins are logins.py, their keys keys.py."""
from collections.abc import Sequence

from sqlalchemy import delete, select, update
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncSession

from ..errors import ApiError
from ..storage.clock import now_us
from ..storage.database import Database
from ..storage.ids import new_id
from ..storage.tables import Message, SetupLink, User
from .attempts import Attempts
from .audit import record
from .identity import Unauthorized
from .logins import create_login, end_all_logins
from .names import clean_name, name_key
from .passwords import Passwords
from .visitor import Visitor


class Accounts:
    def __init__(self, database: Database, passwords: Passwords, attempts: Attempts) -> None:
        self._database = database
        self.passwords = passwords
        self.attempts = attempts

    async def sign_in(self, name: str, password: str, visitor: Visitor) -> str:
        """The secret of a new login. Wrong name, wrong password and a disabled account sound and take the same."""
        key = name_key(name[:200])
        self.attempts.take(key, visitor.address)
        async with self._database.read() as sql:
            user = await sql.scalar(select(User).where(User.name_key == key))
        right = await self.passwords.verify(password, user.password_hash if user else None)
        async with self._database.write() as sql:
            # Read again: the account may have been disabled, or its password changed, while we computed.
            still = user and await sql.scalar(
                select(User).where(User.id == user.id, User.state == "active", User.password_hash == user.password_hash)
            )
            if right and still:
                record(sql, "sign-in", actor_id=still.id, address=visitor.address)
                secret = await create_login(sql, still.id, agent=visitor.agent, replaces=visitor.old_login)
            else:
                record(sql, "sign-in refused", address=visitor.address, target=user.id if user else None)
                secret = None
        if secret is None:
            raise Unauthorized("This name and password do not belong together.")
        self.attempts.give_back(key, visitor.address)
        return secret

    async def create(self, name: str, password: str, *, role: str = "member", actor_id: str | None = None) -> User:
        """A new account. Making an admin voids the set-up link, which is only for a server that has none."""
        name = clean_name(name)
        hashed = await self.passwords.hash(password)
        async with self._database.write() as sql:
            user = await add_user(sql, name, hashed, role=role)
            if role == "admin":
                await sql.execute(delete(SetupLink))
            record(sql, "user created", actor_id=actor_id, target=user.id, role=role)
        return user

    async def set_state(self, name: str, state: str, *, actor_id: str | None = None) -> User:
        """`disabled` ends every sign-in for good; the keys rest, and work again when the account is `active` again."""
        async with self._database.write() as sql:
            user = await find_user(sql, name)
            user.state = state
            if state == "disabled":
                await end_all_logins(sql, user.id)
            record(sql, f"user {state}", actor_id=actor_id, target=user.id)
        return user

    async def set_password(self, name: str, password: str, *, actor_id: str | None = None) -> User:
        """A new password ends every sign-in that the old one made."""
        hashed = await self.passwords.hash(password)
        async with self._database.write() as sql:
            user = await find_user(sql, name)
            user.password_hash = hashed
            await end_all_logins(sql, user.id)
            record(sql, "password reset", actor_id=actor_id, target=user.id)
        return user

    async def delete(self, name: str, *, actor_id: str | None = None) -> User:
        """The account with all it owns: conversations, sign-ins, keys. The audit log keeps that it was there."""
        async with self._database.write() as sql:
            user = await find_user(sql, name)
            # First no longer a tree: SQLite follows a cascade to a depth of 1,000, a long chat is deeper.
            await sql.execute(update(Message).where(Message.user_id == user.id).values(parent_id=None))
            await sql.execute(delete(User).where(User.id == user.id))
            record(sql, "user deleted", actor_id=actor_id, target=user.id)
        return user

    async def list(self) -> Sequence[User]:
        async with self._database.read() as sql:
            return (await sql.scalars(select(User).order_by(User.created_at))).all()


async def add_user(sql: AsyncSession, name: str, password_hash: str, *, role: str) -> User:
    """`name` as clean_name gives it. Raises ApiError(invalid_field) where somebody has it, in whatever spelling."""
    user = User(
        id=new_id("user"),
        name=name,
        name_key=name_key(name),
        password_hash=password_hash,
        role=role,
        state="active",
        settings={},
        created_at=now_us(),
    )
    sql.add(user)
    try:
        await sql.flush()
    except IntegrityError as error:
        raise ApiError("invalid_field", "This name is taken.", param="name") from error
    return user


async def find_user(sql: AsyncSession, name: str) -> User:
    user = await sql.scalar(select(User).where(User.name_key == name_key(name)))
    if user is None:
        raise ApiError("not_found", "There is no user of this name.", param="name")
    return user


async def has_admin(sql: AsyncSession) -> bool:
    """In whatever state: disabling the only admin must not open the way for the next one."""
    return await sql.scalar(select(User.id).where(User.role == "admin").limit(1)) is not None

