"""Logprobs at both doors, in OpenAI's shape: every token of an answer once, with the text that it completes."""
import json
from typing import Any, NoReturn

import httpx
import pytest
from openai import AsyncOpenAI
from world import World, in_world

URL = "/v1/chat/completions"
PERSIAN = "می‌روم 🦙 ď"


def body(text: str, **fields: object) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": text}], "temperature": 0, "logprobs": True} | fields


def refuse(constant: str) -> NoReturn:
    raise AssertionError(f"{constant} is not JSON")


def strictly(text: str) -> Any:
    return json.loads(text, parse_constant=refuse)


async def frames(http: httpx.AsyncClient, text: str, **fields: object) -> list[dict[str, Any]]:
    """The choices of a streamed answer."""
    found = []
    async with http.stream("POST", URL, json=body(text, stream=True, **fields)) as response:
        async for line in response.aiter_lines():
            if line.startswith("data: {"):
                found += strictly(line[6:])["choices"]
    return found


async def through_the_doors(world: World, text: str, **sampling: object) -> list[tuple[str, list[dict[str, Any]]]]:
    """The text and the tokens that are listed: whole, streamed, and over the socket."""
    key = await world.key("ana")
    async with world.http(key) as http, world.client(key) as ana:
        [whole] = strictly((await http.post(URL, json=body(text, **sampling))).text)["choices"]
        pieces = await frames(http, text, **sampling)
        run = await ana.ask(text, sampling={"logprobs": True} | sampling)
    streamed = "".join(choice["delta"].get("content", "") for choice in pieces)
    with_pieces = [one for choice in pieces if choice["logprobs"] for one in choice["logprobs"]["content"]]
    over_socket = [one for event in run.events for one in event.get("logprobs", ())]
    return [
        (whole["message"]["content"], whole["logprobs"]["content"]), (streamed, with_pieces), (run.text, over_socket)
    ]


@pytest.mark.parametrize("answer", ["Paris", PERSIAN, "", "🦙🦙", "a\n\nb"])
def test_c06_the_bytes_of_all_tokens_are_the_text_at_both_doors(tmp_path, answer: str) -> None:
    @in_world(lambda question: answer)
    async def scene(world: World) -> None:
        for text, tokens in await through_the_doors(world, "Hi", top_logprobs=2):
            assert text == answer
            assert bytes(byte for one in tokens for byte in one["bytes"]) == answer.encode()
            assert [one["logprob"] for one in tokens] == [-float(n) for n in range(len(answer.encode()))]
            assert all(len(one["top_logprobs"]) == 2 for one in tokens)
            assert all(one["top_logprobs"][0]["token"] == one["token"] for one in tokens)

    scene(tmp_path)


@pytest.mark.parametrize(
    ("answer", "stop", "text"),
    [("DEFGHIJ", ["DEFGHIJ"], ""), ("aaab", ["aab"], "a"), ("ONE TWO THREE", ["THREE\nXXXX"], "ONE TWO THREE"),
     ("سلام دنیا", ["دن"], "سلام "), ("abc", ["bc", "abcd"], "a")],
)
def test_tokens_that_a_stop_string_cuts_away_are_not_listed(tmp_path, answer: str, stop: list[str], text: str) -> None:
    @in_world(lambda question: answer)
    async def scene(world: World) -> None:
        for said, tokens in await through_the_doors(world, "Hi", stop=stop):
            assert said == text
            assert bytes(byte for one in tokens for byte in one["bytes"]) == text.encode()
        for said, tokens in await through_the_doors(world, "Hi", stop=stop, include_stop_str=True):
            assert bytes(byte for one in tokens for byte in one["bytes"]) == said.encode()

    scene(tmp_path)


@in_world(lambda question: PERSIAN)
async def test_each_chunk_has_the_tokens_of_its_own_text(world: World) -> None:
    key = await world.key("ana")
    async with world.http(key) as http, world.client(key) as ana:
        first, *pieces, last = await frames(http, "Hi", top_logprobs=1)
        run = await ana.ask("Hi", sampling={"logprobs": True})
    assert first["logprobs"] is None
    assert last["logprobs"] is None
    for choice in pieces:
        own = bytes(byte for one in choice["logprobs"]["content"] for byte in one["bytes"])
        assert own.decode() == choice["delta"]["content"]
        assert choice["logprobs"]["refusal"] is None
    deltas = [event for event in run.events if event["type"] == "response.output_text.delta"]
    assert deltas
    for event in deltas:
        assert bytes(byte for one in event["logprobs"] for byte in one["bytes"]).decode() == event["delta"]
        assert [one["top_logprobs"] for one in event["logprobs"]] == [[]] * len(event["logprobs"])


@in_world()
async def test_who_does_not_ask_is_told_nothing_of_them(world: World) -> None:
    key = await world.key("ana")
    async with world.http(key) as http, world.client(key) as ana:
        [whole] = (await http.post(URL, json=body("say Hi", logprobs=False))).json()["choices"]
        assert whole["logprobs"] is None
        assert all(choice["logprobs"] is None for choice in await frames(http, "say Hi", logprobs=None))
        run = await ana.ask("say Hi", sampling={"logprobs": False})
        assert not [event for event in run.events if "logprobs" in event]


