"""Temporary conversations (`store: false`): like any other for their user, in memory alone, and gone in time."""
import asyncio

from world import Run, World, in_world

SECRET = "the heron builds at dusk"
LOOK_NEVER = {"temporary_s": 10_000.0}


def files_that_hold(world: World, text: str) -> list[str]:
    """Of the data folder: the database, its log, everything."""
    files = [path for path in world.database.path.parent.rglob("*") if path.is_file()]
    assert [path.name for path in files if path.name.startswith("hamdam.db")]
    return [path.name for path in files if text.encode() in path.read_bytes()]


def question(text: str) -> list:
    return [{"type": "message", "role": "user", "content": [{"type": "input_text", "text": text}]}]


@in_world()
async def test_nothing_of_it_is_written_to_the_disk(world: World) -> None:
    key = await world.key("ana")
    async with world.client(key) as ana, world.http(key) as http:
        kept = await ana.ask("say a stored sparrow")
        run = await ana.ask(f"say {SECRET}", store=False, instructions=f"Think of {SECRET}.")
        assert run.text == SECRET
        assert (await ana.ask(f"say {SECRET}", conversation_id=run.conversation)).text == SECRET
        await http.patch(f"/api/conversations/{run.conversation}", json={"title": SECRET})
        await world.turns.save()
        assert files_that_hold(world, SECRET) == []
        assert files_that_hold(world, run.conversation) == []
        assert files_that_hold(world, "stored sparrow"), "or this test looks in the wrong place"
        listed = (await http.get("/api/conversations")).json()["data"]
        assert [one["id"] for one in listed] == [kept.conversation]


@in_world()
async def test_it_is_a_tree_like_any_other(world: World) -> None:
    key = await world.key("ana")
    async with world.client(key) as ana, world.http(key) as http:
        first = await ana.ask("say a long enough answer to fill some blocks of the cache", store=False)
        assert first.before[0]["conversation"]["temporary"] is True
        where = {"conversation_id": first.conversation}
        second = await ana.ask("say two", **where)
        cached = second.end["usage"]["input_tokens_details"]["cached_tokens"]
        assert cached >= first.end["usage"]["total_tokens"] - 16
        branch = await ana.ask("say three", **where, parent_id=first.item, store=False)
        again = await ana.ask(**where)
        assert again.text == "three"
        cut = await ana.ask("say one two three", **where, sampling={"max_tokens": 3})
        rest = await ana.ask(**{"continue": cut.item})
        assert (rest.conversation, rest.item) == (first.conversation, cut.item)
        found = (await http.get(f"/api/conversations/{first.conversation}")).json()
        assert (found["conversation"]["temporary"], found["conversation"]["active_leaf_id"]) == (True, cut.item)
        items = {item["id"]: item for item in found["items"]}
        assert items[cut.item]["text"] == "one two three"
        assert items[branch.item]["parent_id"] == items[again.item]["parent_id"]
        assert items[items[branch.item]["parent_id"]]["parent_id"] == first.item


@in_world(gate=True)
async def test_several_sockets_watch_resume_and_cancel_it(world: World) -> None:
    key = await world.key("ana")
    async with world.client(key) as one, world.client(key) as other:
        run = await one.start("count 100", store=False)
        busy = await one.refused(
            type="response.create", client_id="b", conversation_id=run.conversation, input=question("say x")
        )
        assert (busy["code"], busy["response_id"]) == ("conversation_busy", run.id)
        world.pass_steps(20)
        while not run.text:
            await run.more()
        told = await other.subscribe(run, seen=1)
        assert [state["response_id"] for state in told["runs"]] == [run.id]
        watched = Run(other, seen=1)
        other.runs[run.id] = watched
        await other.send(type="response.cancel", response_id=run.id)
        await other.send(type="ping", t=1)
        await other.until("pong")
        world.open_gate()
        await asyncio.gather(run.finish(), watched.follow(run.id))
        assert run.end["type"] == watched.end["type"] == "response.cancelled"
        assert watched.text == run.text
        again = await one.start("ignored", client_id=run.client_id, store=False)
        assert again.id == run.id, "sent again it creates nothing"


