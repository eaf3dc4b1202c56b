"""Calls by grammar over random logits: strict ones that a model makes by itself, and calls beside a form."""
import asyncio
import json
from collections.abc import Sequence as Ordered
from typing import Any

import jsonschema
import pytest
from asked import ANYONE, structured
from random_runner import random_engine
from scripted import CHATML
from tool_templates import LLAMA_3, MISTRAL_3, QWEN, TEMPLATES

from hamdam.engine import (
    Called,
    Chat,
    ChatMessage,
    Engine,
    Finished,
    InvalidField,
    Reasoning,
    SamplingParams,
    Text,
    Tool,
)
from hamdam.engine.policy.sequence import Sequence
from hamdam.engine.text.harmony import LETTERS

COUNT = {
    "type": "object",
    "properties": {"many": {"type": "integer", "minimum": 0, "maximum": 9}, "what": {"$ref": "#/$defs/what"}},
    "required": ["many", "what"],
    "additionalProperties": False,
    "$defs": {"what": {"enum": ["%json", "tea {20000}"]}},
}
LOOSE = {"type": "object", "properties": {"a": {"not": {"type": "string"}}}}
"""What cannot be held to."""
TOOLS = (Tool("count", None, COUNT, strict=True), Tool("get", None, LOOSE))
OPENERS = {"qwen": "<tool_call>", "llama": "<|python_tag|>", "mistral": "[TOOL_CALLS]"}
HEADS = {"qwen": '\n{"name": "c', "llama": '{"name": "c', "mistral": ' [{"name": "c'}
"""Behind them: how a call of `count` begins."""
ASKED = {"max_tokens": 400, "temperature": 1, "seed": 2}


def chat(*tools: Tool, **fields: Any) -> Chat:
    return Chat((ChatMessage("user", "x"),), tools=tools or TOOLS, **fields)


def saying(*said: Ordered[str]) -> Any:
    """Logits of a model that says one of these, the one its seed names; and then anything."""

    def wish(own: Sequence) -> dict[int, float]:
        tokens, done = said[own.seed % len(said)], own.num_generated
        return {wish.engine.codec.encode_text(tokens[done])[0]: 1e4} if done < len(tokens) else {}  # type: ignore

    return wish


async def told(engine: Engine, talk: Chat, **asked: Any) -> tuple[list[Any], Finished]:
    generation = await engine.submit(talk, SamplingParams.from_dict(ASKED | asked), owner=ANYONE)
    generation.start()
    *events, end = [event async for event in generation]
    return events, end


def text_of(events: list[Any], kind: type = Text) -> str:
    return "".join(event.text for event in events if isinstance(event, kind))


def calls_of(events: list[Any]) -> list[Any]:
    return [event.call for event in events if isinstance(event, Called)]


def in_engine(said: list[Ordered[str]], scene: Any, **options: Any) -> None:
    async def main() -> None:
        wish = saying(*said) if said else None
        engine = random_engine(wish, **options)
        if wish is not None:
            wish.engine = engine
        engine.start()
        try:
            await scene(engine)
        finally:
            engine.stop()

    asyncio.run(main())


@pytest.mark.parametrize("special", [True, False], ids=["token", "characters"])
@pytest.mark.parametrize("name", TEMPLATES)
def test_a_strict_call_that_a_model_makes_by_itself_has_arguments_of_its_schema(name: str, special: bool) -> None:
    opener = OPENERS[name]
    said = [*"Let's see: {1}\n", *([opener] if special else opener), *HEADS[name]]

    async def scene(engine: Engine) -> None:
        for seed in range(8):
            events, end = await told(engine, chat(parallel_calls=False), seed=seed)
            assert text_of(events) == "Let's see: {1}"
            [call] = calls_of(events)
            jsonschema.validate(json.loads(call.arguments), COUNT)
            assert end.reason == "stop"

    in_engine([said], scene, template=TEMPLATES[name], special=(opener,) if special else ())


@pytest.mark.parametrize("name", TEMPLATES)
def test_text_before_a_strict_call_is_free_and_may_be_all(name: str) -> None:
    texts = ["Hi.", "a { b: <tool_cal", "\n [TOOL_CALLS <|python_tag"]

    async def scene(engine: Engine) -> None:
        for seed, text in enumerate(texts):
            events, end = await told(engine, chat(), seed=seed)
            assert (text_of(events), end.reason) == (text, "stop")

    in_engine([[*text, "<|im_end|>"] for text in texts], scene, template=TEMPLATES[name])


def test_a_token_that_goes_on_beyond_the_opener_into_no_call_is_not_drawn() -> None:
    bad = '>{"oh'

    async def scene(engine: Engine) -> None:
        liked = {str(engine.codec.encode_text(text)[0]): bias for text, bias in ((bad, 100), (">", 50))}
        events, _ = await told(engine, chat(TOOLS[0], parallel_calls=False), logit_bias=liked)
        [call] = calls_of(events)
        jsonschema.validate(json.loads(call.arguments), COUNT)

    in_engine(["<tool_call"], scene, template=QWEN, added=(bad,))


