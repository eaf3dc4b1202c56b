"""Saving: where a message is written: begun with its question, kept while it grows, ended, recovered. No events."""
import logging
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import bindparam, update
from sqlalchemy.ext.asyncio import AsyncSession

from ..storage.clock import now_us
from ..storage.database import Database
from ..storage.tables import Conversation, Message
from .client_events import CallOutput
from .history import info_of, item_of, message_in, owned
from .parts import question_parts
from .protocol import ConversationInfo, Item
from .shelves import Shelves
from .title import title_of

log = logging.getLogger("hamdam.chat")


@dataclass(frozen=True, slots=True, kw_only=True)
class NewRun:
    """What `begin` writes. Without `question` the answer hangs below `parent_id`; if `continued`, its row is there."""

    user_id: str
    conversation_id: str
    response_id: str
    answer_id: str
    client_id: str
    model: str
    parent_id: str | None
    question_id: str | None = None
    question: tuple[str, ...] = ()
    outputs: tuple[CallOutput, ...] = ()  # of calls, in place of a question's texts
    instructions: str | None = None
    new_conversation: bool = False
    continued: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """An answer as far as it is written; with `status` other than in_progress that is its end."""

    message_id: str
    response_id: str
    conversation_id: str
    text: str
    token_ids: bytes | None
    ids_fingerprint: str | None
    last_sequence: int
    parts: list[dict[str, Any]] = field(default_factory=list)
    status: str = "in_progress"
    finish_reason: str | None = None
    error: dict[str, Any] | None = None
    usage: dict[str, Any] | None = None
    timings: dict[str, Any] | None = None


class Saving:
    def __init__(self, shelves: Shelves) -> None:
        self.shelves = shelves

    async def begin(self, run: NewRun) -> tuple[ConversationInfo, list[Item]]:
        """One transaction: the conversation if it is new, the question, and an empty answer. On disk on return."""
        async with self.shelves.of(run.conversation_id).write() as sql:
            conversation = await self._conversation(sql, run)
            now = max(now_us(), conversation.updated_at + 1)  # creation order holds even when the clock is set back
            if run.continued:
                answer = await message_in(sql, conversation.id, run.answer_id)
                answer.status, answer.finish_reason, answer.error = "in_progress", None, None
                answer.response_id, answer.client_id, answer.last_sequence = run.response_id, run.client_id, 0
                rows = [answer]
            else:
                rows = await self._new_rows(sql, run, now)
            conversation.active_leaf_id = run.answer_id
            conversation.updated_at = now + 1
            conversation.revision += 1
            await sql.flush()
            return info_of(conversation), [item_of(row) for row in rows]

    async def save(self, written: list[Written]) -> None:
        """Running answers as far as they are, in one transaction; what ended or was deleted meanwhile is left alone.

        For those that are read from a file after a crash: of temporary conversations there is nothing to do.
        """
        written = [row for row in written if not self.shelves.is_temporary(row.conversation_id)]
        if not written:
            return
        async with self.shelves.file.write() as sql:
            running = (Message.response_id == bindparam("run"), Message.status == "in_progress")
            saved = ("text", "parts", "token_ids", "ids_fingerprint", "last_sequence")
            values = [{"run": row.response_id} | {name: getattr(row, name) for name in saved} for row in written]
            await (await sql.connection()).execute(update(Message).where(*running), values)

    async def finish(self, written: Written) -> ConversationInfo | None:
        """The end, in one UPDATE; None where the conversation was deleted meanwhile."""
        async with self.shelves.of(written.conversation_id).write() as sql:
            row = await sql.get(Message, written.message_id)
            if row is None or row.response_id != written.response_id:
                return None
            row.text, row.parts = written.text, written.parts
            row.token_ids, row.ids_fingerprint = written.token_ids, written.ids_fingerprint
            row.status, row.finish_reason, row.error = written.status, written.finish_reason, written.error
            row.usage, row.timings, row.last_sequence = written.usage, written.timings, written.last_sequence
            conversation = await sql.get_one(Conversation, row.conversation_id)
            conversation.updated_at = max(now_us(), conversation.updated_at + 1)
            conversation.revision += 1
            return info_of(conversation)

    async def _conversation(self, sql: AsyncSession, run: NewRun) -> Conversation:
        if not run.new_conversation:
            conversation = await owned(sql, run.user_id, run.conversation_id)
            if run.instructions is not None:
                conversation.settings = {**conversation.settings, "instructions": run.instructions}
            return conversation
        now, title = now_us(), title_of(" ".join(run.question))
        settings: dict[str, Any] = {} if run.instructions is None else {"instructions": run.instructions}
        if self.shelves.is_temporary(run.conversation_id):
            settings["temporary"] = True
        conversation = Conversation(
            id=run.conversation_id,
            user_id=run.user_id,
            title=title,
            title_source="auto" if title else "none",
            model=run.model,
            settings=settings,
            revision=0,
            created_at=now,
            updated_at=now,
        )
        sql.add(conversation)
        await sql.flush()
        return conversation

    async def _new_rows(self, sql: AsyncSession, run: NewRun, now: int) -> list[Message]:
        if run.parent_id is not None:
            await message_in(sql, run.conversation_id, run.parent_id)  # it may have been deleted since we looked
        rows, parent_id = [], run.parent_id
        if run.question_id is not None:
            role, texts = ("tool", [one.output for one in run.outputs]) if run.outputs else ("user", run.question)
            question = Message(id=run.question_id, parent_id=parent_id, role=role, status="completed")
            question.text, question.created_at = ("\n" if run.outputs else "").join(texts), now
            question.parts = question_parts(run.question, run.outputs)
            rows.append(question)
            parent_id = question.id
        answer = Message(id=run.answer_id, parent_id=parent_id, role="assistant", status="in_progress", model=run.model)
        answer.response_id, answer.client_id, answer.created_at = run.response_id, run.client_id, now + 1
        rows.append(answer)
        for row in rows:
            row.user_id, row.conversation_id = run.user_id, run.conversation_id
            sql.add(row)
            await sql.flush()  # parents before children
        return rows


async def recover(database: Database) -> int:
    """At start nothing runs: what says so was cut off. Its text stays, and it can go on. How many there were."""
    async with database.write() as sql:
        cut = update(Message).where(Message.status == "in_progress")
        done = await sql.execute(cut.values(status="interrupted", last_sequence=Message.last_sequence + 1))
        return int(done.rowcount)  # type: ignore[attr-defined]