@in_world(limits={"replay_s": 0.0})
async def test_an_ended_run_is_told_again_from_memory_alone(world: World) -> None:
    key = await world.key("ana")
    async with world.client(key) as one:
        run = await one.ask("say Paris", store=False)
        await world.until(lambda: world.turns.find(world.users["ana"], response_id=run.id) is None)
        async with world.client(key) as other:
            await other.subscribe(run, seen=2)
            late = await Run(other).follow(run.id)
        assert (late.text, late.end["type"]) == ("Paris", "response.completed")


@in_world()
async def test_for_others_it_is_not_there(world: World) -> None:
    ana_key, bob_key = await world.key("ana"), await world.key("bob")
    async with world.client(ana_key) as ana, world.client(bob_key) as bob, world.http(bob_key) as http:
        run = await ana.ask(f"say {SECRET}", store=False)
        own = await bob.ask("say mine", store=False)
        path = f"/api/conversations/{run.conversation}"
        for said in (await http.get(path), await http.patch(path, json={"title": "x"}), await http.delete(path)):
            assert (said.status_code, said.json()["error"]["code"]) == (404, "conversation_not_found")
        asked = {"type": "response.create", "client_id": "x", "input": question("say x")}
        named = {"conversation_id": run.conversation}
        assert (await bob.refused(**asked, **named))["code"] == "conversation_not_found"
        assert (await bob.refused(type="conversation.subscribe", **named))["code"] == "conversation_not_found"
        assert (await bob.refused(type="response.cancel", response_id=run.id))["code"] == "response_not_found"
        borrowed = {"conversation_id": own.conversation, "parent_id": run.item}
        assert (await bob.refused(**asked, **borrowed))["code"] == "parent_not_found"
        goes_on = await bob.refused(type="response.create", client_id="y", **{"continue": run.item})
        assert goes_on["code"] == "parent_not_found"
        assert (await ana.ask("say still here", **named)).text == "still here"


@in_world()
async def test_a_conversation_stays_as_it_was_begun(world: World) -> None:
    async with world.client(await world.key("ana")) as ana:
        stored, temporary = await ana.ask("say one"), await ana.ask("say two", store=False)
        for run, store in ((stored, False), (temporary, True)):
            asked = {"conversation_id": run.conversation, "input": question("say x"), "store": store}
            refused = await ana.refused(type="response.create", client_id="x", **asked)
            assert (refused["code"], refused["param"]) == ("invalid_field", "store")
            run = await ana.ask("say x", conversation_id=run.conversation, store=not store)
            assert run.text == "x"


@in_world(limits=LOOK_NEVER)
async def test_deleted_it_is_gone_with_its_rows_and_blocks(world: World) -> None:
    key = await world.key("ana")
    async with world.client(key) as ana, world.http(key) as http:
        run = await ana.ask(f"say {SECRET}", store=False)
        assert (await http.delete(f"/api/conversations/{run.conversation}")).status_code == 204
        assert (await ana.until("conversation.deleted"))["conversation_id"] == run.conversation
        assert (await http.get(f"/api/conversations/{run.conversation}")).status_code == 404
        assert await rows_in_memory(world) == (0, 0)
        await world.until(lambda: world.engine.stats().sessions == 0)


@in_world(limits=LOOK_NEVER)
async def test_it_goes_when_nobody_has_watched_it_for_a_while(world: World) -> None:
    key = await world.key("ana")
    async with world.client(key) as ana, world.http(key) as http:
        run = await ana.ask("say one", store=False)
        kept, path = temporary(world), f"/api/conversations/{run.conversation}"
        start = asyncio.get_running_loop().time()
        kept.look(start + 20_000)
        assert (await http.get(path)).status_code == 200, "it is watched"
        await ana.send(type="conversation.unsubscribe", conversation_id=run.conversation)
        await ana.send(type="ping", t=1)
        await ana.until("pong")
        kept.look(start + 29_000)
        assert (await http.get(path)).status_code == 200, "not for long enough"
        kept.look(start + 30_001)
        assert (await ana.until("conversation.deleted"))["conversation_id"] == run.conversation
        assert (await http.get(path)).status_code == 404
        assert await rows_in_memory(world) == (0, 0)


