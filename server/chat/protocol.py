"""The wire protocol, version 1: what the server says. What a client may send is client_events.py's. It writes nothing.

Of server events what is None is left out. The numbered events of a run (`Numbered`) are kept as they are in a Turn's
list: a follower gets such an event, or one delta made of several.
"""
from typing import Any

from msgspec import Struct

from ..logprobs import Listed
from .client_events import CallOutput

PROTOCOL = "hamdam.v1"
HEARTBEAT_MS = 20_000


class ConversationInfo(Struct, frozen=True, kw_only=True):
    """A conversation as lists show it; times are RFC 3339."""

    id: str
    title: str
    model: str
    active_leaf_id: str | None
    revision: int
    pinned: bool
    archived: bool
    temporary: bool  # kept in memory alone, and not listed
    created_at: str
    updated_at: str


class FunctionCall(Struct, frozen=True):
    """A call that an answer makes; `arguments` is the text of a JSON object."""

    call_id: str
    name: str
    arguments: str


class Item(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A message of the tree. `text` of an answer that is being written is what was written so far.

    `reasoning_text` is what its model thought before it, `function_calls` are those that it makes. What came of them is
    an item of role `tool`, whose `outputs` they are.
    """

    id: str
    conversation_id: str
    parent_id: str | None
    role: str
    status: str
    text: str
    usage: dict[str, Any] | None
    created_at: str
    reasoning_text: str = ""
    function_calls: list[FunctionCall] = []
    outputs: list[CallOutput] = []
    timings: dict[str, Any] | None = None
    finish_reason: str | None = None
    error: dict[str, Any] | None = None
    model: str | None = None
    response_id: str | None = None


class ServerEvent(Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="type"):
    in_reply_to: str | None = None


class ErrorEvent(ServerEvent, frozen=True, kw_only=True, tag="error"):
    error: dict[str, Any]


class SessionCreated(ServerEvent, frozen=True, kw_only=True, tag="session.created"):
    user: dict[str, str]
    boot_id: str
    limits: dict[str, Any]
    models: list[dict[str, Any]]
    protocol: str
    heartbeat_ms: int


class SessionUpdated(ServerEvent, frozen=True, kw_only=True, tag="session.updated"):
    coalesce_ms: int
    locale: str | None = None


class SessionExpiring(ServerEvent, frozen=True, kw_only=True, tag="session.expiring"):
    """The sign-in or key ends in `in_s` seconds; a sign-in lasts on when any request is made with its cookie."""

    in_s: int


class RateLimit(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """`responses` (running and waiting) or `events`. `reset_seconds`: until all remain; of answers nobody knows."""

    name: str
    limit: int
    remaining: int
    reset_seconds: float | None = None


class RateLimitsUpdated(ServerEvent, frozen=True, kw_only=True, tag="rate_limits.updated"):
    rate_limits: list[RateLimit]


class Pong(ServerEvent, frozen=True, kw_only=True, tag="pong"):
    t: str | int | float | None = None


class ServerDraining(ServerEvent, frozen=True, kw_only=True, tag="server.draining"):
    reconnect_after_ms: int


class RunState(Struct, frozen=True):
    response_id: str
    item_id: str
    status: str
    sequence_number: int


class ConversationSubscribed(ServerEvent, frozen=True, kw_only=True, tag="conversation.subscribed"):
    conversation_id: str
    revision: int
    runs: list[RunState]


class ConversationCreated(ServerEvent, frozen=True, kw_only=True, tag="conversation.created"):
    conversation: ConversationInfo


class ConversationUpdated(ServerEvent, frozen=True, kw_only=True, tag="conversation.updated"):
    conversation: ConversationInfo


class ConversationDeleted(ServerEvent, frozen=True, kw_only=True, tag="conversation.deleted"):
    conversation_id: str


class ItemAdded(ServerEvent, frozen=True, kw_only=True, tag="conversation.item.added"):
    item: Item
    client_id: str | None = None


class ItemUpdated(ServerEvent, frozen=True, kw_only=True, tag="conversation.item.updated"):
    item: Item
    client_id: str | None = None


class RunEvent(ServerEvent, frozen=True, kw_only=True):
    """What happens to one response. States come without a number: the latest wins."""

    response_id: str
    conversation_id: str


class ResponseQueued(RunEvent, frozen=True, kw_only=True, tag="response.queued"):
    position: int
    eta_ms: float | None = None


class ResponsePrefill(RunEvent, frozen=True, kw_only=True, tag="response.prefill"):
    done: int
    total: int


class ResponseStats(RunEvent, frozen=True, kw_only=True, tag="response.stats"):
    tps: float
    output_tokens: int
    context_used: int


class ResponseSnapshot(RunEvent, frozen=True, kw_only=True, tag="response.snapshot"):
    """All there is of an answer; what a client has of it is replaced. It stands for all numbers up to its own."""

    item_id: str
    text: str
    reasoning_text: str
    status: str
    sequence_number: int
    function_calls: list[FunctionCall] = []


class Numbered(RunEvent, frozen=True, kw_only=True):
    sequence_number: int


class ResponseCreated(Numbered, frozen=True, kw_only=True, tag="response.created"):
    item_id: str
    client_id: str | None = None


class ResponseInProgress(Numbered, frozen=True, kw_only=True, tag="response.in_progress"):
    input_tokens: int
    cached_tokens: int


class Delta(Numbered, frozen=True, kw_only=True):
    """Covers `from_seq … sequence_number`; `from_seq` is left out when they are equal.

    `logprobs`, where `sampling.logprobs` asked for them, are those of the tokens whose text this completes; the text
    may be empty. They are kept as long as the run is: a snapshot has none.
    """

    item_id: str
    delta: str
    from_seq: int | None = None
    logprobs: list[Listed] | None = None


class ReasoningDelta(Delta, frozen=True, kw_only=True, tag="response.reasoning_text.delta"):
    pass


class ReasoningDone(Numbered, frozen=True, kw_only=True, tag="response.reasoning_text.done"):
    item_id: str
    text: str


class TextDelta(Delta, frozen=True, kw_only=True, tag="response.output_text.delta"):
    pass


class CallDelta(Delta, frozen=True, kw_only=True, tag="response.function_call_arguments.delta"):
    """A call is told when it is whole, so its arguments are one delta."""

    call_id: str
    name: str


class CallDone(Numbered, frozen=True, kw_only=True, tag="response.function_call_arguments.done"):
    item_id: str
    call_id: str
    name: str
    arguments: str


class TextDone(Numbered, frozen=True, kw_only=True, tag="response.output_text.done"):
    item_id: str
    text: str


class RunEnd(Numbered, frozen=True, kw_only=True):
    """Exactly one ends a run. `usage` and `timings` are missing only where the server was not there at the end."""

    item_id: str
    usage: dict[str, Any] | None = None
    timings: dict[str, Any] | None = None


class ResponseCompleted(RunEnd, frozen=True, kw_only=True, tag="response.completed"):
    pass


class ResponseIncomplete(RunEnd, frozen=True, kw_only=True, tag="response.incomplete"):
    reason: str


class ResponseCancelled(RunEnd, frozen=True, kw_only=True, tag="response.cancelled"):
    pass


class ResponseFailed(RunEnd, frozen=True, kw_only=True, tag="response.failed"):
    """`saved` is false where the end could not be stored: the text is in memory and saving is tried again."""

    error: dict[str, Any]
    saved: bool | None = None


class ResponseInterrupted(RunEnd, frozen=True, kw_only=True, tag="response.interrupted"):
    pass


AnyServerEvent = (
    ErrorEvent
    | SessionCreated
    | SessionUpdated
    | SessionExpiring
    | RateLimitsUpdated
    | Pong
    | ServerDraining
    | ConversationSubscribed
    | ConversationCreated
    | ConversationUpdated
    | ConversationDeleted
    | ItemAdded
    | ItemUpdated
    | ResponseQueued
    | ResponsePrefill
    | ResponseStats
    | ResponseSnapshot
    | ResponseCreated
    | ResponseInProgress
    | ReasoningDelta
    | ReasoningDone
    | CallDelta
    | CallDone
    | TextDelta
    | TextDone
    | ResponseCompleted
    | ResponseIncomplete
    | ResponseCancelled
    | ResponseFailed
    | ResponseInterrupted
)