def test_json_at_the_beginning_is_a_strict_call_where_a_model_writes_calls_so() -> None:
    async def scene(engine: Engine) -> None:
        for seed in range(4):
            events, _ = await told(engine, chat(TOOLS[0], parallel_calls=False), seed=seed)
            [call] = calls_of(events)
            jsonschema.validate(json.loads(call.arguments), COUNT)
            assert text_of(events) == ""

    in_engine([["{"]], scene, template=LLAMA_3)


@pytest.mark.parametrize("form", [QWEN, LLAMA_3, MISTRAL_3], ids=TEMPLATES)
def test_several_strict_calls_follow_one_another(form: str) -> None:
    first = {
        QWEN: '<tool_call>\n{"name": "get", "arguments": {}}\n</tool_call>\n<tool_call>\n{"name": "c',
        LLAMA_3: '{"name": "get", "parameters": {}}; {"name": "c',
        MISTRAL_3: '[TOOL_CALLS] [{"name": "get", "arguments": {}}, {"name": "c',
    }[form]

    async def scene(engine: Engine) -> None:
        events, _ = await told(engine, chat(Tool("get", strict=True), TOOLS[0]), seed=1)
        first, second, *_ = calls_of(events)
        assert (first.name, first.arguments, second.name) == ("get", "{}", "count")
        jsonschema.validate(json.loads(second.arguments), COUNT)

    in_engine([first], scene, template=form)


@pytest.mark.parametrize("added", [(), ("<think>", "</think>")], ids=["characters", "tokens"])
def test_a_model_that_begins_to_think_by_itself_thinks_freely_before_strict_calls(added: tuple[str, ...]) -> None:
    tags = (["<think>"], ["</think>"]) if added else ("<think>", "</think>")
    said = [*"\n", *tags[0], *"<tool_call>no", *tags[1], *"\n<tool_call>"]

    async def scene(engine: Engine) -> None:
        events, _ = await told(engine, chat(TOOLS[0], parallel_calls=False))
        assert text_of(events, Reasoning) == "<tool_call>no"
        [call] = calls_of(events)
        jsonschema.validate(json.loads(call.arguments), COUNT)

    in_engine([said], scene, template=QWEN + "{# <think></think> #}", added=added)


FORM = {"type": "object", "properties": {"name": {"const": "Bo"}}, "required": ["name"], "additionalProperties": False}
FORMS = [{"json": FORM}, {"choice": ["<tool", "b"]}, {"regex": "[ab{]{3}"}, {"grammar": 'start: "a" X\nX: "{" | "b"'}]


@pytest.mark.parametrize("name", TEMPLATES)
@pytest.mark.parametrize("kind", FORMS, ids=lambda kind: next(iter(kind)))
def test_with_tools_and_a_form_an_answer_is_calls_or_has_the_form(name: str, kind: dict[str, Any]) -> None:
    opening = HEADS[name] if name == "llama" else OPENERS[name] + HEADS[name]
    [sort] = kind
    forms = {"json": '{"name": "B', "choice": "b", "regex": "a", "grammar": "a"}

    async def scene(engine: Engine) -> None:
        for seed in (0, 1, 2, 3, 4, 5):
            events, end = await told(engine, chat(TOOLS[0], parallel_calls=False), seed=seed, **structured(**kind))
            assert end.reason == "stop"
            if seed % 3 == 0:
                [call] = calls_of(events)
                jsonschema.validate(json.loads(call.arguments), COUNT)
                assert text_of(events) == ""
            elif seed % 3 == 1:
                assert text_of(events).startswith(forms[sort])
                assert sort != "json" or json.loads(text_of(events)) == {"name": "Bo"}
            assert calls_of(events) or text_of(events)

    in_engine([opening, forms[sort], ""], scene, template=TEMPLATES[name])


def test_a_line_break_behind_a_call_that_had_to_be_made_may_end_the_answer() -> None:
    said = [*'<tool_call>\n{"name": "get", "arguments": {}}\n</tool_call>\n', "<|im_end|>"]

    async def scene(engine: Engine) -> None:
        talk = chat(Tool("get"), must_call=("get",))
        events, end = await told(engine, talk)
        assert (len(calls_of(events)), text_of(events), end.reason) == (1, "", "stop")

    in_engine([said], scene, template=QWEN)


def test_where_a_call_has_to_be_made_the_form_is_of_no_answer() -> None:
    async def scene(engine: Engine) -> None:
        talk = chat(TOOLS[0], must_call=("count",), parallel_calls=False)
        events, _ = await told(engine, talk, **structured(json=FORM))
        jsonschema.validate(json.loads(calls_of(events)[0].arguments), COUNT)

    in_engine([], scene, template=QWEN)


