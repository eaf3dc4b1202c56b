"""/v1/chat/completions over real HTTP: OpenAI's shapes, refusals by name, and clients that go away."""
import json
import re

import httpx
import pytest
from scripted import scripted_engine
from world import World, in_world

URL = "/v1/chat/completions"


def body(text: object = "say Paris", **fields: object) -> dict:
    return {"model": "default", "messages": [{"role": "user", "content": text}], "temperature": 0} | fields


async def stream(http: httpx.AsyncClient, **fields: object) -> list[dict]:
    """The frames of a streamed answer; the last line is [DONE]."""
    frames: list = []
    async with http.stream("POST", URL, json=body(**fields) | {"stream": True}) as response:
        assert response.status_code == 200, await response.aread()
        assert response.headers["content-type"].startswith("text/event-stream")
        async for line in response.aiter_lines():
            if line:
                assert line.startswith("data: ")
                frames.append(line[6:])
    assert frames.pop() == "[DONE]"
    return [json.loads(frame) for frame in frames]


def text_of(frames: list[dict], index: int = 0) -> str:
    choices = [choice for frame in frames for choice in frame["choices"] if choice["index"] == index]
    return "".join(choice["delta"].get("content") or "" for choice in choices)


@in_world()
async def test_a_whole_answer_has_openais_shape(world: World) -> None:
    async with world.http(await world.key("ana")) as http:
        answer = (await http.post(URL, json=body())).json()
    assert (answer["object"], answer["model"]) == ("chat.completion", "scripted")
    assert answer["choices"] == [
        {
            "index": 0,
            "message": {"role": "assistant", "content": "Paris", "refusal": None},
            "logprobs": None,
            "finish_reason": "stop",
            "stop_reason": None,
        }
    ]
    usage = answer["usage"]
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
    assert usage["prompt_tokens_details"] == {"cached_tokens": 0}


@pytest.mark.parametrize("n", [1, 2])
def test_a10_usage_comes_once_after_the_last_finish_and_equals_the_whole_answers(tmp_path, n: int) -> None:
    @in_world()
    async def scene(world: World) -> None:
        async with world.http(await world.key("ana")) as http:
            asked = {"n": n, "stop": ["ris"], "seed": 1}
            frames = await stream(http, **asked, stream_options={"include_usage": True})
            *others, last = frames
            assert last["choices"] == []
            assert [frame["usage"] for frame in others] == [None] * len(others)
            reasons = [choice["finish_reason"] for frame in others for choice in frame["choices"]]
            assert [r for r in reasons if r] == ["stop"] * n
            assert others[-1]["choices"][0]["finish_reason"] == "stop"
            whole = (await http.post(URL, json=body(**asked))).json()
            assert [text_of(frames, i) for i in range(n)] == ["Pa"] * n
            assert [c["message"]["content"] for c in whole["choices"]] == ["Pa"] * n
            same = ("prompt_tokens", "completion_tokens", "total_tokens")
            assert [last["usage"][k] for k in same] == [whole["usage"][k] for k in same]
            one = (await http.post(URL, json=body(**asked | {"n": 1}))).json()["usage"]
            assert one["completion_tokens"] == len("Paris"), "the tokens of the stop string were computed, too"
            assert whole["usage"]["prompt_tokens"] == one["prompt_tokens"]
            assert whole["usage"]["completion_tokens"] == n * one["completion_tokens"]
            silent = await stream(http, **asked)
            assert not [frame for frame in silent if "usage" in frame]
            assert all(len(frame["choices"]) == 1 for frame in silent)

    scene(tmp_path)


@in_world()
async def test_a10_a_cache_hit_is_counted_in_the_prompt_and_shown_apart(world: World) -> None:
    async with world.http(await world.key("ana")) as http:
        long = "say " + "x" * 200
        cold = (await http.post(URL, json=body(long, max_tokens=1))).json()["usage"]
        warm = (await http.post(URL, json=body(long, max_tokens=1))).json()["usage"]
    assert cold["prompt_tokens"] == warm["prompt_tokens"]
    assert cold["prompt_tokens_details"]["cached_tokens"] == 0
    assert warm["prompt_tokens_details"]["cached_tokens"] == (warm["prompt_tokens"] - 1) // 16 * 16
    assert warm["total_tokens"] == warm["prompt_tokens"] + 1


@pytest.mark.parametrize(
    ("answer", "stop", "text", "reason"),
    [
        ("DEFGHIJ", ["DEFGHIJ"], "", "DEFGHIJ"),
        ("Hi\nUser: more", ["\nUser:"], "Hi", "\nUser:"),
        ("aaab", ["aab"], "a", "aab"),
        ("I am", ["\n\n###"], "I am", None),
        ("ONE TWO THREE", ["THREE\nXXXX"], "ONE TWO THREE", None),
        ("?\n", ["\n"], "?", "\n"),
        ("one two", ["two", "one"], "", "one"),
    ],
)
def test_a03_a04_stop_strings_cut_the_stream_and_the_whole_alike(tmp_path, answer, stop, text, reason) -> None:
    @in_world(lambda question: answer)
    async def scene(world: World) -> None:
        async with world.http(await world.key("ana")) as http:
            frames = await stream(http, stop=stop)
            whole = (await http.post(URL, json=body(stop=stop))).json()["choices"][0]
            assert text_of(frames) == whole["message"]["content"] == text
            end = frames[-1]["choices"][0]
            assert (end["finish_reason"], end["stop_reason"]) == ("stop", reason)
            assert (whole["finish_reason"], whole["stop_reason"]) == ("stop", reason)

    scene(tmp_path)


