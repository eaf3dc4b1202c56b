"""Whose work a generation is: the engine's Owner, from an authenticated Identity. Every cache root comes from here.

Nothing of a request reaches a root as it was sent: the `user` string of a service key's request goes through a hash.
"""
import hashlib

from hamdam.engine import Owner

from ..people.identity import Identity
from ..settings import Limits


def owner_of(identity: Identity, limits: Limits, user: str | None = None) -> Owner:
    """`user` narrows a service key, which speaks for many people, to one of them; from others it changes nothing."""
    if not identity.service:
        return Owner(identity.user_id, identity.user_id, limits.running_per_user, limits.queued_per_user)
    root = identity.user_id if user is None else _root(identity.user_id, user)
    return Owner(identity.user_id, root, max_running=None, max_queued=None)


def _root(owner_id: str, user: str) -> str:
    """Lengths first, so that no two pairs are written alike."""
    hashed = hashlib.sha256()
    for text in (owner_id, user):
        data = text.encode()
        hashed.update(len(data).to_bytes(8, "big") + data)
    return f"of-{hashed.hexdigest()}"
