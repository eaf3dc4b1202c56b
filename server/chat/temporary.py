"""Temporary conversations: when those that are not stored go. Where they are kept meanwhile is shelves.py.

They go when their user deletes them, when the server stops, when nobody has watched them for a while, when their user's
account is disabled or deleted, and the one that is unused for longest when their user has begun too many.
"""
import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from ..errors import ApiError
from ..people.identity import Identity
from .turns import Turns

LOOKS = 30  # within the time that one is kept unwatched: how exact that time is


@dataclass(slots=True)
class Kept:
    user_id: str
    used: float  # when it last ran or was watched
    unwatch: Callable[[], None]  # of its user's account


class Temporary:
    def __init__(self, turns: Turns) -> None:
        self.turns, self.shelves, self.limits = turns, turns.shelves, turns.limits
        self._kept: dict[str, Kept] = {}  # by conversation
        self._timer: asyncio.TimerHandle | None = None

    def begin(self, identity: Identity, conversation_id: str) -> None:
        """Keep a new conversation in memory. Raises quota_exceeded where all that could make room for it run."""
        if not identity.service and len(self._of(identity.user_id)) >= self.limits.temporary_per_user:
            self._make_room(identity.user_id)
        self.shelves.keep_in_memory(identity.user_id, conversation_id)
        self._keep(conversation_id, identity.user_id, asyncio.get_running_loop().time())

    def look(self, now: float) -> None:
        """Let go what nobody has watched for long enough."""
        for conversation_id, kept in list(self._kept.items()):
            if not self.shelves.is_temporary(conversation_id):
                self._kept.pop(conversation_id).unwatch()
            elif self.turns.runs(conversation_id) or any(self.turns.audience.watching(conversation_id)):
                kept.used = now
            elif now - kept.used >= self.limits.temporary_s:
                self._let_go(conversation_id)

    def _look_on(self) -> None:
        loop = asyncio.get_running_loop()
        self.look(loop.time())
        self._timer = loop.call_later(self.limits.temporary_s / LOOKS, self._look_on) if self._kept else None

    def _of(self, user_id: str) -> list[str]:
        """The one used last comes last; watched ones after all others."""
        mine = [id for id in self.shelves.temporary_of(user_id) if id in self._kept]
        return sorted(mine, key=lambda id: (any(self.turns.audience.watching(id)), self._kept[id].used))

    def _make_room(self, user_id: str) -> None:
        for conversation_id in self._of(user_id):
            if not self.turns.runs(conversation_id):
                self._let_go(conversation_id)
                return
        raise ApiError("quota_exceeded", "You have too many temporary conversations.")

    def _keep(self, conversation_id: str, user_id: str, used: float) -> None:
        unwatch = self.turns.authenticator.watch_account(user_id, lambda _code: self._let_go(conversation_id))
        self._kept[conversation_id] = Kept(user_id, used, unwatch)
        if self._timer is None:
            later = self.limits.temporary_s / LOOKS
            self._timer = asyncio.get_running_loop().call_later(later, self._look_on)

    def _let_go(self, conversation_id: str) -> None:
        if kept := self._kept.pop(conversation_id, None):
            kept.unwatch()
            self.turns.own(self._delete(conversation_id, kept))

    async def _delete(self, conversation_id: str, kept: Kept) -> None:
        try:
            await self.turns.delete(kept.user_id, conversation_id)
        finally:
            if self.shelves.is_temporary(conversation_id):  # refused, as when a run was just about to begin there
                self._keep(conversation_id, kept.user_id, kept.used)
