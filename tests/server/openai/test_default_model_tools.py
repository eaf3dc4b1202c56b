"""The default model calls a tool by grammar, through the official client: it is small, so it has to be made to."""
import asyncio
import json
from functools import partial
from pathlib import Path

import jsonschema
import pytest
import torch
from default_model import default_model_path
from official_client import client_of
from world import World, running

from hamdam.engine import EngineConfig, open_engine

pytestmark = pytest.mark.model

PLACE = {
    "type": "object",
    "properties": {"place": {"type": "string", "maxLength": 30}},
    "required": ["place"],
    "additionalProperties": False,
}
TOOLS = [{"type": "function", "function": {"name": name, "parameters": PLACE}} for name in ("get_weather", "get_time")]
QUESTION = {"role": "user", "content": "What is the weather in Tehran?"}


def test_the_official_client_round_trips_a_call_of_the_default_model(tmp_path: Path) -> None:
    config = EngineConfig(model=default_model_path(), device="cpu", dtype="float32", kv_memory=1 << 26, threads=1)

    async def main() -> None:
        async with running(tmp_path, make=partial(open_engine, config)) as world:
            await scene(world)

    async def scene(world: World) -> None:
        async with client_of(world, await world.key("ana")) as client:
            asked = {"model": "default", "tools": TOOLS, "parallel_tool_calls": False, "temperature": 0}
            must = {"messages": [QUESTION], "tool_choice": "required", "max_tokens": 120}
            whole = (await client.chat.completions.create(**asked, **must)).choices[0]
            assert whole.finish_reason == "tool_calls"
            [call] = whole.message.tool_calls
            jsonschema.validate(json.loads(call.function.arguments), PLACE)
            pieces = [piece async for piece in await client.chat.completions.create(**asked, **must, stream=True)]
            calls = [delta for piece in pieces for delta in piece.choices[0].delta.tool_calls or ()]
            assert calls[0].function.name == call.function.name
            assert "".join(delta.function.arguments for delta in calls) == call.function.arguments
            result = {"role": "tool", "tool_call_id": call.id, "content": "31 °C and sunny"}
            talk = [QUESTION, whole.message.model_dump(exclude_none=True), result]
            last = await client.chat.completions.create(**asked, messages=talk, tool_choice="none", max_tokens=8)
            assert last.choices[0].message.content

    threads = torch.get_num_threads()
    try:
        asyncio.run(main())
    finally:
        torch.set_num_threads(threads)
