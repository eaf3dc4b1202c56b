"""Resuming: reloads, second tabs, restarts. Whoever comes whenever sees every token once, and then the end."""
import asyncio
import sqlite3

from world import Run, World, in_world, running

TEXT = "".join(chr(ord("a") + i % 26) for i in range(200))


@in_world(gate=True, limits={"events_per_second": 100_000, "event_burst": 100_000})
async def test_g04_a_reload_at_every_token_shows_the_whole_answer(world: World) -> None:
    """(1) and (3): from every number a socket that went away may have seen, the rest comes without gap or repeat."""
    key = await world.key("ana", service=True)
    async with world.client(key) as ana, world.client(key) as tab:
        live = await ana.start(f"say {TEXT}")
        world.pass_steps(100)
        turn = world.turns.find(world.users["ana"], response_id=live.id)
        await world.until(lambda: len(turn.text) >= 90)
        half = len(turn.numbered)
        deltas = {e.sequence_number: e.delta for e in turn.numbered if hasattr(e, "delta")}
        followers = []
        for seen in range(half + 1):
            await tab.send(
                type="conversation.subscribe",
                conversation_id=live.conversation,
                after={"response_id": live.id, "sequence_number": seen},
            )
            await tab.until("conversation.subscribed")
            run = Run(tab, seen=seen, text="".join(text for number, text in deltas.items() if number <= seen))
            run.id = live.id
            tab.runs[live.id] = run
            while run.seen < half:
                await run.more()
            assert run.text == TEXT[: len(run.text)]
            followers.append(run)
        world.open_gate()
        await live.finish()
        await followers[-1].finish()
        assert live.text == followers[-1].text == TEXT
        assert followers[-1].end == live.end
        for seen in range(half, live.seen):  # and for who was away until after the end
            await tab.subscribe(live, seen=seen)
            text = "".join(e.delta for e in turn.numbered[:seen] if hasattr(e, "delta"))
            back = await Run(tab, seen=seen, text=text).follow(live.id)
            assert (back.text, back.end) == (TEXT, live.end)


@in_world(gate=True)
async def test_g04_coming_back_to_a_chat_shows_what_there_is_and_follows(world: World) -> None:
    """(2): another chat in between; the view is a snapshot with its number, then what is newer."""
    key = await world.key("ana", service=True)
    async with world.client(key) as ana:
        run = await ana.start("say one two three")
        await ana.send(type="conversation.unsubscribe", conversation_id=run.conversation)
        other = await ana.start("say something else")
        world.pass_steps(6)
        turn = world.turns.find(world.users["ana"], response_id=run.id)
        await world.until(lambda: turn.text.startswith("one"))
        told = await ana.subscribe(run)
        assert [r["response_id"] for r in told["runs"]] == [run.id]
        back = Run(ana)
        ana.runs[run.id] = back
        back.id = run.id
        first = await back.more()
        assert (first["type"], first["text"]) == ("response.snapshot", turn.text[: len(first["text"])])
        world.open_gate()
        await back.finish()
        await other.finish()
        assert (back.text, other.text) == ("one two three", "something else")


@in_world()
async def test_g04_a_second_tab_sees_what_the_first_one_asks_next(world: World) -> None:
    key = await world.key("ana")
    async with world.client(key) as ana, world.client(key) as tab:
        first = await ana.ask("say one")
        await tab.subscribe(first, seen=first.seen)
        assert (await tab.until("response.completed"))["sequence_number"] == first.seen, "an end is always given"
        second = await ana.ask("say two", conversation_id=first.conversation)
        created = await tab.until("response.created", response_id=second.id)
        seen = Run(tab)
        seen.take(created)
        assert (await seen.follow(second.id)).text == "two"
        assert seen.end == second.end


@in_world()
async def test_a_socket_that_follows_nothing_is_told_of_conversations_only(world: World) -> None:
    key = await world.key("ana")
    async with world.client(key) as ana, world.client(key) as tab, world.client(await world.key("bob")) as bob:
        run = await ana.ask("say one")
        seen = [(await tab.receive())["type"] for _ in range(4)]
        assert seen == ["conversation.created", *["conversation.item.added"] * 2, "conversation.updated"]
        assert not [e for e in tab.log if "in_reply_to" in e], "only the one who asked is answered"
        async with world.http(key) as http:
            await http.patch(f"/api/conversations/{run.conversation}", json={"title": "Numbers"})
            assert (await tab.until("conversation.updated"))["conversation"]["title"] == "Numbers"
            assert (await http.delete(f"/api/conversations/{run.conversation}")).status_code == 204
            await tab.until("conversation.deleted", conversation_id=run.conversation)
        await bob.send(type="ping")
        await bob.until("pong")
        assert [e["type"] for e in bob.log] == ["session.created", "pong"], "others hear nothing"


