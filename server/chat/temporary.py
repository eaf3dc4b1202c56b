"""Temporary conversations: when those that are not stored go. Where they are kept meanwhile is shelves.py.

They go when their user deletes them, when the server stops, when nobody has watched them for a while, and the one that
is unused for longest when their user has begun too many.
"""
import asyncio

from ..errors import ApiError
from ..people.identity import Identity
from .turns import Turns

LOOKS = 30  # within the time that one is kept unwatched: how exact that time is


class Temporary:
    def __init__(self, turns: Turns) -> None:
        self.turns, self.shelves, self.limits = turns, turns.shelves, turns.limits
        self._used: dict[str, tuple[str, float]] = {}  # by conversation: whose, and when it last ran or was watched
        self._timer: asyncio.TimerHandle | None = None

    def begin(self, identity: Identity, conversation_id: str) -> None:
        """Keep a new conversation in memory. Raises quota_exceeded where all that could make room for it run."""
        if not identity.service and len(self._of(identity.user_id)) >= self.limits.temporary_per_user:
            self._make_room(identity.user_id)
        self.shelves.keep_in_memory(identity.user_id, conversation_id)
        loop = asyncio.get_running_loop()
        self._used[conversation_id] = identity.user_id, loop.time()
        if self._timer is None:
            self._timer = loop.call_later(self.limits.temporary_s / LOOKS, self._look_on)

    def look(self, now: float) -> None:
        """Let go what nobody has watched for long enough."""
        for conversation_id, (user_id, used) in list(self._used.items()):
            if not self.shelves.is_temporary(conversation_id):
                del self._used[conversation_id]
            elif self.turns.runs(conversation_id) or any(self.turns.audience.watching(conversation_id)):
                self._used[conversation_id] = user_id, now
            elif now - used >= self.limits.temporary_s:
                self._let_go(conversation_id)

    def _look_on(self) -> None:
        loop = asyncio.get_running_loop()
        self.look(loop.time())
        self._timer = loop.call_later(self.limits.temporary_s / LOOKS, self._look_on) if self._used else None

    def _of(self, user_id: str) -> list[str]:
        """The one used last comes last; watched ones after all others."""
        mine = [id for id in self.shelves.temporary_of(user_id) if id in self._used]
        return sorted(mine, key=lambda id: (any(self.turns.audience.watching(id)), self._used[id][1]))

    def _make_room(self, user_id: str) -> None:
        for conversation_id in self._of(user_id):
            if not self.turns.runs(conversation_id):
                self._let_go(conversation_id)
                return
        raise ApiError("quota_exceeded", "You have too many temporary conversations.")

    def _let_go(self, conversation_id: str) -> None:
        user_id, _ = self._used.pop(conversation_id)
        self.turns.own(self.turns.delete(user_id, conversation_id))
