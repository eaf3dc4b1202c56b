"""The official client works against /v1 as it is."""
import openai
import pytest
from official_client import client_of
from world import World, in_world


@in_world()
async def test_the_official_client_asks_streams_and_lists(world: World) -> None:
    async with client_of(world, await world.key("ana")) as client:
        asked = {"model": "default", "messages": [{"role": "user", "content": "say سلام"}]}
        whole = await client.chat.completions.create(**asked, temperature=0, extra_body={"top_k": 3})
        assert (whole.choices[0].message.content, whole.choices[0].finish_reason) == ("سلام", "stop")
        talk = [*asked["messages"], whole.choices[0].message.model_dump(), {"role": "user", "content": "say more"}]
        text, usage = "", None
        frames = await client.chat.completions.create(
            model="default", messages=talk, stream=True, stream_options={"include_usage": True}
        )
        async for frame in frames:
            usage = frame.usage or usage
            text += "".join(choice.delta.content or "" for choice in frame.choices)
        assert text == "more"
        assert usage.prompt_tokens_details.cached_tokens > 0
        assert [model.id async for model in await client.models.list()] == ["scripted"]
        assert (await client.models.retrieve("default")).id == "scripted"


@in_world()
async def test_the_official_client_understands_our_refusals(world: World) -> None:
    async with client_of(world, await world.key("ana")) as client:
        asked = {"model": "default", "messages": [{"role": "user", "content": "x"}]}
        for fields, kind, param in (
            ({"temperature": 9}, openai.BadRequestError, "temperature"),
            ({"tools": [{"type": "custom", "custom": {"name": "f"}}]}, openai.BadRequestError, "tools[0].type"),
            ({"model": "other"}, openai.NotFoundError, "model"),
        ):
            with pytest.raises(kind) as refused:
                await client.chat.completions.create(**asked | fields)
            assert refused.value.param == param
    async with client_of(world, "wrong") as stranger:
        with pytest.raises(openai.AuthenticationError) as refused:
            await stranger.models.list()
        assert refused.value.code == "unauthorized"
