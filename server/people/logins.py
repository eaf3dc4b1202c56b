"""Logins: the sign-ins of browsers, rows with the hash of what only a cookie holds. No password comes here."""
from collections.abc import Sequence

from sqlalchemy import ColumnElement, delete, select, update
from sqlalchemy.ext.asyncio import AsyncSession

from ..storage.clock import SECOND, now_us
from ..storage.ids import new_id
from ..storage.tables import Login
from .opaque import hash_secret, new_secret

LASTS = 30 * 86400 * SECOND  # since it was last used
TOUCHED_EVERY = 300 * SECOND  # how exact `last_used_at` is: a write for every request would be a lock for every request
AT_MOST = 50  # a user; the one unused for longest ends


async def create_login(sql: AsyncSession, user_id: str, *, agent: str = "", replaces: str | None = None) -> str:
    """Sign in: a new secret, always (one planted in the browser before is worth nothing, and the one it had ends)."""
    if replaces is not None:
        await end_login_of_secret(sql, replaces)
    older = select(Login.id).where(Login.user_id == user_id).order_by(Login.last_used_at.desc()).offset(AT_MOST - 1)
    await sql.execute(delete(Login).where(Login.id.in_(older)))
    secret, now = new_secret(), now_us()
    sql.add(
        Login(
            id=new_id("login"),
            user_id=user_id,
            secret_hash=hash_secret(secret),
            created_at=now,
            last_used_at=now,
            expires_at=now + LASTS,
            agent="".join(c for c in agent if c.isprintable())[:200],
        )
    )
    return secret


async def list_logins(sql: AsyncSession, user_id: str) -> Sequence[Login]:
    current = select(Login).where(Login.user_id == user_id, login_is_alive())
    return (await sql.scalars(current.order_by(Login.last_used_at.desc()))).all()


async def end_login(sql: AsyncSession, user_id: str, login_id: str) -> bool:
    """End one of this user's logins; False where it is not theirs or not there (which is the same)."""
    ended = delete(Login).where(Login.user_id == user_id, Login.id == login_id).returning(Login.id)
    return (await sql.scalars(ended)).first() is not None


async def end_all_logins(sql: AsyncSession, user_id: str, *, but: str | None = None) -> int:
    ended = delete(Login).where(Login.user_id == user_id, Login.id != (but or "")).returning(Login.id)
    return len((await sql.scalars(ended)).all())


async def end_login_of_secret(sql: AsyncSession, secret: str) -> None:
    await sql.execute(delete(Login).where(Login.secret_hash == hash_secret(secret)))


def login_is_alive() -> ColumnElement[bool]:
    """The one condition under which a sign-in opens anything (one that was ended has no row)."""
    return Login.expires_at > now_us()


async def touch_login(sql: AsyncSession, login_id: str) -> None:
    """Slide the expiry; and forget, while we hold the pen, the logins that ran out."""
    now = now_us()
    await sql.execute(update(Login).where(Login.id == login_id).values(last_used_at=now, expires_at=now + LASTS))
    await sql.execute(delete(Login).where(~login_is_alive()))
