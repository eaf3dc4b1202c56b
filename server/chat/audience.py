"""The audience: open sockets by their user, and by the conversations they follow. Who sees what; not how it is sent."""
from collections import defaultdict
from collections.abc import Iterable
from typing import Protocol

from msgspec.structs import replace

from .protocol import ServerEvent
from .turn import Turn


class Viewer(Protocol):
    """A socket, as far as it is watched from here."""

    user_id: str

    def say(self, event: ServerEvent) -> None:
        """Put an event of no run in line. Never waits."""

    def follow(self, turn: Turn, seen: int | None) -> None:
        """Send a turn's events after number `seen`; None: begin with a snapshot."""

    def unfollow(self, conversation_id: str) -> None:
        """Send no more of a conversation's runs."""


class Audience:
    def __init__(self) -> None:
        self._of_user: dict[str, set[Viewer]] = defaultdict(set)
        self._of_conversation: dict[str, set[Viewer]] = defaultdict(set)

    def join(self, viewer: Viewer) -> None:
        self._of_user[viewer.user_id].add(viewer)

    def leave(self, viewer: Viewer) -> None:
        _discard(self._of_user, viewer.user_id, viewer)
        for conversation_id in [c for c, viewers in self._of_conversation.items() if viewer in viewers]:
            _discard(self._of_conversation, conversation_id, viewer)

    def count(self, user_id: str) -> int:
        return len(self._of_user.get(user_id, ()))

    def subscribe(self, viewer: Viewer, conversation_id: str) -> None:
        if viewer in self._of_user.get(viewer.user_id, ()):  # else it has left while its question was on the way
            self._of_conversation[conversation_id].add(viewer)

    def unsubscribe(self, viewer: Viewer, conversation_id: str) -> None:
        _discard(self._of_conversation, conversation_id, viewer)
        viewer.unfollow(conversation_id)

    def forget(self, conversation_id: str) -> None:
        """The conversation is gone."""
        for viewer in list(self.watching(conversation_id)):
            self.unsubscribe(viewer, conversation_id)

    def watching(self, conversation_id: str) -> Iterable[Viewer]:
        return self._of_conversation.get(conversation_id, ())

    def publish(
        self, user_id: str, event: ServerEvent, *, origin: Viewer | None = None, in_reply_to: str | None = None
    ) -> None:
        """To all sockets of a user; the one it answers gets it with the id of what it asked."""
        for viewer in list(self._of_user.get(user_id, ())):
            viewer.say(replace(event, in_reply_to=in_reply_to) if viewer is origin else event)

    def publish_all(self, event: ServerEvent) -> None:
        for user_id in list(self._of_user):
            self.publish(user_id, event)


def _discard(index: dict[str, set[Viewer]], key: str, viewer: Viewer) -> None:
    if viewers := index.get(key):
        viewers.discard(viewer)
        if not viewers:
            del index[key]