@pytest.mark.parametrize("template", [*TEMPLATES.values(), CHATML])
def test_what_cannot_be_held_to_is_refused_by_what_it_is(template: str) -> None:
    async def scene(engine: Engine) -> None:
        bad = Tool("bad", None, LOOSE, strict=True)
        for talk, asked, name in (
            (chat(*TOOLS, bad), {}, "tools[2]"),
            (chat(*TOOLS, bad), structured(json=FORM), "tools[2]"),
            (chat(*TOOLS), structured(json=LOOSE), "structured_outputs.json"),
            (chat(*TOOLS), structured(regex="("), "structured_outputs.regex"),
        ):
            with pytest.raises(InvalidField) as refused:
                await told(engine, talk, **asked)
            assert refused.value.name == name
            assert not name.startswith("tools") or "`bad`" in refused.value.why

    in_engine([], scene, template=template)


def message(header: str, *said: str) -> list[str]:
    """One as gpt-oss writes it, behind `<|start|>assistant`, not ended."""
    return ["<|channel|>", *header, "<|message|>", *said]


THOUGHT = [*message("analysis", *"Hm."), "<|end|>", "<|start|>", *"assistant"]
PREAMBLE = message("commentary", *"I look.")
MESSAGES: dict[str, Any] = {"template": CHATML + "{# <|channel|> #}", "added": tuple(LETTERS)}


@pytest.mark.parametrize("before", [[], THOUGHT], ids=["at once", "after a thought"])
@pytest.mark.parametrize("form", [{}, {"json": COUNT}], ids=["free", "beside a form"])
def test_a_call_in_a_message_of_its_own_has_arguments_of_its_schema(before: list[str], form: dict[str, Any]) -> None:
    said = before + message("commentary to=functions.count <|constrain|>json")

    async def scene(engine: Engine) -> None:
        for seed in range(6):
            events, end = await told(engine, chat(), seed=seed, **(structured(**form) if form else {}))
            [call] = calls_of(events)
            jsonschema.validate(json.loads(call.arguments), COUNT)
            assert (call.name, text_of(events), text_of(events, Reasoning)) == ("count", "", "Hm." if before else "")
            assert end.reason == "stop"

    in_engine([said], scene, **MESSAGES)


def test_what_a_model_of_messages_may_say_beside_strict_calls_is_free_and_may_end() -> None:
    said = [*PREAMBLE, *THOUGHT[-11:], *message("final", *"Hi {"), "<|im_end|>"]

    async def scene(engine: Engine) -> None:
        events, end = await told(engine, chat())
        assert (text_of(events), end.reason) == ("I look.\n\nHi {", "stop")
        begun = ChatMessage("assistant", "I say: ")
        talk = Chat((*chat().messages, begun), tools=TOOLS, continue_last=True)
        events, end = await told(engine, talk, max_tokens=3)
        assert end.reason == "length", "goes on in its message, which no grammar holds"

    in_engine([said], scene, **MESSAGES)


def test_the_answer_of_a_model_of_messages_has_its_form_where_tools_are_offered() -> None:
    async def scene(engine: Engine) -> None:
        for seed in range(6):
            events, end = await told(engine, chat(), seed=seed, **structured(json=COUNT))
            jsonschema.validate(json.loads(text_of(events)), COUNT)
            assert (calls_of(events), end.reason) == ([], "stop")
            assert text_of(events, Reasoning) == ("" if seed % 2 else "I look."), "what comes before has no such form"

    said = [[*before, *THOUGHT[-11:], *message("final")] for before in (PREAMBLE, message("analysis"))]
    in_engine(said, scene, **MESSAGES)


def test_a_message_for_a_tool_that_is_not_strict_is_any_json_object() -> None:
    said = [*message("commentary to=functions.get"), *'{"a": ']

    async def scene(engine: Engine) -> None:
        liked = {str(engine.codec.encode_text(char)[0]): 100 for char in "}"}
        events, end = await told(engine, chat(), logit_bias=liked)
        [call] = calls_of(events)
        assert (call.name, list(json.loads(call.arguments)), end.reason) == ("get", ["a"], "stop")

    in_engine([said], scene, **MESSAGES)


def test_a_strict_tool_that_cannot_be_held_to_is_named_by_a_model_of_messages_too() -> None:
    async def scene(engine: Engine) -> None:
        with pytest.raises(InvalidField, match="`get`") as refused:
            await told(engine, chat(TOOLS[0], Tool("get", None, LOOSE, strict=True)))
        assert refused.value.name == "tools[1]"

    in_engine([], scene, **MESSAGES)


def test_what_such_a_model_has_to_call_it_calls_first_of_all() -> None:
    async def scene(engine: Engine) -> None:
        for seed in range(8):
            events, end = await told(engine, chat(must_call=("count",), parallel_calls=False), seed=seed)
            [call] = calls_of(events)
            jsonschema.validate(json.loads(call.arguments), COUNT)
            assert (text_of(events), end.reason) == ("", "stop")

    in_engine([], scene, **MESSAGES)
