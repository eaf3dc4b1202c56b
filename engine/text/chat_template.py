"""ChatTemplate: a conversation as the one text that a model was trained on. It makes no ids (prompt.py does)."""
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any, NoReturn

import jinja2

from ..chat import ROLES, ChatMessage, Tool, ToolCall
from ..errors import InvalidField, ModelError
from .call_format import FORMATS, HERMES, Call, CallFormat
from .harmony import as_written
from .template_sandbox import Program
from .tool_prompt import PROBE, call_variables, in_words, one_by_one, read_back, short_id, text_of, tool_variables

_PROBES = {"system": ("Qsystem", "qsystemQ"), "user": ("Quser", "quserQ"), "assistant": ("Qmodel", "qmodelQ")}
_PROBE_STEPS = 20_000  # enough for three messages; a hostile template does not hold up the start
_PROBE_TIME = datetime(2000, 1, 1)


class ChatTemplate:
    """A model's Jinja template, and what it takes: found out by trying, since no template says so.

    Whether it knows a system role; and for each role whether it takes a text, or a list of parts and nothing else.
    Variables a template sees: messages, add_generation_prompt, bos_token, eos_token, tools, documents (none yet),
    raise_exception and strftime_now. Nothing else, and nothing of a client's.
    `calls` is how its model writes the calls of tools; None: it knows no tools, and is told of them in words of ours.
    """

    def __init__(self, source: str, *, bos_text: str = "", eos_text: str = "") -> None:
        try:
            self._program = Program(source)
        except jinja2.TemplateError as error:
            raise ModelError(f"the model's chat template is not usable: {str(error)[:200]}") from error
        self._tokens = {"bos_token": bos_text, "eos_token": eos_text}
        self._only_parts: set[str] = set()
        self._learn("user", "user")
        self._learn("assistant", "user", "assistant", "user")
        self._system = self._learn("system", "system", "user")
        self._in_messages = False  # calls are messages of their own, as harmony has them
        self.calls = self._learn_calls() if "tool" in source else None

    def arrange(self, messages: Sequence[ChatMessage], tools: Sequence[Tool] = ()) -> list[ChatMessage]:
        """The same conversation in the roles this template has.

        What the system and the developer say is one text, in order, at the start; a template without a system role
        gets it at the head of the first user's turn. An empty one adds nothing.
        """
        for number, message in enumerate(messages):
            if message.role not in ROLES:
                raise InvalidField(f"messages[{number}].role", "must be one of " + ", ".join(ROLES))
        if self.calls is None:
            messages = in_words(messages, tools)
        elif self._in_messages:
            messages = one_by_one(messages)
        orders = [text_of(m) for m in messages if m.role in ("system", "developer")]
        turns = [m for m in messages if m.role not in ("system", "developer")]
        order = "\n\n".join(text for text in orders if text.strip())
        if not order:
            return turns
        if self._system:
            return [ChatMessage("system", order), *turns]
        if turns and turns[0].role == "user":
            return [replace(turns[0], content=f"{order}\n\n{text_of(turns[0])}"), *turns[1:]]
        return [ChatMessage("user", order), *turns]

    def render(self, messages: Sequence[ChatMessage], *, now: datetime, tools: Sequence[Tool] = ()) -> str:
        """The prompt's text, up to where the answer begins. Messages as `arrange` gives them."""
        names: dict[str, str] = {}
        given = []
        for message in messages:
            names |= {call.id: call.name for call in message.tool_calls}  # a client may use an id again in a later turn
            given.append(self._variables(message, names))
        offered = tool_variables(tools) if self.calls is not None else None
        chars = sum(map(_size, messages)) + len(str(offered))
        # Some templates look back over all messages for each of them, some look at every character of every text.
        return self._run(given, now, tools=offered or None, limit=1_000_000 + 4 * chars, steps=2_000_000 + 8 * chars)

    def _variables(self, message: ChatMessage, names: Mapping[str, str]) -> dict[str, Any]:
        """What a template sees of a message. `names`: of the tools, by the ids of their calls."""
        given: dict[str, Any] = {"role": message.role, "content": self._content(message)}
        if message.reasoning:
            given["reasoning_content"] = message.reasoning  # as most call it; a template may leave it out again
            if self._in_messages and message.tool_calls and not text_of(message):
                given["thinking"] = message.reasoning  # as gpt-oss' calls it, which takes no other text beside it
        if message.tool_calls:
            given["tool_calls"] = [call_variables(call) for call in message.tool_calls]
        if message.tool_call_id is not None:
            given["tool_call_id"] = short_id(message.tool_call_id)
            given |= {"name": names[message.tool_call_id]} if message.tool_call_id in names else {}
        return given

    def _content(self, message: ChatMessage) -> str | list[dict[str, str]]:
        role = message.role if message.role in _PROBES else "user"
        if role not in self._only_parts:
            return text_of(message)
        return [_part(text) for text in (message.content if isinstance(message.content, tuple) else (message.content,))]

    def _run(
        self,
        messages: list[dict[str, Any]],
        now: datetime,
        *,
        tools: list[dict[str, Any]] | None = None,
        limit: int,
        steps: int,
    ) -> str:
        variables: dict[str, Any] = {
            "messages": messages,
            "add_generation_prompt": True,
            "tools": tools,
            "documents": None,
            "raise_exception": _raise_exception,
            "strftime_now": lambda form: now.strftime(form[:64]),
        }
        try:
            return self._program.run(variables | self._tokens, limit=limit, steps=steps)
        except jinja2.TemplateError as error:
            raise InvalidField("messages", f"the model's chat template refuses them: {str(error)[:200]}") from error

    def _learn(self, role: str, *conversation: str) -> bool:
        """Whether a small conversation of these roles comes out; notes if this role's text must be a list for that."""
        if self._comes_out(conversation):
            return True
        self._only_parts.add(role)
        if self._comes_out(conversation):
            return True
        self._only_parts.remove(role)
        return False

    def _comes_out(self, roles: Sequence[str]) -> bool:
        messages = [ChatMessage(role, _PROBES[role]) for role in roles]
        prompt = self._tried(messages)
        return all(prompt.count(text) == roles.count(role) for role in roles for text in _PROBES[role])

    def _learn_calls(self) -> CallFormat | None:
        """The format in which the call of a small conversation comes out, where its tool and its result do too."""
        asked = ChatMessage("user", _PROBES["user"])
        call = ToolCall("probe", PROBE.name, '{"probed": "Qargument"}')
        called = ChatMessage("assistant", "", tool_calls=(call,))
        result = ChatMessage("tool", ("Qresult",), tool_call_id=call.id)
        before, whole = self._tried([asked], [PROBE]), self._tried([asked, called, result], [PROBE])
        if PROBE.name not in before or whole.count("Qresult") != 1:
            return None
        written = whole[next((n for n, (a, b) in enumerate(zip(before, whole, strict=False)) if a != b), len(before)) :]
        right = [Call(call.name, call.arguments)]
        if "<|channel|>" in written and read_back(HERMES, as_written(written)) == right:
            self._in_messages = True
            return HERMES  # which their splitter makes of them
        return next((form for form in FORMATS if read_back(form, written) == right), None)

    def _tried(self, messages: Sequence[ChatMessage], tools: Sequence[Tool] = ()) -> str:
        """What comes out, or nothing where that is refused."""
        given = [self._variables(message, {}) for message in messages]
        offered = tool_variables(tools) or None
        try:
            return self._run(given, _PROBE_TIME, tools=offered, limit=100_000, steps=_PROBE_STEPS)
        except InvalidField:
            return ""


def _size(message: ChatMessage) -> int:
    """Characters that a template may look at."""
    called = sum(len(call.name) + len(call.arguments) for call in message.tool_calls)
    return len(text_of(message)) + len(message.reasoning) + called


def _part(text: str) -> dict[str, str]:
    return {"type": "text", "text": text}


def _raise_exception(message: str) -> NoReturn:
    raise jinja2.TemplateError(message if isinstance(message, str) else "without saying why")