def test_g04_a_killed_server_leaves_the_question_and_an_interrupted_answer_that_goes_on(tmp_path) -> None:
    """(4) and (5): what was said to be safe is there; the run that was cut ends as interrupted for who comes back."""

    async def before() -> tuple[str, Run]:
        async with running(tmp_path, gate=True) as world:
            key = await world.key("ana")
            async with world.client(key) as ana:
                run = await ana.start("say one two three")
                world.pass_steps(8)
                turn = world.turns.find(world.users["ana"], response_id=run.id)
                await world.until(lambda: turn.text.startswith("one"))
                while not run.text:
                    await run.more()
                await world.turns.save()
                with sqlite3.connect(tmp_path / "hamdam.db") as now, sqlite3.connect(tmp_path / "killed.db") as copy:
                    now.backup(copy)  # the disk as a kill at this moment would leave it
            return key, run

    async def after(key: str, cut: Run) -> None:
        async with running(tmp_path / "again") as world, world.client(key) as ana:
            async with world.http(key) as http:
                items = (await http.get(f"/api/conversations/{cut.conversation}")).json()["items"]
            assert [(i["text"], i["status"]) for i in items] == [
                ("say one two three", "completed"),
                (items[1]["text"], "interrupted"),
            ]
            assert items[1]["text"].startswith("one")
            told = await ana.subscribe(cut, seen=cut.seen)
            assert told["runs"][0]["status"] == "interrupted"
            back = await Run(ana).follow(cut.id)
            assert (back.text, back.end["type"]) == (items[1]["text"], "response.interrupted")
            rest = await ana.ask(**{"continue": cut.item})
            assert items[1]["text"] + rest.text == "one two three"
            branch = await ana.ask("say new", conversation_id=cut.conversation, parent_id=items[0]["id"])
            assert branch.text == "new", "a stale parent is a branch, nothing is overwritten"
            async with world.http(key) as http:
                items = (await http.get(f"/api/conversations/{cut.conversation}")).json()["items"]
            assert [i["text"] for i in items] == ["say one two three", "one two three", "say new", "new"]

    key, cut = asyncio.run(before())
    (tmp_path / "again").mkdir()
    (tmp_path / "killed.db").rename(tmp_path / "again" / "hamdam.db")
    asyncio.run(after(key, cut))


@in_world()
async def test_g07_runs_and_conversations_of_others_are_not_found(world: World) -> None:
    async with world.client(await world.key("ana")) as ana, world.client(await world.key("bob")) as bob:
        run, own = await ana.ask("say one"), await bob.ask("say mine")
        nobody = "conv_00000000-0000-7000-8000-000000000000"
        for conversation in (run.conversation, nobody):
            error = await bob.refused(type="conversation.subscribe", conversation_id=conversation, event_id="same")
            assert error == {
                "type": "not_found_error", "code": "conversation_not_found", "event_id": "same",
                "message": "There is no such conversation.",
            }  # fmt: skip
            error = await bob.refused(type="response.create", client_id="x", conversation_id=conversation)
            assert error["code"] == "conversation_not_found"
        for response in (run.id, "resp_none"):
            after = {"response_id": response, "sequence_number": 1}
            error = await bob.refused(type="conversation.subscribe", conversation_id=own.conversation, after=after)
            assert error["code"] == "response_not_found"
            assert (await bob.refused(type="response.cancel", response_id=response))["code"] == "response_not_found"
        for message in (run.item, "msg_none"):
            error = await bob.refused(type="response.create", client_id="x", **{"continue": message})
            assert error["code"] == "parent_not_found"
            error = await bob.refused(
                type="response.create", client_id="x", conversation_id=own.conversation, parent_id=message
            )
            assert error["code"] == "parent_not_found"
        await bob.send(type="conversation.unsubscribe", conversation_id=run.conversation)
        assert (await ana.ask("say two", conversation_id=run.conversation)).text == "two"
