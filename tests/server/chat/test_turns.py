"""Turns: an end is stored before it is said, what could not be stored is kept, and what runs is saved together."""
import asyncio

import pytest
from sqlalchemy import event, select
from world import Run, World, in_world

from hamdam.server.chat.place import unpack_ids
from hamdam.server.chat.turns import Turns
from hamdam.server.errors import ApiError
from hamdam.server.storage.errors import StorageFull
from hamdam.server.storage.tables import Message


async def row_of(world: World, item_id: str) -> Message:
    async with world.database.read() as sql:
        return (await sql.scalars(select(Message).where(Message.id == item_id))).one()


class FullDisk:
    """`finish` finds no room until there is some."""

    def __init__(self, turns: Turns) -> None:
        self.finish, self.full, turns.saving.finish = turns.saving.finish, True, self

    async def __call__(self, written):
        if self.full:
            raise StorageFull("the disk is full")
        return await self.finish(written)


@in_world()
async def test_the_end_is_in_the_database_before_it_is_said(world: World) -> None:
    async with world.client(await world.key("ana")) as ana:
        run = await ana.ask("say Paris")
    row = await row_of(world, run.item)
    assert (row.status, row.text, row.last_sequence, row.finish_reason) == ("completed", "Paris", run.seen, "stop")
    assert row.usage == run.end["usage"]
    assert row.timings == run.end["timings"]
    assert row.ids_fingerprint == world.engine.ids_fingerprint
    assert world.runner.tokenizer.decode(list(unpack_ids(row.token_ids))) == "Paris"


@in_world()
async def test_an_end_that_cannot_be_stored_says_so_and_is_stored_later(world: World) -> None:
    disk = FullDisk(world.turns)
    key = await world.key("ana")
    async with world.client(key) as ana, world.http(key) as http:
        run = await ana.ask("say Paris")
        assert (run.end["type"], run.end["saved"], run.end["error"]["code"]) == ("response.failed", False, "internal")
        items = (await http.get(f"/api/conversations/{run.conversation}")).json()["items"]
        assert (items[-1]["text"], items[-1]["status"]) == ("Paris", "failed")
        follow_up = await ana.ask("and now?", conversation_id=run.conversation)
        first = run.end["usage"]["total_tokens"]
        assert follow_up.end["usage"]["input_tokens"] > first, "the text in memory is part of the next prompt"
        disk.full = False
        await world.turns.save()
        row = await row_of(world, run.item)
        assert (row.status, row.text, row.last_sequence) == ("completed", "Paris", run.seen)
        items = (await http.get(f"/api/conversations/{run.conversation}")).json()["items"]
        assert [i["status"] for i in items] == ["completed"] * 4


