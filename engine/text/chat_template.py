"""ChatTemplate: a conversation as the one text that a model was trained on. It makes no ids (prompt.py does)."""
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any, NoReturn

import jinja2

from ..chat import ROLES, ChatMessage
from ..errors import InvalidField, ModelError
from .template_sandbox import MAX_STEPS, Program

_PROBES = {"system": "Qsystemq", "user": "Quserq", "assistant": "Qassistantq"}
_PROBE_STEPS = 20_000  # enough for three messages; a hostile template does not hold up the start
_PROBE_TIME = datetime(2000, 1, 1)
_Probe = tuple[str, bool]  # a role, and whether its text is given as a list of parts


class ChatTemplate:
    """A model's Jinja template, and what it takes: found out by trying, since no template says so.

    Whether it knows a system role; and for each role whether it takes a text, a list of parts, or both.
    Variables a template sees: messages, add_generation_prompt, bos_token, eos_token, tools and documents (none yet),
    raise_exception and strftime_now. Nothing else, and nothing of a client's.
    """

    def __init__(self, source: str, *, bos_text: str = "", eos_text: str = "") -> None:
        try:
            self._program = Program(source)
        except jinja2.TemplateError as error:
            raise ModelError(f"the model's chat template is not usable: {str(error)[:200]}") from error
        self._tokens = {"bos_token": bos_text, "eos_token": eos_text}
        self._as_text: dict[str, bool] = {}
        self._as_parts: dict[str, bool] = {}
        self._try("user")
        user = ("user", self._as_parts["user"] and not self._as_text["user"])
        self._try("assistant", before=(user,), after=(user,))
        self._try("system", after=(user,))

    def arrange(self, messages: Sequence[ChatMessage]) -> list[ChatMessage]:
        """The same conversation in the roles this template has.

        What the system and the developer say is one text, in order, at the start; a template without a system role
        gets it at the head of the first user's turn. An empty one adds nothing.
        """
        for number, message in enumerate(messages):
            if message.role not in ROLES:
                raise InvalidField(f"messages[{number}].role", "must be one of " + ", ".join(ROLES))
        orders = [text_of(m) for m in messages if m.role in ("system", "developer")]
        turns = [m for m in messages if m.role not in ("system", "developer")]
        order = "\n\n".join(text for text in orders if text.strip())
        if not order:
            return turns
        if self._as_text["system"] or self._as_parts["system"]:
            return [ChatMessage("system", order), *turns]
        if turns and turns[0].role == "user":
            return [replace(turns[0], content=f"{order}\n\n{text_of(turns[0])}"), *turns[1:]]
        return [ChatMessage("user", order), *turns]

    def render(self, messages: Sequence[ChatMessage], *, now: datetime) -> str:
        """The prompt's text, up to where the answer begins. Messages as `arrange` gives them."""
        given = [{"role": m.role, "content": self._content(m)} for m in messages]
        chars = sum(len(text_of(m)) for m in messages)
        return self._run(given, now, limit=1_000_000 + 4 * chars, steps=MAX_STEPS)

    def _content(self, message: ChatMessage) -> str | list[dict[str, str]]:
        role = message.role if message.role in _PROBES else "user"
        parts = isinstance(message.content, tuple) and self._as_parts[role]
        if parts or (self._as_parts[role] and not self._as_text[role]):
            texts = message.content if isinstance(message.content, tuple) else (message.content,)
            return [_part(text) for text in texts]
        return text_of(message)

    def _run(self, messages: list[dict[str, Any]], now: datetime, *, limit: int, steps: int) -> str:
        variables: dict[str, Any] = {
            "messages": messages,
            "add_generation_prompt": True,
            "tools": None,
            "documents": None,
            "raise_exception": _raise_exception,
            "strftime_now": lambda form: now.strftime(form[:64]),
        }
        try:
            return self._program.run(variables | self._tokens, limit=limit, steps=steps)
        except jinja2.TemplateError as error:
            raise InvalidField("messages", f"the model's chat template refuses them: {str(error)[:200]}") from error

    def _try(self, role: str, *, before: tuple[_Probe, ...] = (), after: tuple[_Probe, ...] = ()) -> None:
        """Notes whether a small conversation comes out with all its texts, this role's being a text, or a list."""
        for known, parts in ((self._as_text, False), (self._as_parts, True)):
            turns = (*before, (role, parts), *after)
            given = [{"role": r, "content": [_part(_PROBES[r])] if p else _PROBES[r]} for r, p in turns]
            try:
                text = self._run(given, _PROBE_TIME, limit=100_000, steps=_PROBE_STEPS)
                known[role] = all(text.count(_PROBES[r]) == sum(r == other for other, _ in turns) for r, _ in turns)
            except InvalidField:
                known[role] = False


def text_of(message: ChatMessage) -> str:
    return message.content if isinstance(message.content, str) else "".join(message.content)


def _part(text: str) -> dict[str, str]:
    return {"type": "text", "text": text}


def _raise_exception(message: object) -> NoReturn:
    raise jinja2.TemplateError(str(message))
