"""What would cost without bound is refused at both doors before any work is done, by its name where it has one."""
import json
import tracemalloc
from collections.abc import Iterator
from typing import Any

import pytest
from world import World, in_world

URL = "/v1/chat/completions"
MESSAGES = [{"role": "user", "content": "x"}]
MOST = 50 << 20  # bytes that refusing may take
BEYOND: dict[str, Any] = {
    "n": 100_000,
    "prompt_logprobs": -1,
    "top_logprobs": 21,
    "stop": [""],
    "stop_token_ids": list(range(200)) * 500,
    "bad_words": ["x"] * 10_000,
    "allowed_token_ids": list(range(200)) * 500,
    "logit_bias": {str(id): 1 for id in range(10_000)},
}
NO_JSON = ('{"a": NaN}', '{"a": Infinity}', '{"a": 1e999}', f'{{"a": {"[" * 1_100}{"]" * 1_100}}}')


@pytest.fixture
def little_memory() -> Iterator[None]:
    tracemalloc.start()
    yield
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < MOST


@pytest.mark.usefixtures("little_memory")
@in_world(limits={"event_burst": 1000})
async def test_c10_what_has_no_bound_is_refused_by_its_name_at_both_doors(world: World) -> None:
    key = await world.key("ana")
    async with world.http(key) as http, world.client(key) as ana:
        wrong = [*BEYOND.items(), ("stop", ["x"] * 10_000), ("stop", ["x" * 257]), ("n", 17), ("top_logprobs", -1)]
        for name, value in wrong:
            asked = {name: value} | ({"logprobs": True} if name == "top_logprobs" else {})
            refused = await http.post(URL, json={"messages": MESSAGES} | asked)
            assert (refused.status_code, refused.json()["error"]["param"]) == (400, name)
            error = await ana.refused(**create(sampling=asked))
            assert (error["code"], error["param"]) == ("invalid_field", f"sampling.{name}")
        assert not world.engine._open
        assert world.runner.steps == 0


@pytest.mark.usefixtures("little_memory")
@in_world()
async def test_c10_a_long_prompt_whose_logprobs_are_asked_for_is_refused_before_it_is_read(world: World) -> None:
    key = await world.key("ana")
    long = [{"role": "user", "content": "word " * 100_000}]
    async with world.http(key) as http:
        refused = await http.post(URL, json={"messages": long, "prompt_logprobs": -1})
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, "prompt_logprobs")
    assert not world.engine._open


@pytest.mark.usefixtures("little_memory")
@in_world()
async def test_c10_numbers_that_are_none_and_endless_nests_are_no_json(world: World) -> None:
    """Nothing in them can be named; the socket and the next request live on."""
    key = await world.key("ana")
    async with world.http(key) as http, world.client(key) as ana:
        for text in NO_JSON:
            given = text[1:-1].replace('"a"', '"temperature"')
            refused = await http.post(URL, content=f'{{"messages": {json.dumps(MESSAGES)}, {given}}}')
            assert (refused.status_code, refused.json()["error"]["type"]) == (400, "invalid_request_error"), text[:20]
            await ana.connection.send(json.dumps(create())[:-1] + f', "sampling": {{{given}}}}}')
            assert (await ana.until("error"))["error"]["type"] == "invalid_request_error", text[:20]
        assert world.runner.steps == 0
        assert (await http.post(URL, json={"messages": MESSAGES})).status_code == 200
        assert (await ana.ask("say on")).text == "on"


def create(**fields: Any) -> dict[str, Any]:
    message = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "x"}]}
    return {"type": "response.create", "client_id": "c", "conversation": {}, "input": [message]} | fields