@in_world(limits={"temporary_s": 0.02})
async def test_it_goes_by_itself(world: World) -> None:
    async with world.client(await world.key("ana")) as ana:
        await ana.ask("say one", store=False)
    await world.until(lambda: not world.turns.shelves.temporary_of(world.users["ana"]))
    await world.until(lambda: temporary(world)._timer is None)


@in_world(limits=LOOK_NEVER | {"temporary_per_user": 2}, gate=True)
async def test_one_too_many_takes_the_place_of_the_one_unused_for_longest(world: World) -> None:
    key = await world.key("ana")
    async with world.client(key) as ana:
        runs = [await ana.start("say one", store=False), await ana.start("say two", store=False)]
        asked = {"client_id": "x", "conversation": {}, "input": question("say x"), "store": False}
        assert (await ana.refused(type="response.create", **asked))["code"] == "quota_exceeded", "both run"
        world.open_gate()
        for run in runs:
            await run.finish()
        await world.until(lambda: not world.turns.runs(runs[0].conversation))
        third = await ana.ask("say three", store=False)
        await world.until(lambda: len(world.turns.shelves.temporary_of(world.users["ana"])) == 2)
        assert world.turns.shelves.temporary_of(world.users["ana"]) == [runs[1].conversation, third.conversation]


@in_world(limits=LOOK_NEVER | {"temporary_per_user": 1})
async def test_one_that_could_not_be_deleted_is_still_counted_and_goes_later(world: World) -> None:
    async with world.client(await world.key("ana")) as ana:
        run = await ana.ask("say one", store=False)
        await ana.send(type="conversation.unsubscribe", conversation_id=run.conversation)
        kept, late = temporary(world), asyncio.get_running_loop().time() + 20_000
        await world.until(lambda: not any(world.turns.audience.watching(run.conversation)))
        kept.look(late)
        world.turns.reserve(run.conversation, "resp_another")  # a run that begins in the same moment
        await world.until(lambda: run.conversation in kept._kept)
        asked = {"client_id": "x", "conversation": {}, "input": question("say x"), "store": False}
        assert (await ana.refused(type="response.create", **asked))["code"] == "quota_exceeded"
        world.turns.release(run.conversation)
        kept.look(late)
        assert (await ana.until("conversation.deleted"))["conversation_id"] == run.conversation
        assert await rows_in_memory(world) == (0, 0)


@in_world(limits=LOOK_NEVER)
async def test_it_goes_with_its_users_account(world: World) -> None:
    async with world.client(await world.key("ana")) as ana, world.client(await world.key("bob")) as bob:
        await ana.ask(f"say {SECRET}", store=False)
        kept = await bob.ask("say mine", store=False)
        await world.house.accounts.delete("ana")
        await world.until(lambda: not world.turns.shelves.temporary_of(world.users["ana"]))
        assert await rows_in_memory(world) == (1, 2)
        assert (await bob.ask("say still here", conversation_id=kept.conversation)).text == "still here"


@in_world()
async def test_a_refused_question_leaves_no_conversation(world: World) -> None:
    async with world.client(await world.key("ana")) as ana:
        asked = {"client_id": "x", "conversation": {}, "input": question("x" * 20_000), "store": False}
        assert (await ana.refused(type="response.create", **asked))["code"] == "context_length_exceeded"
        assert world.turns.shelves.temporary_of(world.users["ana"]) == []


def temporary(world: World):
    """What holds the clock of temporary conversations, deep in the gateway."""
    (gateway,) = [route.endpoint.__self__ for route in world.app.routes if route.name == "gateway"]
    return gateway.commands.asking.temporary


async def rows_in_memory(world: World) -> tuple[int, int]:
    async with world.turns.shelves.memory.read() as sql:
        count = "SELECT (SELECT count(*) FROM conversations), (SELECT count(*) FROM messages)"
        return tuple((await (await sql.connection()).exec_driver_sql(count)).one())
