"""History: a person's conversations and messages, read and edited. How answers come in is place.py and saving.py.

Every query starts from the user: what is not yours is not found.
"""
from dataclasses import dataclass

from sqlalchemy import ColumnElement, delete, select, tuple_, update
from sqlalchemy.ext.asyncio import AsyncSession

from ..errors import ApiError
from ..storage.clock import now_us, rfc3339
from ..storage.tables import Conversation, Message
from .parts import Answered, outputs_of
from .protocol import ConversationInfo, Item
from .shelves import Shelves


@dataclass(frozen=True, slots=True)
class Changes:
    """What an edit sets; None leaves it. A new active leaf must be a message of the conversation."""

    title: str | None = None
    pinned: bool | None = None
    archived: bool | None = None
    active_leaf_id: str | None = None


class History:
    def __init__(self, shelves: Shelves) -> None:
        self.shelves = shelves

    async def conversations(
        self, user_id: str, *, cursor: str | None = None, limit: int = 50, archived: bool = False
    ) -> tuple[list[ConversationInfo], str | None]:
        """Pinned ones first, then by last change; and the cursor of the next page. Temporary ones are not listed."""
        pinned = Conversation.pinned_at.is_not(None)
        put_away = Conversation.archived_at.is_not(None)
        query = select(Conversation).where(is_mine(user_id), put_away if archived else ~put_away)
        if cursor is not None:
            query = query.where(tuple_(pinned, Conversation.updated_at, Conversation.id) < _position(cursor))
        query = query.order_by(pinned.desc(), Conversation.updated_at.desc(), Conversation.id.desc()).limit(limit + 1)
        async with self.shelves.file.read() as sql:
            rows = (await sql.scalars(query)).all()
        more, rows = len(rows) > limit, rows[:limit]
        return [info_of(row) for row in rows], _cursor(rows[-1]) if more else None

    async def conversation(self, user_id: str, conversation_id: str) -> ConversationInfo:
        async with self.shelves.of(conversation_id).read() as sql:
            return info_of(await owned(sql, user_id, conversation_id))

    async def items(
        self, user_id: str, conversation_id: str, *, before: str | None = None, limit: int = 100
    ) -> tuple[ConversationInfo, list[Item], bool]:
        """The last `limit` messages (before a message) in creation order; and whether there are earlier ones."""
        async with self.shelves.of(conversation_id).read() as sql:
            conversation = await owned(sql, user_id, conversation_id)
            query = select(Message).where(Message.conversation_id == conversation.id)
            if before is not None:
                edge = await message_in(sql, conversation.id, before)
                query = query.where(tuple_(Message.created_at, Message.id) < (edge.created_at, edge.id))
            query = query.order_by(Message.created_at.desc(), Message.id.desc()).limit(limit + 1)
            rows = (await sql.scalars(query)).all()
        return info_of(conversation), [item_of(row) for row in reversed(rows[:limit])], len(rows) > limit

    async def edit(self, user_id: str, conversation_id: str, changes: Changes) -> ConversationInfo:
        async with self.shelves.of(conversation_id).write() as sql:
            row = await owned(sql, user_id, conversation_id)
            if changes.title is not None:
                row.title, row.title_source = changes.title, "user"
            if changes.pinned is not None:
                row.pinned_at = (row.pinned_at or now_us()) if changes.pinned else None
            if changes.archived is not None:
                row.archived_at = (row.archived_at or now_us()) if changes.archived else None
            if changes.active_leaf_id is not None:
                row.active_leaf_id = (await message_in(sql, row.id, changes.active_leaf_id)).id
            row.revision += 1
            return info_of(row)

    async def delete(self, user_id: str, conversation_id: str) -> None:
        """Deleted is gone: rows, texts and ids, in one transaction. Nothing is kept that could be read or restored."""
        async with self.shelves.of(conversation_id).write() as sql:
            await owned(sql, user_id, conversation_id)
            messages = Message.conversation_id == conversation_id
            # First no longer a tree: SQLite follows a cascade to a depth of 1,000, a long chat is deeper.
            await sql.execute(update(Message).where(messages).values(parent_id=None))
            await sql.execute(delete(Message).where(messages))
            await sql.execute(delete(Conversation).where(Conversation.id == conversation_id))

    async def answer(
        self,
        user_id: str,
        *,
        message_id: str | None = None,
        response_id: str | None = None,
        client_id: str | None = None,
    ) -> Message | None:
        """An answer by its own id, or by either name of the run that wrote it last."""
        query = select(Message).where(Message.user_id == user_id, Message.role == "assistant")
        if message_id is not None:
            query = query.where(Message.id == message_id)
        elif response_id is not None:
            query = query.where(Message.response_id == response_id)
        else:
            query = query.where(Message.client_id == client_id)
        for database in self.shelves.of_user(user_id):
            async with database.read() as sql:
                if answer := await sql.scalar(query):
                    return answer
        return None

    async def question_of(self, answer: Message) -> Message | None:
        """What an answer answers."""
        async with self.shelves.of(answer.conversation_id).read() as sql:
            return await sql.get(Message, answer.parent_id) if answer.parent_id else None


async def owned(sql: AsyncSession, user_id: str, conversation_id: str) -> Conversation:
    """This user's conversation, or the same refusal whether it is somebody else's or nobody's."""
    row = await sql.scalar(select(Conversation).where(is_mine(user_id), Conversation.id == conversation_id))
    if row is None:
        raise ApiError("conversation_not_found", "There is no such conversation.")
    return row


async def message_in(sql: AsyncSession, conversation_id: str, message_id: str) -> Message:
    row = await sql.scalar(select(Message).where(Message.id == message_id, Message.conversation_id == conversation_id))
    if row is None:
        raise ApiError("parent_not_found", "This conversation has no such message.")
    return row


def is_mine(user_id: str) -> ColumnElement[bool]:
    """What every query for a conversation asks first."""
    return Conversation.user_id == user_id


def _cursor(row: Conversation) -> str:
    return f"{int(row.pinned_at is not None)}.{row.updated_at}.{row.id}"


def _position(cursor: str) -> tuple[int, int, str]:
    pinned, updated_at, last_id = (*cursor.split(".", 2), "", "")[:3]
    if pinned not in ("0", "1") or not updated_at.isdecimal() or len(updated_at) > 18 or not last_id:
        raise ApiError("invalid_field", "This is not a cursor of this list.", param="cursor")
    return int(pinned), int(updated_at), last_id


def info_of(row: Conversation) -> ConversationInfo:
    return ConversationInfo(
        id=row.id,
        title=row.title,
        model=row.model,
        active_leaf_id=row.active_leaf_id,
        revision=row.revision,
        pinned=row.pinned_at is not None,
        archived=row.archived_at is not None,
        temporary=row.settings.get("temporary", False),
        created_at=rfc3339(row.created_at),
        updated_at=rfc3339(row.updated_at),
    )


def item_of(row: Message) -> Item:
    answered = Answered.of(row.parts)
    return Item(
        id=row.id,
        conversation_id=row.conversation_id,
        parent_id=row.parent_id,
        role=row.role,
        status=row.status,
        text=row.text,
        reasoning_text=answered.reasoning,
        function_calls=answered.function_calls,
        outputs=list(outputs_of(row.parts)),
        usage=row.usage,
        created_at=rfc3339(row.created_at),
        timings=row.timings,
        finish_reason=row.finish_reason,
        error=row.error,
        model=row.model,
        response_id=row.response_id,
    )
