"""Conversations over HTTP: lists, pages of messages, edits, deletion. Asking and streaming are the socket's."""
import msgspec
from msgspec.structs import replace
from starlette.requests import Request
from starlette.responses import Response

from ..errors import ApiError
from ..people.authenticator import Authenticator
from ..people.identity import Identity
from ..people.permissions import Act, require
from .frames import invalid_field
from .history import Changes
from .protocol import ConversationInfo, ConversationUpdated, Item
from .title import MAX_TITLE, clean
from .turns import Turns

PAGE, MAX_PAGE = 50, 200
ITEMS, MAX_ITEMS = 100, 500


class Edit(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    title: str | None = None
    pinned: bool | None = None
    archived: bool | None = None
    active_leaf_id: str | None = None


class ConversationPage(msgspec.Struct, frozen=True):
    data: list[ConversationInfo]
    next_cursor: str | None


class ItemPage(msgspec.Struct, frozen=True):
    """`has_more`: there are earlier ones, `before` the first of these."""

    conversation: ConversationInfo
    items: list[Item]
    has_more: bool


class OneConversation(msgspec.Struct, frozen=True):
    conversation: ConversationInfo


class Conversations:
    def __init__(self, turns: Turns, authenticator: Authenticator) -> None:
        self.turns, self.history, self.authenticator = turns, turns.history, authenticator

    async def list(self, request: Request) -> Response:
        user_id = (await self._who(request)).user_id
        query = request.query_params
        data, next_cursor = await self.history.conversations(
            user_id,
            cursor=query.get("cursor"),
            limit=_count(request, PAGE, MAX_PAGE),
            archived=query.get("archived") == "true",
        )
        return _json(ConversationPage(data, next_cursor))

    async def read(self, request: Request) -> Response:
        """The last messages in creation order. Of an answer that is being written: what there is of it."""
        user_id, conversation_id = (await self._who(request)).user_id, request.path_params["id"]
        conversation, items, has_more = await self.history.items(
            user_id, conversation_id, before=request.query_params.get("before"), limit=_count(request, ITEMS, MAX_ITEMS)
        )
        ahead = self.turns.ahead(conversation_id)
        for place, item in enumerate(items):
            if turn := ahead.get(item.id):
                answered = turn.answered
                said = {"reasoning_text": answered.reasoning, "function_calls": answered.function_calls}
                items[place] = replace(item, text=turn.text, **said, status=turn.status)
        return _json(ItemPage(conversation, items, has_more))

    async def edit(self, request: Request) -> Response:
        user_id = (await self._who(request)).user_id
        edit = _body(await request.body())
        title = None if edit.title is None else clean(edit.title)
        if title is not None and not 0 < len(title) <= MAX_TITLE:
            raise ApiError("invalid_field", f"A title has 1 to {MAX_TITLE} characters.", param="title")
        changes = Changes(title=title, pinned=edit.pinned, archived=edit.archived, active_leaf_id=edit.active_leaf_id)
        conversation = await self.history.edit(user_id, request.path_params["id"], changes)
        self.turns.audience.publish(user_id, ConversationUpdated(conversation=conversation))
        return _json(OneConversation(conversation))

    async def delete(self, request: Request) -> Response:
        await self.turns.delete((await self._who(request)).user_id, request.path_params["id"])
        return Response(status_code=204)

    async def _who(self, request: Request) -> Identity:
        identity = await self.authenticator.identify(request)
        require(identity, Act.CHAT)
        return identity


def _body(body: bytes) -> Edit:
    try:
        return msgspec.json.decode(body, type=Edit)
    except msgspec.ValidationError as error:
        raise invalid_field(error) from error
    except (msgspec.DecodeError, RecursionError) as error:
        raise ApiError("invalid_json", "The body is not JSON.") from error


def _count(request: Request, default: int, most: int) -> int:
    given = request.query_params.get("limit", str(default))
    if not given.isascii() or not given.isdecimal() or len(given) > 9 or not 1 <= int(given) <= most:
        raise ApiError("invalid_field", f"A whole number from 1 to {most}.", param="limit")
    return int(given)


def _json(value: msgspec.Struct) -> Response:
    return Response(msgspec.json.encode(value), media_type="application/json", headers={"cache-control": "no-store"})
