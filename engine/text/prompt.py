"""PromptEncoder: a conversation's ids, the next turn's a true extension of this one's. It keeps no KV blocks.

The whole conversation is rendered once and encoded once. An answer's stored ids stand in for its text where they are
exactly what the model would have gone on with there; otherwise the text is encoded. To find the places without
rendering every prefix again, the conversation is rendered a second time as a skeleton, with a mark in place of every
text: what stands between two marks is the template's own, and the texts of the first rendering stand between those.
Of an answer with thoughts or calls the ids stand in where the template writes all of it, tags too, as the model did.
"""
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from itertools import groupby
from typing import Any

from ..chat import Chat, ChatMessage, Tool, ToolCall
from ..errors import InvalidField
from .chat_template import ChatTemplate
from .detokenizer import TokenBytes
from .json_scanner import MAX_DEPTH
from .tokenizer import Tokenizer, require_text
from .tool_prompt import text_of

MOST_HEADERS = 64  # behind which an answer is looked for
Written = list[tuple[bool, str]]
"""What an answer's ids say: whether they are control tokens, and their text."""


class PromptEncoder:
    """Immutable once made; `encode` may be called from any thread, and should be called off the event loop."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        template: ChatTemplate,
        token_bytes: TokenBytes,
        fingerprint: str,
        begun: Callable[[str, str, str], str],
    ) -> None:
        """`begun`: of a prompt, reasoning and answer what stands after the prompt where they were cut."""
        self._tokenizer, self._template, self._bytes, self._fingerprint = tokenizer, template, token_bytes, fingerprint
        self._begun = begun

    def encode(self, chat: Chat, now: datetime) -> list[int]:
        messages = [self._shielded(number, message) for number, message in enumerate(chat.messages)]
        if not messages:
            raise InvalidField("messages", "at least one is needed")
        unfinished = None
        if chat.continue_last:
            unfinished = messages.pop()
            if unfinished.role != "assistant":
                raise InvalidField("messages", "only an answer can be continued, and the last message is none")
        tools = [self._shielded_tool(number, tool) for number, tool in enumerate(chat.tools)]
        messages = self._template.arrange(messages, tools)
        prompt = self._template.render(messages, tools=tools, now=now)
        prompt, answers = self._with_stored_ids(prompt, messages, tools, now)
        if unfinished is not None:
            text = self._begun(prompt, unfinished.reasoning, text_of(unfinished))
            ids = self._stored_ids(unfinished) if text == text_of(unfinished) else ()
            if (runs := self._written(unfinished)) and self._end_of(runs, text, 0) == len(text):
                ids = unfinished.token_ids or ()
            prompt += self._tokenizer.answer if ids else text
            answers += [ids] if ids else []
        return self._tokenizer.encode(prompt, answers)

    def _shielded(self, number: int, message: ChatMessage) -> ChatMessage:
        of_model = message.role == "assistant"
        parts = (message.content,) if isinstance(message.content, str) else message.content
        name = f"messages[{number}].content"
        shielded = tuple(self._tokenizer.shield(require_text(name, part), of_model=of_model) for part in parts)
        content = shielded[0] if isinstance(message.content, str) else shielded
        thought = require_text(f"messages[{number}].reasoning_content", message.reasoning)
        calls = tuple(self._shielded_call(f"messages[{number}].tool_calls", call) for call in message.tool_calls)
        thought = self._tokenizer.shield(thought, of_model=of_model)
        return replace(message, content=content, reasoning=thought, tool_calls=calls)

    def _shielded_call(self, name: str, call: ToolCall) -> ToolCall:
        arguments = self._shielded_json(name, json.loads(call.arguments))
        called = self._shielded_json(name, call.name)
        return replace(call, name=called, arguments=json.dumps(arguments, ensure_ascii=False))

    def _shielded_tool(self, number: int, tool: Tool) -> Tool:
        shielded = self._shielded_json(f"tools[{number}]", [tool.name, tool.description, tool.parameters])
        return Tool(*shielded)

    def _shielded_json(self, name: str, value: Any, depth: int = 0) -> Any:
        """Every text in it, names too."""
        if isinstance(value, str):
            return self._tokenizer.shield(require_text(name, value))
        if depth > MAX_DEPTH:
            raise InvalidField(name, f"nested more than {MAX_DEPTH} deep")
        if isinstance(value, Mapping):
            shielded = ((self._shielded_json(name, key), one) for key, one in value.items())
            return {key: self._shielded_json(name, one, depth + 1) for key, one in shielded}
        return [self._shielded_json(name, one, depth + 1) for one in value] if isinstance(value, list) else value

    def _stored_ids(self, message: ChatMessage) -> Sequence[int]:
        """An answer's own ids, if made with this tokenizer and template, without control tokens, true to its text."""
        ids = message.token_ids
        if message.role != "assistant" or not ids or message.fingerprint != self._fingerprint:
            return ()
        if not self._tokenizer.control_ids.isdisjoint(ids):
            return ()
        texts = (self._bytes.decode(ids, going_on=going_on) for going_on in (False, True))
        return ids if text_of(message) in (self._tokenizer.shield(text, of_model=True) for text in texts) else ()

    def _written(self, message: ChatMessage) -> Written:
        """All that an answer's ids say, in runs of text and of control tokens, where it has thoughts or calls."""
        ids = message.token_ids
        if message.role != "assistant" or not ids or message.fingerprint != self._fingerprint:
            return []
        if not (message.reasoning or message.tool_calls):
            return []
        runs = groupby(ids, self._tokenizer.control_ids.__contains__)
        return [(controls, self._said(list(run), controls)) for controls, run in runs]

    def _said(self, ids: list[int], controls: bool) -> str:
        if controls:
            return "".join(self._tokenizer.literals[token] for token in ids)
        return self._bytes.decode(ids, going_on=True)

    def _with_stored_ids(
        self, prompt: str, messages: list[ChatMessage], tools: list[Tool], now: datetime
    ) -> tuple[str, list[Sequence[int]]]:
        """The prompt with a mark in place of every answer whose stored ids stand in, and those ids in order."""
        stored = {number: ids for number, message in enumerate(messages) if (ids := self._stored_ids(message))}
        written = {number: runs for number, message in enumerate(messages) if (runs := self._written(message))}
        if not stored and not written:
            return prompt, []
        marked = [self._marked(number, message) for number, message in enumerate(messages)]
        skeleton = self._skeleton(marked, tools, now)
        if skeleton is None:
            return prompt, []
        going_on = self._goes_on(skeleton, marked, list(stored), tools, now)
        places = [
            (start, stop, number)
            for number, start, stop in self._places(prompt, skeleton, messages)
            if number in going_on and prompt[start:stop] == text_of(messages[number])
        ]
        pieces: list[str] = []
        answers: list[Sequence[int]] = []
        end = 0
        for start, stop, number in sorted(places + self._written_places(prompt, written, marked, tools, now)):
            if start >= end:
                pieces += [prompt[end:start], self._tokenizer.answer]
                answers.append(messages[number].token_ids or ())
                end = stop
        return "".join(pieces) + prompt[end:], answers

    def _marked(self, number: int, message: ChatMessage) -> ChatMessage:
        """Its mark in place of its text. Where there is none a template may leave out what stands around it, too."""
        return replace(message, content=self._tokenizer.marks.text(number)) if text_of(message) else message

    def _skeleton(self, marked: list[ChatMessage], tools: list[Tool], now: datetime) -> str | None:
        """None for a template that minds what the texts say, or where a conversation begins: then no place is known."""
        try:
            return self._template.render(marked, tools=tools, now=now)
        except InvalidField:
            return None

    def _places(self, prompt: str, skeleton: str, messages: list[ChatMessage]) -> list[tuple[int, int, int]]:
        """(message, start, stop) of the texts in the prompt, in order, as far as prompt and skeleton agree."""
        head, *rest = self._tokenizer.marks.any_text.split(skeleton)
        if not prompt.startswith(head):
            return []
        places = []
        start = len(head)
        for number, after in zip(map(int, rest[::2]), rest[1::2], strict=True):
            stop = start + len(text_of(messages[number]))
            if not (prompt.startswith(text_of(messages[number]), start) and prompt.startswith(after, stop)):
                stop = prompt.find(after, start) if after else -1  # the template trimmed it, or cut something out
            if stop < 0:
                break
            places.append((number, start, stop))
            start = stop + len(after)
        return places

    def _written_places(
        self, prompt: str, written: dict[int, Written], marked: list[ChatMessage], tools: list[Tool], now: datetime
    ) -> list[tuple[int, int, int]]:
        """(start, stop, message) of what is written just so, behind what stood at the end of its prompt.

        Rendered anew for the first after each role; the others must have the same header as that one.
        """
        headers: dict[str, str] = {}
        places = []
        end = 0
        for number, runs in written.items():
            before = marked[number - 1] if number else None
            if before is None or not text_of(before):
                continue  # nothing says where its header begins
            if before.role not in headers:
                prefix = self._skeleton(marked[:number], tools, now)
                headers[before.role] = "" if prefix is None else self._tokenizer.marks.any_text.split(prefix)[-1]
            if (place := self._place(prompt, end, headers[before.role], runs)) is not None:
                end = place[1]
                places.append((*place, number))
        return places

    def _place(self, prompt: str, start: int, header: str, runs: Written) -> tuple[int, int] | None:
        """The first behind such a header where these runs stand."""
        for _ in range(MOST_HEADERS if header else 0):
            start = prompt.find(header, start) + len(header)
            if start < len(header):
                return None
            if (end := self._end_of(runs, prompt, start)) is not None:
                return start, end
        return None

    def _end_of(self, runs: Written, prompt: str, start: int) -> int | None:
        """Where these runs end that stand there. None: they do not."""
        end: int | None = start
        for controls, text in runs:
            if end is None:
                return None
            if not controls:
                end = self._tokenizer.end_of(text, prompt, end)
            else:
                end = end + len(text) if prompt.startswith(text, end) else None
        return end

    def _goes_on(
        self, skeleton: str, marked: list[ChatMessage], answers: list[int], tools: list[Tool], now: datetime
    ) -> set[int]:
        """The answers before which stands just what stood at the end of their own prompt: their ids went on from it.

        Rendered anew for the last answer after each role; the others must have the same header as that one.
        """
        marks = self._tokenizer.marks
        headers: dict[str, str | None] = {}
        good = set()
        cuts = marks.any_text.split(skeleton)
        before = {int(number): header for header, number in zip(cuts[::2], cuts[1::2], strict=False)}
        for number in reversed(answers):
            role = marked[number - 1].role if number else ""
            if role not in headers:
                prefix = self._skeleton(marked[:number], tools, now)
                is_prefix = prefix is not None and skeleton.startswith(prefix + marks.text(number))
                headers[role] = marks.any_text.split(prefix)[-1] if prefix is not None and is_prefix else None
            if number in before and before[number] == headers[role]:
                good.add(number)
        return good
