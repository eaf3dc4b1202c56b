"""What a chat completion may ask: what is not built is refused by name, what asks for nothing is accepted."""
import gzip
import json
import threading

import pytest
from world import World, in_world

from hamdam.server.openai import chat_completions

URL = "/v1/chat/completions"


def body(text: object = "say Paris", **fields: object) -> dict:
    return {"model": "default", "messages": [{"role": "user", "content": text}], "temperature": 0} | fields


@in_world()
async def test_b02_text_parts_are_joined_and_other_parts_are_refused_by_name(world: World) -> None:
    async with world.http(await world.key("ana")) as http:
        parts = [{"type": "text", "text": "say What is "}, {"type": "text", "text": "2+2?"}]
        assert (await http.post(URL, json=body(parts))).json()["choices"][0]["message"]["content"] == "What is 2+2?"
        for part, param, named in (
            ({"type": "image_url", "image_url": {"url": "x"}}, "messages[0].content[1].type", "image_url"),
            ({"type": "input_audio", "input_audio": {}}, "messages[0].content[1].type", "input_audio"),
            ({"type": "text", "text": 5}, "messages[0].content[1]", "text"),
            ({"type": "text", "text": "x", "cache_control": {}}, "messages[0].content[1]", "text"),
            ({"text": "x"}, "messages[0].content[1].type", "text"),
            ("x", "messages[0].content[1]", "object"),
        ):
            refused = await http.post(URL, json=body([parts[0], part]))
            assert refused.status_code == 400
            assert refused.json()["error"]["param"] == param
            assert named in refused.json()["error"]["message"]


REFUSED = {
    "chat_template": "{{ messages }}",
    "chat_template_kwargs": {"chat_template": "x"},
    "cache_salt": "victim",
    "tools": {"type": "function"},
    "tool_choice": "required",
    "functions": [{"name": "f"}],
    "response_format": {"type": "xml"},
    "structured_outputs": {"regex": "a", "choice": ["a"]},
    "logprobs": 1,
    "top_logprobs": 2,
    "prompt_logprobs": 21,
    "logit_bias": {"1000000": -100},
    "presence_penalty": 2.5,
    "frequency_penalty": -3,
    "repetition_penalty": 0,
    "allowed_token_ids": [],
    "modalities": ["text", "audio"],
    "audio": {"voice": "x"},
    "store": True,
    "reasoning_effort": "low",
    "guided_json": {},
    "user": 5,
    "stream": "yes",
    "stream_options": {"other": True},
    "temperature": 2.5,
    "top_p": 0,
    "n": 0,
    "stop": [""],
    "stop_token_ids": [10**6],
}
ACCEPTED = {
    "tools": [{"type": "function", "function": {"name": "f"}}],
    "tool_choice": "auto",
    "parallel_tool_calls": True,
    "functions": [],
    "response_format": {"type": "text"},
    "logprobs": False,
    "top_logprobs": None,
    "logit_bias": {"5": -100, "7": 1.5},
    "presence_penalty": 0.5,
    "frequency_penalty": -1,
    "repetition_penalty": 1.1,
    "allowed_token_ids": [1, 2],
    "store": False,
    "user": "somebody",
    "metadata": {"a": "b"},
    "service_tier": "auto",
    "prompt_cache_key": "x",
    "n": 1,
    "stop": None,
    "stream": False,
    "seed": None,
    "max_tokens": None,
}


@in_world()
async def test_b05_d04_what_is_not_built_is_refused_by_name_and_what_asks_for_nothing_is_accepted(world: World) -> None:
    async with world.http(await world.key("ana")) as http:
        for name, value in REFUSED.items():
            refused = await http.post(URL, json=body(**{name: value}))
            assert refused.status_code == 400, name
            error = refused.json()["error"]
            assert error["param"].split(".")[0] == name
            assert error["type"] == "invalid_request_error"
        assert not world.engine._open
        for name, value in ACCEPTED.items():
            assert (await http.post(URL, json=body(**{name: value}))).status_code == 200, name
        assert (await http.post(URL, json=body(**ACCEPTED))).status_code == 200
        refused = await http.post(URL, json=body(model="gpt-4o"))
        assert (refused.status_code, refused.json()["error"]["code"]) == (404, "model_not_found")


@in_world()
async def test_bad_bodies_are_refused_and_the_server_lives(world: World) -> None:
    async with world.http(await world.key("ana")) as http:
        for content, code in (
            (b"", "invalid_json"), (b"{", "invalid_json"), (b"[]", "invalid_json"), (b'{"a": NaN}', "invalid_json"),
            (b'{"messages": [], "metadata": ' + b"[" * 200_000, "invalid_json"), (b"\xff\xfe", "invalid_json"),
            (b"{}", "invalid_field"), (b'{"messages": []}', "invalid_field"), (b'{"messages": "x"}', "invalid_field"),
            (b'{"messages": [5]}', "invalid_field"), (b'{"messages": [{"role": "user"}]}', "invalid_field"),
            (b'{"messages": [{"role": "root", "content": "x"}]}', "invalid_field"),
            (b'{"messages": [{"role": "tool", "content": "x"}]}', "invalid_field"),
            (b'{"messages": [{"role": "user", "content": "x", "tool_calls": [{}]}]}', "invalid_field"),
            (b'{"messages": [{"role": "user", "content": "x", "secret": 1}]}', "invalid_field"),
            (b'{"messages": [{"role": "user", "content": "x", "name": {}}]}', "invalid_field"),
        ):  # fmt: skip
            refused = await http.post(URL, content=content)
            assert (refused.status_code, refused.json()["error"]["code"]) == (400, code), content[:60]
        assert (await http.post(URL, content=b"x" * (9 << 20))).status_code == 413
        assert (await http.get(URL)).status_code == 405
        assert (await http.post(URL, json=body())).status_code == 200
    async with world.http() as nobody:
        assert (await nobody.post(URL, json=body())).status_code in (401, 403)


@in_world()
async def test_a_packed_body_is_refused_as_that(world: World) -> None:
    async with world.http(await world.key("ana")) as http:
        packed = gzip.compress(json.dumps(body()).encode())
        refused = await http.post(URL, content=packed, headers={"Content-Encoding": "gzip"})
        assert (refused.status_code, refused.json()["error"]["param"]) == (400, "Content-Encoding")
        assert (await http.post(URL, json=body(), headers={"Content-Encoding": "identity"})).status_code == 200


@in_world()
async def test_a_bound_of_the_answer_that_is_given_twice_is_refused(world: World) -> None:
    async with world.http(await world.key("ana")) as http:
        refused = await http.post(URL, json=body(max_tokens=2, max_completion_tokens=3))
        assert refused.json()["error"]["param"] == "max_completion_tokens"
        answered = await http.post(URL, json=body(max_tokens=None, max_completion_tokens=3))
        assert answered.json()["usage"]["completion_tokens"] <= 3


@in_world()
async def test_g20_megabytes_are_read_off_the_event_loop(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    threads: list[str] = []
    read = chat_completions.read_body

    def watched(*given):
        threads.append(threading.current_thread().name)
        return read(*given)

    monkeypatch.setattr(chat_completions, "read_body", watched)
    async with world.http(await world.key("ana")) as http:
        large = await http.post(URL, json=body("x" * (2 << 20)))
        assert (large.status_code, large.json()["error"]["code"]) == (400, "context_length_exceeded")
        assert (await http.post(URL, json=body("x" * (27 << 20)))).status_code == 413
        await http.post(URL, json=body())
    assert len(threads) == 2
    assert threads[0] != threading.main_thread().name
    assert threads[1] == threading.main_thread().name