@in_world()
async def test_a_question_that_cannot_be_stored_is_refused_and_takes_no_place(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def full(run):
        raise StorageFull("the disk is full")

    async with world.client(await world.key("ana")) as ana:
        first = await ana.ask("say one")
        with monkeypatch.context() as patch:
            patch.setattr(world.turns.saving, "begin", full)
            asked = {"type": "response.create", "conversation_id": first.conversation, "input": question("say two")}
            assert (await ana.refused(**asked, client_id="c"))["code"] == "internal"
        assert not world.engine._open
        assert (await ana.ask("say two", conversation_id=first.conversation, client_id="c")).text == "two"


@in_world(gate=True)
async def test_running_texts_are_saved_in_one_transaction(world: World) -> None:
    key = await world.key("ana", service=True)
    async with world.client(key) as ana:
        runs = [await ana.start(f"say answer number {i}") for i in range(3)]
        world.pass_steps(4)
        turns = [world.turns.find(world.users["ana"], response_id=run.id) for run in runs]
        await world.until(lambda: all(len(turn.text) >= 2 for turn in turns))
        begun: list[str] = []
        begin = lambda connection: begun.append("begin")  # noqa: E731
        event.listen(world.database._writer.sync_engine, "begin", begin)
        await world.turns.save()
        assert begun == ["begin"]
        for run, turn in zip(runs, turns, strict=True):
            row = await row_of(world, run.item)
            assert (row.text, row.status, row.last_sequence) == (turn.text, "in_progress", len(turn.numbered))
        await world.turns.save()
        assert begun == ["begin"], "nothing new, nothing written"
        event.remove(world.database._writer.sync_engine, "begin", begin)
        world.open_gate()
        for run in runs:
            await world.turns.find(world.users["ana"], response_id=run.id).ended.wait()


@in_world(gate=True)
async def test_d09_one_run_a_conversation_at_a_time(world: World) -> None:
    async with world.client(await world.key("ana")) as ana:
        run = await ana.start("say one")
        error = await ana.refused(type="response.create", client_id="other", conversation_id=run.conversation)
        assert (error["code"], error["response_id"]) == ("conversation_busy", run.id)
        world.open_gate()
        await run.finish()
        assert (await ana.ask("say two", conversation_id=run.conversation)).text == "two"


@in_world(limits={"replay_s": 0.0})
async def test_an_ended_run_is_forgotten_and_then_replayed_from_the_database(world: World) -> None:
    async with world.client(await world.key("ana")) as ana:
        run = await ana.ask("say Paris")
        await world.until(lambda: world.turns.find(world.users["ana"], response_id=run.id) is None)
        told = await ana.subscribe(run, seen=3)
        assert told["runs"] == [
            {"response_id": run.id, "item_id": run.item, "status": "completed", "sequence_number": run.seen}
        ]
        late = await Run(ana).follow(run.id)
        assert (late.text, late.seen, late.end) == ("Paris", run.seen, run.end)
        assert [e["type"] for e in late.events] == ["response.snapshot", "response.completed"]
        await ana.send(type="response.cancel", response_id=run.id)
        assert await ana.until("response.completed", response_id=run.id) == run.end


@in_world()
async def test_a_broken_turn_still_ends_once(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    from hamdam.server.chat import turn

    def broken(self, event, now):
        raise ValueError("a fault of ours")

    monkeypatch.setattr(turn.Turn, "_grow", broken)
    async with world.client(await world.key("ana")) as ana:
        run = await ana.ask("say Paris")
        assert run.end["type"] == "response.failed"
        assert "fault" not in str(run.end), "what broke is for the log"
        assert (await row_of(world, run.item)).status == "failed"
        await world.until(lambda: not world.engine._open)


@in_world()
async def test_a_sequence_that_breaks_fails_alone(world: World) -> None:
    async with world.client(await world.key("ana")) as ana:
        world.runner.broken.add(world.engine._next_id + 1)
        assert (await ana.ask("say one")).end["type"] == "response.failed"
        assert (await ana.ask("say two")).text == "two"


@in_world(gate=True)
async def test_when_the_server_goes_down_runs_end_as_interrupted_and_can_go_on(world: World) -> None:
    async with world.client(await world.key("ana")) as ana:
        run = await ana.start("say Paris")
        world.pass_steps(3)
        await world.until(lambda: len(world.turns.find(world.users["ana"], response_id=run.id).text) >= 2)
        closing = asyncio.create_task(world.turns.close())
        await run.finish()
        await closing
        assert [e["reconnect_after_ms"] for e in ana.log if e["type"] == "server.draining"] == [2000]
        assert run.end["type"] == "response.interrupted"
        row = await row_of(world, run.item)
        assert (row.status, row.text) == ("interrupted", run.text)
        error = await ana.refused(type="response.create", client_id="late", conversation={}, input=question("say no"))
        assert error["code"] == "draining"
        with pytest.raises(ApiError, match="restarts"):
            world.turns.reserve("conv", "resp")


def question(text: str) -> list:
    return [{"type": "message", "role": "user", "content": [{"type": "input_text", "text": text}]}]


@in_world()
async def test_a_dead_engine_fails_its_runs_and_refuses_new_ones(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    def die(batch):
        raise MemoryError("no more")

    async with world.client(await world.key("ana")) as ana:
        monkeypatch.setattr(world.runner, "run", die)
        run = await ana.ask("say one")
        assert (run.end["type"], run.end["error"]["code"]) == ("response.failed", "engine_unavailable")
        error = await ana.refused(type="response.create", client_id="next", conversation={}, input=question("say two"))
        assert error["code"] == "engine_unavailable"