@in_world()
async def test_a03_of_a_text_that_is_no_stop_string_nothing_is_withheld(world: World) -> None:
    async with world.http(await world.key("ana")) as http:
        frames = await stream(http, text="say I am", stop=["\n\n###"])
        pieces = [c["delta"]["content"] for f in frames for c in f["choices"] if c["delta"].get("content")]
        assert pieces == list("I am")
        cut = await stream(http, text="say ONE TWO THREE", stop=["THREE\nXXXX"], max_tokens=10)
        assert (text_of(cut), cut[-1]["choices"][0]["finish_reason"]) == ("ONE TWO TH", "length")


@in_world(max_context=64)
async def test_c07_max_tokens_and_the_context_have_one_rule(world: World) -> None:
    async with world.http(await world.key("ana")) as http:
        prompt = (await http.post(URL, json=body("say", max_tokens=1))).json()["usage"]["prompt_tokens"]
        room = 64 - prompt

        async def ask(text: str, **fields: object) -> httpx.Response:
            return await http.post(URL, json=body(text, ignore_eos=True, **fields))

        fill = 63 - prompt
        last = (await ask("say" + "x" * fill)).json()
        assert (last["usage"]["completion_tokens"], last["choices"][0]["finish_reason"]) == (1, "length")
        for more in (1, 2):
            refused = await ask("say" + "x" * (fill + more))
            assert refused.status_code == 400
            error = refused.json()["error"]
            assert error["code"] == "context_length_exceeded"
            assert re.search(rf"\b{63 + more}\b.*\b63\b", error["message"]), "its length and the limit"
        for tokens in (room, room + 1, 10**9):
            answer = (await ask("say", max_tokens=tokens)).json()
            assert (answer["usage"]["completion_tokens"], answer["choices"][0]["finish_reason"]) == (room, "length")
        for name in ("max_tokens", "max_completion_tokens"):
            for wrong in (0, -1, 1.5, "5", True):
                refused = await ask("say", **{name: wrong})
                assert (refused.status_code, refused.json()["error"]["param"]) == (400, name)
        assert (await ask("say", max_completion_tokens=3)).json()["usage"]["completion_tokens"] == 3
        assert world.engine.stats().state == "idle"


@in_world(num_blocks=12, max_context=1000)
async def test_d07_what_the_memory_can_never_hold_is_refused_and_the_next_one_answered(world: World) -> None:
    """The limit that people are told is the one that holds: 12 blocks, and a last token that is never computed."""
    async with world.http(await world.key("ana")) as ana, world.http(await world.key("bob")) as bob:
        assert (await ana.get("/v1/models")).json()["data"][0]["max_context"] == 193
        short = (await ana.post(URL, json=body("", max_tokens=1))).json()["usage"]["prompt_tokens"]
        for tokens, status in ((191, 200), (192, 200), (193, 400), (97_000, 400)):
            answer = await ana.post(URL, json=body("x" * (tokens - short)))
            assert answer.status_code == status, tokens
            if status == 200:
                assert answer.json()["choices"][0]["finish_reason"] == "length"
                continue
            error = answer.json()["error"]
            assert error["code"] == "context_length_exceeded"
            assert "192" in error["message"]
            assert not world.engine._open
            answer = (await bob.post(URL, json=body("say hi"))).json()["choices"][0]
            assert (answer["message"]["content"], answer["finish_reason"]) == ("hi", "stop")


def test_d07_a_context_that_the_memory_cannot_hold_is_said_at_the_start(caplog: pytest.LogCaptureFixture) -> None:
    assert scripted_engine(num_blocks=12, max_context=193).max_context == 193
    assert caplog.messages == []
    assert scripted_engine(num_blocks=12, max_context=194).max_context == 193
    assert caplog.messages == ["KV memory holds 193 tokens of a context of 194"]


@in_world()
async def test_the_sampling_extras_work(world: World) -> None:
    async with world.http(await world.key("ana")) as http:
        more = {"top_k": 5, "min_p": 0.1, "top_p": 0.9, "seed": 7, "temperature": 0.5}
        assert (await http.post(URL, json=body(**more))).json()["choices"][0]["message"]["content"] == "Paris"
        endless = (await http.post(URL, json=body(ignore_eos=True, max_tokens=20))).json()
        assert endless["usage"]["completion_tokens"] == 20
        least = (await http.post(URL, json=body(min_tokens=9, max_tokens=30))).json()
        assert least["usage"]["completion_tokens"] >= 9
        letter = world.runner.tokenizer.encode("i").ids[0]
        stopped = (await http.post(URL, json=body(stop_token_ids=[letter]))).json()["choices"][0]
        assert (stopped["message"]["content"], stopped["stop_reason"]) == ("Par", letter)


@in_world()
async def test_d04_two_accounts_and_the_users_of_a_service_key_share_no_cache(world: World) -> None:
    text = "say " + "the quick brown fox jumps over the lazy dog. " * 12

    async def cached(name: str, *, service: bool = False, **fields: object) -> int:
        async with world.http(await world.key(name, service=service)) as http:
            answer = await http.post(URL, json=body(text, max_tokens=1, **fields))
            return answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"]

    assert await cached("ana") == 0
    assert await cached("ana", user="anything") >= 480, "a person's `user` changes nothing"
    assert await cached("bob") == 0
    assert await cached("bob", user=world.users["ana"]) >= 480
    for user in ("one", "two", world.users["ana"]):
        assert await cached("bob", service=True, user=user) == 0
        assert await cached("bob", service=True, user=user) >= 480
