"""/v1/chat/completions over real HTTP: OpenAI's shapes, refusals by name, and clients that go away."""
import asyncio
import json

import httpx
import pytest
from world import World, in_world, small_engine

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
    assert warm["prompt_tokens_details"]["cached_tokens"] >= warm["prompt_tokens"] - 16


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
            assert str(63 + more) in error["message"]
        for tokens in (room, room + 1, 10**9):
            answer = (await ask("say", max_tokens=tokens)).json()
            assert (answer["usage"]["completion_tokens"], answer["choices"][0]["finish_reason"]) == (room, "length")
        for name in ("max_tokens", "max_completion_tokens"):
            for wrong in (0, -1, 1.5, "5", True):
                refused = await ask("say", **{name: wrong})
                assert (refused.status_code, refused.json()["error"]["param"]) == (400, name)
        assert (await ask("say", max_completion_tokens=3)).json()["usage"]["completion_tokens"] == 3
        assert world.engine.stats().state == "idle"


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
    "tools": [{"type": "function", "function": {"name": "f"}}],
    "tool_choice": "required",
    "functions": [{"name": "f"}],
    "response_format": {"type": "json_object"},
    "logprobs": True,
    "top_logprobs": 2,
    "logit_bias": {"5": -100},
    "presence_penalty": 0.5,
    "frequency_penalty": -1,
    "repetition_penalty": 1.1,
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
    "tools": [],
    "tool_choice": "auto",
    "parallel_tool_calls": True,
    "functions": [],
    "response_format": {"type": "text"},
    "logprobs": False,
    "top_logprobs": None,
    "logit_bias": {},
    "presence_penalty": 0,
    "frequency_penalty": 0.0,
    "repetition_penalty": 1.0,
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
        ):  # fmt: skip
            refused = await http.post(URL, content=content)
            assert (refused.status_code, refused.json()["error"]["code"]) == (400, code), content[:60]
        assert (await http.post(URL, content=b"x" * (9 << 20))).status_code == 413
        assert (await http.get(URL)).status_code == 405
        assert (await http.post(URL, json=body())).status_code == 200
    async with world.http() as nobody:
        assert (await nobody.post(URL, json=body())).status_code in (401, 403)


@in_world(gate=True)
async def test_g01_a_client_that_closes_its_stream_takes_its_work_along(world: World) -> None:
    async with world.http(await world.key("ana")) as http:
        async with http.stream("POST", URL, json=body(ignore_eos=True, max_tokens=5000, stream=True)) as response:
            world.pass_steps(4)
            lines = response.aiter_lines()
            for _ in range(3):
                await anext(lines)
        await gone(world)


@in_world(gate=True)
async def test_g01_a_client_that_drops_a_whole_request_takes_its_work_along(world: World) -> None:
    async with world.http(await world.key("ana")) as http:
        asking = asyncio.create_task(http.post(URL, json=body(ignore_eos=True, max_tokens=5000, n=2)))
        await world.until(lambda: len(world.engine._open) == 2)
        world.pass_steps(2)
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
        await gone(world)


@in_world(gate=True)
async def test_g01_a_client_that_goes_while_it_waits_leaves_the_queue(world: World) -> None:
    async with world.http(await world.key("ana")) as http:
        asking = asyncio.create_task(http.post(URL, json=body()))
        await world.until(lambda: world.engine._open)
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
        await world.until(lambda: not world.engine._open)
        assert world.runner.steps <= 1
        await gone(world)


async def gone(world: World) -> None:
    """The slot is free within two steps."""
    await world.until(lambda: not world.engine._open)
    at = world.runner.steps
    world.open_gate()
    await world.until(lambda: not world.engine.stats().running and world.engine.stats().state == "idle")
    assert world.runner.steps <= at + 2
    await world.until(lambda: not world.house.authenticator.watcher._watched)


@in_world(gate=True)
async def test_g18_a_revoked_key_ends_what_runs_on_it(world: World) -> None:
    key = await world.key("ana")
    async with world.http(key) as http:
        asking = asyncio.create_task(http.post(URL, json=body(ignore_eos=True, max_tokens=5000)))
        await world.until(lambda: world.engine._open)
        world.pass_steps(2)
        async with world.database.write() as sql:
            await (await sql.connection()).exec_driver_sql("DELETE FROM api_keys")
        answer = await asking
        assert (answer.status_code, answer.json()["error"]["code"]) == (401, "unauthorized")
        await gone(world)


@in_world()
async def test_a_broken_answer_is_an_error_in_the_stream_and_a_status_without(world: World) -> None:
    async with world.http(await world.key("ana")) as http:
        world.runner.broken.add(world.engine._next_id + 1)
        whole = await http.post(URL, json=body())
        assert (whole.status_code, whole.json()["error"]["type"]) == (500, "server_error")
        world.runner.broken.add(world.engine._next_id + 1)
        async with http.stream("POST", URL, json=body(stream=True)) as response:
            lines = [line async for line in response.aiter_lines() if line]
        assert json.loads(lines[-1][6:])["error"]["type"] == "server_error"
        assert "[DONE]" not in "".join(lines), "what failed does not look finished"


@in_world(gate=True)
async def test_who_asks_for_too_much_at_once_is_told_when_to_come_again(world: World) -> None:
    async with world.http(await world.key("ana")) as http, world.http(await world.key("ana", service=True)) as back_end:
        asking = asyncio.create_task(http.post(URL, json=body(n=6)))
        await world.until(lambda: len(world.engine._open) == 6)
        refused = await http.post(URL, json=body())
        assert (refused.status_code, refused.json()["error"]["code"]) == (429, "too_many_in_flight")
        assert int(refused.headers["retry-after"]) > 0
        more = asyncio.create_task(back_end.post(URL, json=body(n=3)))
        await world.until(lambda: len(world.engine._open) == 9)
        world.open_gate()
        assert [(await answer).status_code for answer in (asking, more)] == [200, 200]


@in_world(config=small_engine(max_running=1, max_queued=2), gate=True)
async def test_all_choices_or_none_take_a_place(world: World) -> None:
    async with world.http(await world.key("ana", service=True)) as http:
        refused = await http.post(URL, json=body(n=3))
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "queue_full")
        assert not world.engine._open
        assert world.engine.waiting == 0


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


@in_world()
async def test_g20_megabytes_are_read_off_the_event_loop(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    import threading

    from hamdam.server.openai import chat_completions

    threads: list[str] = []
    read = chat_completions.read_body

    def watched(*given):
        threads.append(threading.current_thread().name)
        return read(*given)

    monkeypatch.setattr(chat_completions, "read_body", watched)
    async with world.http(await world.key("ana")) as http:
        large = await http.post(URL, json=body("x" * (2 << 20)))
        assert (large.status_code, large.json()["error"]["code"]) == (400, "context_length_exceeded")
        await http.post(URL, json=body())
    assert threads[0] != threading.main_thread().name
    assert threads[1] == threading.main_thread().name
