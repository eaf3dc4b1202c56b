"""A conversation as the engine is given it: roles and texts, always the whole of it. Not a row, not a wire format."""
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

ROLES = ("system", "developer", "user", "assistant", "tool")


@dataclass(frozen=True, slots=True)
class Tool:
    """A function that a client offers the model. `parameters` is the JSON schema of its arguments, an object's.

    With `strict` every call of it has arguments of that schema, also one that the model makes by itself.
    """

    name: str
    description: str | None = None
    parameters: Mapping[str, Any] | None = None
    strict: bool = False


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call that a model made; `arguments` is the text of a JSON object."""

    id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class ChatMessage:
    """One message. `content` is its text, or a tuple of texts where the client sent a list of text parts.

    `token_ids` are the exact ids of an answer as it was sampled (without the end token), kept with the fingerprint of
    tokenizer and template under which they were made; they let the next prompt be a true extension of the cached one.
    `reasoning` is what an answer's model thought before it; whether the model sees it again its template decides.
    An answer may consist of `tool_calls`; what came of one is a message of role `tool` with its `tool_call_id`.
    """

    role: str
    content: str | tuple[str, ...]
    token_ids: tuple[int, ...] | None = None
    fingerprint: str | None = None
    reasoning: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str | None = None

    @property
    def parts(self) -> tuple[str, ...]:
        return (self.content,) if isinstance(self.content, str) else self.content


@dataclass(frozen=True, slots=True)
class Chat:
    """The whole conversation. With `continue_last` the last message is an answer that was cut and is to go on.

    `tools` are those that the answer may call; with `must_call`, names of some, it is calls of these and nothing else.
    Without `parallel_calls` it ends with its first call.
    """

    messages: tuple[ChatMessage, ...]
    continue_last: bool = False
    tools: tuple[Tool, ...] = ()
    parallel_calls: bool = True
    must_call: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Owner:
    """Whose work it is. `id` shares the machine fairly, `cache_root` says with whom cached blocks are shared.

    Both are set by the server from the authenticated account; nothing a client sends reaches them unhashed.
    `None` for a bound means that only the engine's own bounds hold (service keys).
    """

    id: str
    cache_root: str
    max_running: int | None = 2
    max_queued: int | None = 4
