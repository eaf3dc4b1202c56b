"""What a client may send, protocol version 1: its events, which forbid unknown fields. What it hears is protocol.py's.

No socket, no row, no task; frames.py reads them.
"""
from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, Struct, UnsetType, field

MIN_COALESCE_MS, MAX_COALESCE_MS, COALESCE_MS = 15, 250, 33

Id = Annotated[str, Meta(min_length=1, max_length=64)]
Count = Annotated[int, Meta(ge=0)]


class ClientEvent(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="type"):
    event_id: Annotated[str, Meta(max_length=64)] | None = None


class SessionUpdate(ClientEvent, frozen=True, kw_only=True, tag="session.update"):
    locale: Annotated[str, Meta(max_length=35)] | None = None
    coalesce_ms: Annotated[int, Meta(ge=MIN_COALESCE_MS, le=MAX_COALESCE_MS)] | None = None


class After(Struct, frozen=True, forbid_unknown_fields=True):
    """The last event of a run that the client has."""

    response_id: Id
    sequence_number: Count


class Subscribe(ClientEvent, frozen=True, kw_only=True, tag="conversation.subscribe"):
    conversation_id: Id
    after: After | None = None


class Unsubscribe(ClientEvent, frozen=True, kw_only=True, tag="conversation.unsubscribe"):
    conversation_id: Id


class InputText(Struct, frozen=True, forbid_unknown_fields=True, tag="input_text", tag_field="type"):
    text: str


class InputMessage(Struct, frozen=True, forbid_unknown_fields=True, tag="message", tag_field="type"):
    role: Literal["user"]
    content: Annotated[list[InputText], Meta(min_length=1, max_length=64)]


class CallOutput(Struct, frozen=True, forbid_unknown_fields=True, tag="function_call_output", tag_field="type"):
    """What came of a call that the answer before it made."""

    call_id: Id
    output: str


class NewConversation(Struct, frozen=True, forbid_unknown_fields=True):
    model: Id | None = None


class TextOptions(Struct, frozen=True, forbid_unknown_fields=True):
    format: dict[str, Any] | None = None


class CreateResponse(ClientEvent, frozen=True, kw_only=True, tag="response.create"):
    """`parent_id` missing is the active leaf, null is the root (the first question written anew). No input: regenerate.

    `instructions` stay with the conversation until others are given. `store` false begins a temporary conversation;
    later it is as it was begun. `input` is one message, or what came of the calls of the answer before it. `tools` are
    those that this answer may call: {type: "function", name, description?, parameters?, strict?}. They belong to this
    response, not to the conversation: whoever asks on, regenerates or continues gives those whose calls it can answer.
    """

    client_id: Id
    conversation_id: Id | None = None
    conversation: NewConversation | None = None
    parent_id: Id | UnsetType | None = UNSET
    input: Annotated[list[InputMessage | CallOutput], Meta(min_length=1, max_length=128)] | None = None
    continue_: Id | None = field(default=None, name="continue")
    model: Id | None = None
    instructions: str | None = None
    sampling: dict[str, Any] = {}
    text: TextOptions | None = None
    tools: list[Any] = []
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool = True
    store: bool | None = None
    generate: bool = True


class CancelResponse(ClientEvent, frozen=True, kw_only=True, tag="response.cancel"):
    response_id: Id


class Ping(ClientEvent, frozen=True, kw_only=True, tag="ping"):
    t: Annotated[str, Meta(max_length=64)] | int | float | None = None


AnyClientEvent = SessionUpdate | Subscribe | Unsubscribe | CreateResponse | CancelResponse | Ping
