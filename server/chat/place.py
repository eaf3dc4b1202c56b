"""Place: where in a conversation's tree a new answer goes, and what stands before it. It writes nothing.

Four ways in: a question (below the active leaf, below any message, or as a new root), another answer to a question,
an answer that goes on, and a new conversation. The tree is made of parent ids that only the server sets.
"""
from array import array
from collections.abc import Mapping
from dataclasses import dataclass

from msgspec import UNSET
from sqlalchemy import exists, literal, select
from sqlalchemy.ext.asyncio import AsyncSession

from hamdam.engine import Chat, ChatMessage

from ..errors import ApiError
from ..storage.tables import Conversation, Message
from .client_events import CallOutput, CreateResponse
from .history import is_mine, message_in, owned
from .parts import ONLY_TEXT, Answered, outputs_of, texts_of

MAX_PATH = 20_000  # messages from a leaf to the root: a bound on every walk, above anything a context holds
CUT = frozenset({"incomplete", "cancelled", "interrupted", "failed"})


@dataclass(frozen=True, slots=True)
class PathMessage:
    """A message on the way from the root, with what the engine wants to know of it."""

    id: str
    role: str
    text: str
    parts: tuple[str, ...] = ()  # where the client sent several texts
    answered: Answered = ONLY_TEXT
    outputs: tuple[CallOutput, ...] = ()  # of calls, where that is what the message is
    token_ids: bytes | None = None
    ids_fingerprint: str | None = None


@dataclass(frozen=True, slots=True)
class Place:
    """`parent_id`: of the new question, or without one of the answer. `continued`: what goes on, the last in `path`."""

    parent_id: str | None = None
    path: tuple[PathMessage, ...] = ()
    instructions: str | None = None
    continued: PathMessage | None = None


async def conversation_of(sql: AsyncSession, user_id: str, asked: CreateResponse) -> Conversation | None:
    """This user's conversation that is meant; None for a new one."""
    if asked.continue_ is None:
        return await owned(sql, user_id, asked.conversation_id) if asked.conversation_id is not None else None
    query = select(Conversation).join(Message, Message.conversation_id == Conversation.id)
    row = await sql.scalar(query.where(is_mine(user_id), Message.id == asked.continue_))
    if row is None or asked.conversation_id not in (None, row.id):
        raise ApiError("parent_not_found", "There is no such answer.", param="continue")
    return row


async def place_of(sql: AsyncSession, conversation: Conversation, asked: CreateResponse) -> Place:
    """Raises parent_not_found or invalid_field."""
    instructions = asked.instructions if asked.instructions is not None else conversation.settings.get("instructions")
    if asked.continue_ is not None:
        answer = await _to_go_on(sql, conversation.id, asked.continue_)
        path = await walk(sql, conversation.id, answer.id)
        return Place(answer.parent_id, path, instructions, path[-1])
    parent = conversation.active_leaf_id if asked.parent_id is UNSET else asked.parent_id
    parent_id = (await message_in(sql, conversation.id, parent)).id if parent is not None else None
    path = await walk(sql, conversation.id, parent_id) if parent_id is not None else ()
    if asked.input is None and asked.generate:
        if asked.parent_id is UNSET and path and path[-1].role == "assistant":
            path = path[:-1]  # the active leaf's question, answered again
        if not path or path[-1].role not in ("user", "tool"):
            raise ApiError("invalid_field", "Only a question can be answered again.", param="parent_id")
        parent_id = path[-1].id
    return Place(parent_id, path, instructions)


async def walk(sql: AsyncSession, conversation_id: str, leaf_id: str) -> tuple[PathMessage, ...]:
    """From the root to a leaf. A way that is longer than the bound fits no context, and is refused as that."""
    start = select(Message.id, Message.parent_id, literal(0).label("depth"))
    way = start.where(Message.id == leaf_id, Message.conversation_id == conversation_id).cte("way", recursive=True)
    step = select(Message.id, Message.parent_id, way.c.depth + 1).join(way, Message.id == way.c.parent_id)
    way = way.union_all(step.where(way.c.depth < MAX_PATH))
    columns = (Message.id, Message.role, Message.text, Message.parts, Message.token_ids, Message.ids_fingerprint)
    rows = (await sql.execute(select(*columns).join(way, way.c.id == Message.id).order_by(way.c.depth.desc()))).all()
    if len(rows) > MAX_PATH:
        raise ApiError("context_length_exceeded", "This conversation has too many messages.")
    return tuple(
        PathMessage(id, role, text, texts_of(parts), Answered.of(parts), outputs_of(parts), ids, fingerprint)
        for id, role, text, parts, ids, fingerprint in rows
    )


def chat_of(
    place: Place,
    question: tuple[str, ...] | None,
    newer: Mapping[str, ChatMessage],
    outputs: tuple[CallOutput, ...] = (),
) -> Chat:
    """The whole conversation for the engine. `newer`: answers whose end could not be stored.

    Unpacking the ids of a long history takes a while: called off the event loop.
    """
    messages = [ChatMessage("system", place.instructions)] if place.instructions else []
    for message in place.path:
        if message.id in newer:
            messages.append(newer[message.id])
            continue
        if message.outputs:
            messages += _results(message.outputs)
            continue
        content = message.parts if len(message.parts) > 1 else message.text
        ids = unpack_ids(message.token_ids) if message.token_ids else None
        reasoning, calls = message.answered.reasoning, message.answered.calls
        messages.append(ChatMessage(message.role, content, ids, message.ids_fingerprint, reasoning, calls))
    if question is not None:
        messages.append(ChatMessage("user", question if len(question) > 1 else question[0]))
    messages += _results(outputs)
    return Chat(tuple(messages), continue_last=place.continued is not None)


def _results(outputs: tuple[CallOutput, ...]) -> list[ChatMessage]:
    return [ChatMessage("tool", one.output, tool_call_id=one.call_id) for one in outputs]


def pack_ids(ids: list[int] | tuple[int, ...]) -> bytes:
    """Little-endian uint32."""
    packed = array("I", ids)
    if _BIG_ENDIAN:
        packed.byteswap()
    return packed.tobytes()


def unpack_ids(data: bytes) -> tuple[int, ...]:
    ids = array("I", data)
    if _BIG_ENDIAN:
        ids.byteswap()
    return tuple(ids)


_BIG_ENDIAN = array("I", [1]).tobytes()[0] == 0


async def _to_go_on(sql: AsyncSession, conversation_id: str, message_id: str) -> Message:
    answer = await message_in(sql, conversation_id, message_id)
    if answer.role != "assistant" or answer.status not in CUT:
        raise ApiError("invalid_field", "Only an answer that was cut can go on.", param="continue")
    if Answered.of(answer.parts).calls:
        why = "This answer makes calls: the conversation goes on with what comes of them."
        raise ApiError("invalid_field", why, param="continue")
    if await sql.scalar(select(exists().where(Message.parent_id == answer.id))):
        raise ApiError("invalid_field", "The conversation went on below this answer already.", param="continue")
    return answer