@in_world()
async def test_a_token_without_text_is_listed_by_its_name(world: World) -> None:
    """An end token that does not end the answer."""
    async with world.http(await world.key("ana")) as http:
        answer = await http.post(URL, json=body("say Hi", min_tokens=4, max_tokens=4, ignore_eos=True))
        [choice] = answer.json()["choices"]
        assert [one["token"] for one in choice["logprobs"]["content"]] == ["H", "i", "+", "+"]
        world.runner.filler = world.runner.end
        answer = await http.post(URL, json=body("say Hi", max_tokens=4, ignore_eos=True))
        [choice] = answer.json()["choices"]
        assert choice["message"]["content"] == "Hi"
        listed = [(one["token"], one["bytes"]) for one in choice["logprobs"]["content"]]
        assert listed == [("H", [72]), ("i", [105]), ("<|im_end|>", []), ("<|im_end|>", [])]
        chunks = await frames(http, "say Hi", max_tokens=4, ignore_eos=True)
        names = [one["token"] for choice in chunks if choice["logprobs"] for one in choice["logprobs"]["content"]]
        assert names == ["H", "i", "<|im_end|>", "<|im_end|>"]


@in_world(lambda question: PERSIAN, gate=True)
async def test_a_reader_that_comes_back_gets_what_it_missed_and_a_snapshot_has_none(world: World) -> None:
    key = await world.key("ana")
    async with world.client(key) as ana, world.client(key) as tab, world.client(key) as late:
        run = await ana.start("Hi", sampling={"logprobs": True})
        world.open_gate()
        await run.finish()
        for client, seen in ((tab, 0), (late, 10**6)):
            await client.subscribe(run, seen=seen)
            again = await type(run)(client).follow(run.id)
            assert again.text == PERSIAN
            tokens = [one for event in again.events for one in event.get("logprobs", ())]
            data = bytes(byte for one in tokens for byte in one["bytes"])
            assert data == (PERSIAN.encode() if seen == 0 else b"")


@in_world()
async def test_a_prompts_tokens_are_listed_from_the_second_one_on(world: World) -> None:
    async with world.http(await world.key("ana")) as http:
        asked = {"logprobs": False, "prompt_logprobs": 2, "n": 2, "temperature": 1}
        answer = strictly((await http.post(URL, json=body(f"say {PERSIAN}", **asked))).text)
    first, *tokens = answer["prompt_logprobs"]
    assert first is None
    assert len(tokens) == answer["usage"]["prompt_tokens"] - 1
    assert f"user\nsay {PERSIAN}".encode() in bytes(byte for one in tokens for byte in one["bytes"])
    assert [one["token"] for one in tokens if not one["bytes"]] == ["<|im_end|>", "<|im_start|>"]
    assert {(one["logprob"], len(one["top_logprobs"])) for one in tokens} == {(-0.5, 2)}
    assert [choice["message"]["content"] for choice in answer["choices"]] == [PERSIAN] * 2
    assert [choice["logprobs"] for choice in answer["choices"]] == [None] * 2


@in_world()
async def test_who_does_not_ask_gets_no_field_of_the_prompts(world: World) -> None:
    async with world.http(await world.key("ana")) as http:
        assert "prompt_logprobs" not in (await http.post(URL, json=body("say Hi"))).json()
        assert "prompt_logprobs" not in (await http.post(URL, json=body("say Hi", prompt_logprobs=None))).json()


@in_world()
async def test_c10_a_prompts_logprobs_are_refused_where_they_would_be_too_many_or_cannot_be_told(world: World) -> None:
    key = await world.key("ana")
    async with world.http(key) as http, world.client(key) as ana:
        for fields in ({"stream": True, "prompt_logprobs": 0}, {"prompt_logprobs": 20}):
            refused = await http.post(URL, json=body("x" * 6_300, max_tokens=1, **fields))
            assert (refused.status_code, refused.json()["error"]["param"]) == (400, "prompt_logprobs")
        text = [{"type": "message", "role": "user", "content": [{"type": "input_text", "text": "x"}]}]
        create = {"type": "response.create", "client_id": "c", "conversation": {}, "input": text}
        error = await ana.refused(**create, sampling={"prompt_logprobs": 0})
        assert (error["code"], error["param"]) == ("invalid_field", "sampling.prompt_logprobs")
        assert world.runner.steps == 0
        whole = await http.post(URL, json=body("x" * 6_300, max_tokens=1, prompt_logprobs=0))
        assert len(whole.json()["prompt_logprobs"]) > 6_300


@in_world(lambda question: PERSIAN)
async def test_openais_own_client_reads_them(world: World) -> None:
    messages: list[Any] = [{"role": "user", "content": "Hi"}]
    async with AsyncOpenAI(base_url=f"http://127.0.0.1:{world.port}/v1", api_key=await world.key("ana")) as client:
        asked: dict[str, Any] = {"model": "default", "messages": messages, "logprobs": True, "top_logprobs": 20}
        whole = (await client.chat.completions.create(**asked)).choices[0].logprobs
        assert b"".join(bytes(one.bytes) for one in whole.content).decode() == PERSIAN
        assert len(whole.content[0].top_logprobs) == 20
        data = b""
        async for chunk in await client.chat.completions.create(**asked, stream=True):
            if chunk.choices[0].logprobs:
                data += b"".join(bytes(one.bytes) for one in chunk.choices[0].logprobs.content)
        assert data.decode() == PERSIAN
