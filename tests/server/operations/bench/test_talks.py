"""Talks: users × turns against a whole server with the scripted engine, counted to the token; and what goes wrong."""
import asyncio
from dataclasses import replace

from fake_peer import FakePeer
from world import World, in_world

from hamdam.server.operations.bench.chat import take_turns
from hamdam.server.operations.bench.progress import Progress
from hamdam.server.operations.bench.traffic.chat_run import ChatRun, chat_run
from hamdam.server.operations.bench.traffic.door import Door, open_door
from hamdam.server.operations.bench.traffic.load import Load
from hamdam.server.operations.bench.traffic.talks import Talks

LOAD = Load(users=3, turns=2, max_tokens=8, system_repeat=2, ignore_eos=True)


async def door(world: World, *, service: bool = True) -> Door:
    return Door(f"http://127.0.0.1:{world.port}", "default", await world.key("ana", service=service))


async def run(door: Door, load: Load = LOAD, salt: str = "salt") -> tuple[Talks, ChatRun]:
    talks = Talks(door, load, salt)
    await talks.run(lambda answered: None)
    return talks, chat_run(talks)


@in_world()
async def test_every_user_asks_every_turn_and_every_token_is_counted(world: World) -> None:
    talks, found = await run(await door(world))
    assert (found.answers, found.failed, found.errors) == (6, 0, ())
    assert found.is_whole(LOAD)
    assert found.output_tokens == 6 * 8
    assert [(turn.turn, turn.ttft_ms.count) for turn in found.turns] == [(1, 3), (2, 3)]
    assert found.seconds > 0
    assert found.output_rate == found.output_tokens / found.seconds
    pieces = sum(len(answered.streamed.pieces) for answered in talks.answered)
    assert found.itl_ms is not None
    assert found.itl_ms.count == pieces - 6


@in_world()
async def test_a_user_sends_the_whole_talk_and_the_second_turn_finds_the_first_in_the_cache(world: World) -> None:
    one = Load(users=1, turns=2, max_tokens=8, system_repeat=2, ignore_eos=True)
    _, found = await run(await door(world), one)
    first, second = found.turns
    answer, header = 8, len("\x01user\n") + len("\x02\n") + len("\x01assistant\n")  # an added token is one
    assert second.prompt_tokens == first.prompt_tokens + answer + len("\x02\n") + header + len(one.question(0, 1))
    assert first.cached_tokens == 0
    assert second.cached_tokens == (first.prompt_tokens + answer - 1) // 16 * 16, "all full blocks of what was computed"
    assert found.cached_share == second.cached_tokens / (first.prompt_tokens + second.prompt_tokens)


@in_world()
async def test_another_run_finds_nothing_of_the_one_before(world: World) -> None:
    place = await door(world)
    one = Load(users=1, turns=1, max_tokens=8, system_repeat=2)
    assert [(await run(place, one, salt))[1].cached_tokens for salt in ("a", "b", "c")] == [0, 0, 0]


@in_world()
async def test_a_refused_question_is_counted_and_ends_that_talk(world: World) -> None:
    place = await door(world)
    _, found = await run(Door(place.url, "no-such-model", place.key))
    assert (found.answers, found.failed) == (0, 3)
    assert "status 404" in found.errors[0]
    assert (found.turns, found.itl_ms, found.output_rate, found.cached_share) == ((), None, 0.0, 0.0)
    assert next(found.figures()).value == 0.0


@in_world()
async def test_an_answer_that_fails_in_the_middle_is_no_answer(world: World) -> None:
    world.runner.broken.update(range(1, 100))
    _, found = await run(await door(world))
    assert (found.answers, found.failed) == (0, 3)
    assert "the answer failed" in found.errors[0]


def test_an_answer_of_another_length_than_was_asked_for_is_an_error() -> None:
    talks = Talks(FakePeer(says=7), LOAD, "salt")
    asyncio.run(talks.run(lambda answered: None))
    assert (talks.answered, talks.errors) == ([], ["8 tokens were asked for, and 7 came"] * 3)
    shorter_may_be = Talks(FakePeer(says=7), replace(LOAD, ignore_eos=False), "salt")
    asyncio.run(shorter_may_be.run(lambda answered: None))
    assert chat_run(shorter_may_be).output_tokens == 6 * 7


def test_a_body_says_what_the_load_asks_and_greedy() -> None:
    peer = FakePeer()
    asyncio.run(Talks(peer, LOAD, "salt").run(lambda answered: None))
    first = peer.asked[0]
    assert first["ignore_eos"] is True
    assert (first["model"], first["max_tokens"], first["temperature"]) == ("theirs", 8, 0)
    assert first["stream_options"] == {"include_usage": True}
    assert [message["role"] for message in first["messages"]] == ["system", "user"]
    last = peer.asked[-1]["messages"]
    assert [message["role"] for message in last] == ["system", "user", "assistant", "user"]
    assert last[2]["content"] == "x" * 8


@in_world()
async def test_two_doors_take_turns_run_by_run(world: World) -> None:
    place = await door(world)
    runs: list[list[ChatRun]] = [[], []]
    await asyncio.to_thread(take_turns, LOAD, [place, place], runs, 3, Progress())
    assert [len(side) for side in runs] == [3, 3]
    assert all(run.is_whole(LOAD) and run.output_tokens == 48 for side in runs for run in side)
    cached = [[run.cached_tokens for run in side] for side in runs]
    assert all(theirs > ours for ours, theirs in zip(*cached, strict=True)), "a pair has one salt, each pair another"


@in_world()
async def test_the_model_is_the_first_that_a_server_lists(world: World) -> None:
    place = await door(world)
    found = await asyncio.to_thread(open_door, place.url + "/v1", key=place.key)
    assert (found.url, found.model) == (place.url, "scripted")
    assert place.key not in repr(found)
