"""API keys: `hamdam_<prefix>_<secret>`, shown once, kept as a hash. What a key may do is not here.

The prefix is what a person recognises a key by later.
"""
import re
import secrets
import string
from collections.abc import Sequence

from sqlalchemy import ColumnElement, select, update
from sqlalchemy.ext.asyncio import AsyncSession

from ..errors import ApiError
from ..storage.clock import SECOND, now_us
from ..storage.ids import new_id
from ..storage.tables import ApiKey
from .opaque import hash_secret, new_secret

TOUCHED_EVERY = 60 * SECOND
AT_MOST = 100  # living keys of one user
LONGEST_LABEL = 100
KEY = re.compile(r"hamdam_[a-z0-9]{8}_[A-Za-z0-9_-]{43}")
ALPHABET = string.ascii_lowercase + string.digits


async def create_key(
    sql: AsyncSession, user_id: str, *, label: str = "", service: bool = False, expires_at: int | None = None
) -> tuple[ApiKey, str]:
    """A new key: its row, and the key itself, which is nowhere else and never again."""
    label = " ".join(label.split())
    if len(label) > LONGEST_LABEL or not label.isprintable():
        raise ApiError("invalid_field", f"A label has at most {LONGEST_LABEL} visible characters.", param="name")
    if len(await list_keys(sql, user_id)) >= AT_MOST:
        raise ApiError("quota_exceeded", f"You have {AT_MOST} keys; revoke one first.")
    prefix = "".join(secrets.choice(ALPHABET) for _ in range(8))
    key = f"hamdam_{prefix}_{new_secret()}"
    row = ApiKey(
        id=new_id("key"),
        user_id=user_id,
        prefix=f"hamdam_{prefix}",
        hash=hash_secret(key),
        label=label,
        service=service,
        scopes=[],
        created_at=now_us(),
        expires_at=expires_at,
        last_used_at=None,
        revoked_at=None,
    )
    sql.add(row)
    return row, key


async def list_keys(sql: AsyncSession, user_id: str | None = None) -> Sequence[ApiKey]:
    """Keys that were not revoked, newest first: of one user, or (for the `hamdam` command) of all."""
    keys = select(ApiKey).where(ApiKey.revoked_at.is_(None)).order_by(ApiKey.created_at.desc())
    return (await sql.scalars(keys if user_id is None else keys.where(ApiKey.user_id == user_id))).all()


async def find_key(sql: AsyncSession, text: str) -> ApiKey:
    """A living key of whoever's, by its prefix, its id, or itself; for the `hamdam` command."""
    which = (ApiKey.prefix == text) | (ApiKey.id == text) | (ApiKey.hash == hash_secret(text))
    keys = (await sql.scalars(select(ApiKey).where(ApiKey.revoked_at.is_(None), which))).all()
    if len(keys) != 1:
        raise ApiError("not_found", "There is no such key." if not keys else "Several keys begin so; give the id.")
    return keys[0]


async def revoke_key(sql: AsyncSession, user_id: str, key_id: str) -> bool:
    """Revoke one of this user's keys; False where it is not theirs or not there (which is the same)."""
    ended = (
        update(ApiKey)
        .where(ApiKey.user_id == user_id, ApiKey.id == key_id, ApiKey.revoked_at.is_(None))
        .values(revoked_at=now_us())
        .returning(ApiKey.id)
    )
    return (await sql.scalars(ended)).first() is not None


def key_is_alive() -> ColumnElement[bool]:
    """Neither revoked nor run out: the one condition under which a key opens anything."""
    return ApiKey.revoked_at.is_(None) & (ApiKey.expires_at.is_(None) | (ApiKey.expires_at > now_us()))


async def touch_key(sql: AsyncSession, key_id: str) -> None:
    await sql.execute(update(ApiKey).where(ApiKey.id == key_id).values(last_used_at=now_us()))


def looks_like_key(text: str) -> bool:
    return KEY.fullmatch(text) is not None
