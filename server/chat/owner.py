"""Whose work a generation is: the engine's Owner, from an authenticated Identity. Every cache root comes from here.

Nothing of a request reaches a root as it was sent, and none can be computed outside: all are hashed with a key that
only this server has.
"""
import hmac

from hamdam.engine import Owner

from ..people.identity import Identity
from ..settings import Limits


class Owners:
    def __init__(self, key: bytes, limits: Limits) -> None:
        """`key`: the secret of cache roots (storage/secrets.py)."""
        self._key, self._limits = key, limits

    def of(self, identity: Identity, user: str | None = None) -> Owner:
        """`user` narrows a service key, which speaks for many people, to one; from others it changes nothing."""
        if identity.service:
            root = self._root(identity.user_id, *(() if user is None else (user,)))
            return Owner(identity.user_id, root, max_running=None, max_queued=None)
        limits = self._limits
        return Owner(identity.user_id, self._root(identity.user_id), limits.running_per_user, limits.queued_per_user)

    def _root(self, *texts: str) -> str:
        """Lengths first, so that no two lists are written alike."""
        hashed = hmac.new(self._key, digestmod="sha256")
        for text in texts:
            data = text.encode()
            hashed.update(len(data).to_bytes(8, "big") + data)
        return hashed.hexdigest()
