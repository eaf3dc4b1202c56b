"""Strict tools, and tools beside a form, at both doors and through OpenAI's own client, over random logits."""
import asyncio
import json
from functools import partial
from pathlib import Path
from typing import Any, Literal

import jsonschema
import openai
import pytest
from official_client import client_of
from pydantic import BaseModel
from random_runner import random_engine
from tool_templates import QWEN
from world import World, running

from hamdam.engine.policy.sequence import Sequence

CALL = '<tool_call>\n{"name": "'


class Order(BaseModel):
    """Orders something to drink"""

    what: Literal["tea", "water"]
    cups: Literal[1, 2, 3]


class Verdict(BaseModel):
    good: bool


ORDER = openai.pydantic_function_tool(Order)
VERDICT = Verdict.model_json_schema() | {"additionalProperties": False}
FORM = {"type": "json_schema", "name": "verdict", "schema": VERDICT}
WHAT = {"messages": [{"role": "user", "content": "Tea?"}], "model": "default"}


def in_random_world(folder: Path, said: str, scene: Any) -> None:
    """Over a model that begins each answer with what is `said`, and goes on at random."""
    ids: list[int] = []

    def wish(own: Sequence) -> dict[int, float]:
        return {ids[own.num_generated]: 1e4} if own.num_generated < len(ids) else {}

    def make() -> Any:
        engine = random_engine(wish, template=QWEN)
        ids.extend(engine.codec.encode_text(said))
        return engine

    async def main() -> None:
        async with running(folder, make=make) as world:
            await scene(world)

    asyncio.run(main())


@pytest.mark.parametrize("stream", [False, True])
def test_pydantic_tools_of_the_official_client_come_parsed(tmp_path: Path, stream: bool) -> None:
    async def scene(world: World) -> None:
        async with client_of(world, await world.key("ana")) as client:
            asked: dict[str, Any] = WHAT | {"tools": [ORDER], "parallel_tool_calls": False, "max_tokens": 300}
            for seed in range(4):
                if stream:
                    async with client.chat.completions.stream(**asked, seed=seed) as events:
                        answer = (await events.get_final_completion()).choices[0]
                else:
                    answer = (await client.chat.completions.parse(**asked, seed=seed)).choices[0]
                assert (answer.finish_reason, answer.message.content) == ("tool_calls", "Gladly.")
                [call] = answer.message.tool_calls
                assert isinstance(call.function.parsed_arguments, Order)
            result = {"role": "tool", "tool_call_id": call.id, "content": "Here you are."}
            talk = [*WHAT["messages"], answer.message, result]  # its own readings of content and arguments among them
            asked |= {"messages": talk, "tool_choice": "none"}
            await client.chat.completions.parse(**asked, response_format=Verdict)

    in_random_world(tmp_path, f"Gladly.\n{CALL}", scene)


@pytest.mark.parametrize("said", [CALL, "{"])
def test_a_form_and_tools_together_give_the_one_or_the_other(tmp_path: Path, said: str) -> None:
    async def scene(world: World) -> None:
        key = await world.key("ana")
        async with client_of(world, key) as client, world.client(key) as ana:
            asked: dict[str, Any] = WHAT | {"parallel_tool_calls": False, "max_tokens": 300}
            answer = (await client.chat.completions.parse(**asked, tools=[ORDER], response_format=Verdict)).choices[0]
            tools = [{"type": "function"} | ORDER["function"]]
            here = {"tools": tools, "text": {"format": FORM}, "sampling": {"max_tokens": 300, "temperature": 1}}
            run = await ana.ask("Tea?", **here, parallel_tool_calls=False)
            calls = [e for e in run.events if e["type"] == "response.function_call_arguments.done"]
            if said == CALL:
                assert answer.finish_reason == "tool_calls" and answer.message.parsed is None
                assert isinstance(answer.message.tool_calls[0].function.parsed_arguments, Order)
                assert run.text == ""
                for call in calls:
                    Order.model_validate_json(call["arguments"])
            else:
                assert answer.finish_reason == "stop" and not answer.message.tool_calls
                assert isinstance(answer.message.parsed, Verdict)
                Verdict.model_validate_json(run.text)
            assert bool(calls) == (said == CALL)

    in_random_world(tmp_path, said, scene)


def test_with_a_form_tool_choice_says_which_of_the_two(tmp_path: Path) -> None:
    async def scene(world: World) -> None:
        async with client_of(world, await world.key("ana")) as client:
            asked: dict[str, Any] = WHAT | {"tools": [ORDER], "parallel_tool_calls": False, "max_tokens": 300}
            for seed in range(3):
                forms = partial(client.chat.completions.parse, **asked, response_format=Verdict, seed=seed)
                text = (await forms(tool_choice="none")).choices[0].message
                assert isinstance(text.parsed, Verdict) and not text.tool_calls
                for choice in ("required", {"type": "function", "function": {"name": "Order"}}):
                    call = (await forms(tool_choice=choice)).choices[0].message
                    assert isinstance(call.tool_calls[0].function.parsed_arguments, Order) and not call.content

    in_random_world(tmp_path, "", scene)


def test_a_strict_schema_that_cannot_be_held_to_is_refused_by_its_tool_and_one_that_is_not_strict_is_taken(
    tmp_path: Path,
) -> None:
    async def scene(world: World) -> None:
        loose: dict[str, Any] = {"name": "loose", "parameters": {"type": "object", "not": {}}}
        key = await world.key("ana")
        async with world.http(key) as http, world.client(key) as ana:
            for fields in ({}, {"response_format": {"type": "json_object"}}):
                tools = [ORDER, {"type": "function", "function": loose | {"strict": True}}]
                refused = await http.post("/v1/chat/completions", json=WHAT | {"tools": tools} | fields)
                error = refused.json()["error"]
                assert (refused.status_code, error["param"]) == (400, "tools[1]")
                assert "`loose`" in error["message"] and "/not" in error["message"]
            tools = [ORDER, {"type": "function", "function": loose}]
            given = WHAT | {"tools": tools, "parallel_tool_calls": False, "max_tokens": 300}
            answer = (await http.post("/v1/chat/completions", json=given)).json()["choices"][0]
            [call] = answer["message"]["tool_calls"]
            jsonschema.validate(json.loads(call["function"]["arguments"]), Order.model_json_schema())
            message = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "x"}]}
            asked = {"type": "response.create", "client_id": "c", "conversation": {}, "input": [message]}
            error = await ana.refused(**asked, tools=[{"type": "function"} | loose | {"strict": True}])
            assert error["param"] == "tools[0]"
            assert not world.engine._open and not world.engine._in_flight

    in_random_world(tmp_path, f"{CALL}Order", scene)
