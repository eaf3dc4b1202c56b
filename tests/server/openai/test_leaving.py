"""Whoever goes away, or may no longer be here, takes the work along; and nobody takes more places than they may."""
import asyncio
import json

from world import World, in_world, small_engine

URL = "/v1/chat/completions"


def body(text: object = "say Paris", **fields: object) -> dict:
    return {"model": "default", "messages": [{"role": "user", "content": text}], "temperature": 0} | fields


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
