"""A call that has to be made, over a model of random logits: `tool_choice` required, or a function by its name."""
import asyncio
import json
from functools import partial
from pathlib import Path
from typing import Any

import jsonschema
import llguidance
import pytest
from random_runner import random_engine
from scripted import CHATML
from world import World, running

from hamdam.engine.chat import Tool
from hamdam.engine.grammar.sources import lark
from hamdam.engine.policy.sequence import Sequence
from hamdam.engine.policy.structured_outputs import StructuredOutputs
from hamdam.engine.text.call_format import FORMATS, Call
from hamdam.engine.text.call_grammar import call_grammar
from hamdam.engine.text.tool_calls import CallParser

URL = "/v1/chat/completions"
COUNT = {
    "type": "object",
    "properties": {"many": {"type": "integer", "minimum": 0, "maximum": 9}, "what": {"$ref": "#/$defs/what"}},
    "required": ["many", "what"],
    "additionalProperties": False,
    "$defs": {"what": {"enum": ["%json", "tea"]}},
}
TOOLS: dict[str, Any] = {"count": COUNT, "stop": None}
OPENS = "{# </think> #}" + CHATML + "<think>"


END = 260  # </think>, behind the bytes, three control tokens and <think>


def function(name: str) -> dict[str, Any]:
    given = {"name": name, "description": f"The tool {name}"}
    return given | ({"parameters": TOOLS[name]} if TOOLS[name] else {})


def body(**fields: Any) -> dict[str, Any]:
    tools = [{"type": "function", "function": function(name)} for name in TOOLS]
    return {"messages": [{"role": "user", "content": "x"}], "tools": tools, "max_tokens": 400} | fields


def check(name: str, arguments: str) -> None:
    jsonschema.validate(json.loads(arguments), TOOLS[name] or {"type": "object", "maxProperties": 0})


def in_random_world(scene: Any, folder: Path, make: Any = random_engine) -> None:
    async def main() -> None:
        async with running(folder, make=make) as world:
            await scene(world)

    asyncio.run(main())


@pytest.mark.parametrize("parallel", [True, False])
def test_what_must_be_called_is_called_with_arguments_that_fit(tmp_path: Path, parallel: bool) -> None:
    async def scene(world: World) -> None:
        async with world.http(await world.key("ana")) as http:
            for seed in range(6):
                for choice, names in (("required", set(TOOLS)), ("count", {"count"}), ("stop", {"stop"})):
                    asked = choice if choice == "required" else {"type": "function", "function": {"name": choice}}
                    given = body(tool_choice=asked, seed=seed, parallel_tool_calls=parallel)
                    [answer] = (await http.post(URL, json=given)).json()["choices"]
                    calls = answer["message"]["tool_calls"]
                    assert parallel or (len(calls), answer["finish_reason"]) == (1, "tool_calls")
                    assert answer["message"]["content"] is None or answer["finish_reason"] == "length"
                    for call in calls:
                        assert call["function"]["name"] in names
                        check(call["function"]["name"], call["function"]["arguments"])

    in_random_world(scene, tmp_path)


def test_a_model_that_thinks_first_thinks_and_then_calls(tmp_path: Path) -> None:
    def wish(sequence: Sequence) -> dict[int, float]:
        """A thought of ten letters, and its end."""
        return {END: 1e4} if sequence.num_generated == 10 else {65: 1e4} if sequence.num_generated < 10 else {}

    async def scene(world: World) -> None:
        async with world.http(await world.key("ana")) as http:
            given = body(tool_choice="required", parallel_tool_calls=False)
            [answer] = (await http.post(URL, json=given)).json()["choices"]
            assert answer["message"]["reasoning_content"] == "b" * 10
            [call] = answer["message"]["tool_calls"]
            check(call["function"]["name"], call["function"]["arguments"])

    in_random_world(scene, tmp_path, partial(random_engine, wish, template=OPENS, added=("<think>", "</think>")))


def test_the_socket_can_ask_for_a_call_too(tmp_path: Path) -> None:
    async def scene(world: World) -> None:
        async with world.client(await world.key("ana")) as ana:
            tools = [{"type": "function"} | function(name) for name in TOOLS]
            choice = {"type": "function", "name": "count"}
            run = await ana.ask("x", tools=tools, tool_choice=choice, sampling={"max_tokens": 400, "temperature": 1})
            call = next(e for e in run.events if e["type"] == "response.function_call_arguments.done")
            assert call["name"] == "count"
            check("count", call["arguments"])
            asked = {"type": "response.create", "client_id": "c", "conversation": {}, "tools": tools}
            message = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "x"}]}
            error = await ana.refused(**asked, input=[message], tool_choice={"type": "function", "name": "rm"})
            assert error["param"] == "tool_choice"

    in_random_world(scene, tmp_path)


def test_e06_a_schema_that_cannot_be_held_to_names_its_tool(tmp_path: Path) -> None:
    async def scene(world: World) -> None:
        async with world.http(await world.key("ana")) as http:
            good = [{"type": "function", "function": {"name": f"good_{i}", "parameters": COUNT}} for i in range(19)]
            bad = {"type": "object", "properties": {"a": {"type": "string", "pattern": "(["}}}
            tools = [*good, {"type": "function", "function": {"name": "bad", "parameters": bad}}]
            refused = await http.post(URL, json=body(tools=tools, tool_choice="required"))
            assert (refused.status_code, refused.json()["error"]["param"]) == (400, "tools[19]")
            assert "`bad`" in refused.json()["error"]["message"]
            chosen = {"type": "function", "function": {"name": "good_0"}}
            fine = await http.post(URL, json=body(tools=tools, tool_choice=chosen, parallel_tool_calls=False))
            assert fine.json()["choices"][0]["message"]["tool_calls"][0]["function"]["name"] == "good_0"

    in_random_world(scene, tmp_path)


@pytest.mark.parametrize("form", FORMATS, ids=lambda form: form.opener)
def test_every_format_that_is_asked_for_is_one_that_is_read(form) -> None:
    tools = [Tool(name, None, schema) for name, schema in TOOLS.items()]
    source = lark(StructuredOutputs("grammar", call_grammar(form, tools, set(TOOLS), several=False)))
    assert llguidance.LLMatcher.validate_grammar(source) == ""
    word = "parameters" if form.bare else "arguments"
    written = {
        "<tool_call>": f'<tool_call>\n{{"name": "count", "{word}": {{"many": 1,"what": "tea"}}}}\n</tool_call>',
        "[TOOL_CALLS]": f'[TOOL_CALLS] [{{"name": "count", "{word}": {{"many": 1,"what": "tea"}}}}]',
        "<|python_tag|>": f'{{"name": "count", "{word}": {{"many": 1,"what": "tea"}}}}',
    }[form.opener]
    parser = CallParser(form, set(TOOLS))
    assert [*parser.push(written), *parser.finish()] == [Call("count", '{"many": 1,"what": "tea"}')]
