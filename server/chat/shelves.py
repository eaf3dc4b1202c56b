"""Shelves: which database a conversation is kept in: the file, or (`store: false`) this process's memory alone.

Both have the same tables, so nobody else needs to know. When temporary conversations go is temporary.py.
"""
from ..storage.database import Database
from ..storage.memory import MemoryDatabase


class Shelves:
    def __init__(self, file: Database) -> None:
        self.file, self.memory = file, MemoryDatabase()
        self._temporary: dict[str, str] = {}  # by conversation: whose it is

    def of(self, conversation_id: str | None) -> Database:
        return self.memory if conversation_id in self._temporary else self.file

    def of_user(self, user_id: str) -> tuple[Database, ...]:
        """Wherever something of this user may be."""
        return (self.memory, self.file) if self.temporary_of(user_id) else (self.file,)

    def is_temporary(self, conversation_id: str) -> bool:
        return conversation_id in self._temporary

    def temporary_of(self, user_id: str) -> list[str]:
        return [conversation_id for conversation_id, user in self._temporary.items() if user == user_id]

    def keep_in_memory(self, user_id: str, conversation_id: str) -> None:
        """Before anything of a new conversation is written."""
        self._temporary[conversation_id] = user_id

    def forget(self, conversation_id: str) -> None:
        self._temporary.pop(conversation_id, None)
