"""Asking: one question from a tab to its answer, in every way the protocol has. Over a real socket."""
import asyncio
import threading

import pytest
from sqlalchemy import func, select
from world import Client, Run, World, in_world, small_engine

from hamdam.server.chat import asking
from hamdam.server.storage.tables import Message


def question(text: str) -> list:
    return [{"type": "message", "role": "user", "content": [{"type": "input_text", "text": text}]}]


async def items_of(world: World, key: str, conversation: str) -> list[dict]:
    async with world.http(key) as http:
        return (await http.get(f"/api/conversations/{conversation}")).json()["items"]


async def count_messages(world: World) -> int:
    async with world.database.read() as sql:
        return await sql.scalar(select(func.count()).select_from(Message))


@in_world()
async def test_a_talk_is_a_tree_and_its_next_turn_computes_only_what_is_new(world: World) -> None:
    key = await world.key("ana")
    async with world.client(key) as ana:
        first = await ana.ask("say a long enough answer to fill some blocks of the cache")
        second = await ana.ask("say two", conversation_id=first.conversation, parent_id=first.item)
    cached = second.end["usage"]["input_tokens_details"]["cached_tokens"]
    assert cached >= first.end["usage"]["total_tokens"] - 16
    items = await items_of(world, key, first.conversation)
    assert [(i["role"], i["text"]) for i in items] == [
        ("user", "say a long enough answer to fill some blocks of the cache"),
        ("assistant", "a long enough answer to fill some blocks of the cache"),
        ("user", "say two"),
        ("assistant", "two"),
    ]
    assert [i["parent_id"] for i in items] == [None, items[0]["id"], items[1]["id"], items[2]["id"]]


@in_world()
async def test_an_answer_is_saved_acknowledged_and_numbered_in_the_order_of_the_protocol(world: World) -> None:
    async with world.client(await world.key("ana")) as ana:
        run = await ana.ask("say Paris", client_id="c1")
    created, asked, answered, begun = run.before
    assert created["in_reply_to"] == asked["in_reply_to"] == answered["in_reply_to"] == "c1"
    assert (asked["item"]["text"], answered["item"]["status"]) == ("say Paris", "in_progress")
    assert (begun["sequence_number"], begun["item_id"]) == (1, answered["item"]["id"])
    numbered = [e["type"] for e in run.events if "sequence_number" in e]
    assert numbered[:2] == ["response.created", "response.in_progress"]
    assert numbered[-2:] == ["response.output_text.done", "response.completed"]
    assert set(numbered[2:-2]) == {"response.output_text.delta"}
    usage = run.end["usage"]
    assert usage["total_tokens"] == usage["input_tokens"] + usage["output_tokens"]
    assert set(run.end["timings"]) == {"queue_ms", "ttft_ms", "total_ms", "tps"}


@in_world(gate=True)
async def test_sending_the_same_client_id_again_creates_nothing(world: World) -> None:
    key = await world.key("ana")
    async with world.client(key) as ana, world.client(key) as tab:
        run = await ana.start("say Paris", client_id="same")
        world.pass_steps(3)
        await world.until(lambda: len(world.turns.find(world.users["ana"], client_id="same").text) >= 2)
        again = await tab.start("say Paris", client_id="same")
        assert [e["type"] for e in again.before if e.get("in_reply_to") == "same"] == ["conversation.item.added"] * 2
        world.open_gate()
        for seen in (run, again):
            await seen.finish()
        assert (again.id, again.conversation, again.item) == (run.id, run.conversation, run.item)
        assert run.text == again.text == "Paris"
        late = await (await ana.start("say Paris", client_id="same")).finish()
        assert (late.id, late.text, late.seen) == (run.id, "Paris", run.seen)
    assert await count_messages(world) == 2


@in_world(limits={"replay_s": 0.0})
async def test_a_client_id_is_known_when_its_run_is_only_in_the_database(world: World) -> None:
    async with world.client(await world.key("ana")) as ana:
        run = await ana.ask("say Paris", client_id="same")
        await world.until(lambda: world.turns.find(world.users["ana"], client_id="same") is None)
        again = await ana.start("say Paris", client_id="same")
        assert (again.id, again.conversation) == (run.id, run.conversation)
        await again.finish()
        assert (again.text, again.seen, again.end["usage"]) == ("Paris", run.seen, run.end["usage"])
    assert await count_messages(world) == 2


@in_world()
async def test_a_client_id_sent_many_times_at_once_creates_one_run(world: World) -> None:
    key = await world.key("ana", service=True)

    async def tab() -> Run:
        async with world.client(key) as client:
            return await (await client.start("say Paris", client_id="same")).finish()

    runs = await asyncio.gather(*(tab() for _ in range(6)))
    assert len({(run.id, run.conversation, run.text) for run in runs}) == 1
    assert await count_messages(world) == 2


@in_world()
async def test_the_client_ids_of_two_people_do_not_meet(world: World) -> None:
    async with world.client(await world.key("ana")) as ana, world.client(await world.key("bob")) as bob:
        assert (await ana.ask("say one", client_id="same")).text == "one"
        assert (await bob.ask("say two", client_id="same")).text == "two"


@in_world()
async def test_an_answer_can_be_written_again_and_a_question_edited_into_a_branch(world: World) -> None:
    key = await world.key("ana")
    async with world.client(key) as ana:
        first = await ana.ask("say one")
        again = await ana.ask(conversation_id=first.conversation)
        edited = await ana.ask("say uno", conversation_id=first.conversation, parent_id=None)
        items = {i["id"]: i for i in await items_of(world, key, first.conversation)}
        assert len(items) == 5
        assert items[again.item]["parent_id"] == items[first.item]["parent_id"]
        assert items[items[edited.item]["parent_id"]]["parent_id"] is None
        assert (again.text, edited.text) == ("one", "uno")
        async with world.http(key) as http:
            conversation = (await http.get(f"/api/conversations/{first.conversation}")).json()["conversation"]
            assert conversation["active_leaf_id"] == edited.item


@in_world()
async def test_an_answer_that_was_cut_goes_on_where_it_was_cut(world: World) -> None:
    key = await world.key("ana")
    async with world.client(key) as ana, world.client(key) as tab:
        cut = await ana.ask("say one two three", sampling={"max_tokens": 5})
        assert (cut.end["type"], cut.end["reason"], cut.text) == ("response.incomplete", "length", "one t")
        rest = await ana.start(**{"continue": cut.item}, client_id="more")
        updated = next(e for e in rest.before if e["type"] == "conversation.item.updated")
        assert (updated["item"]["id"], updated["item"]["text"]) == (cut.item, "one t")
        await rest.finish()
        assert (rest.item, cut.text + rest.text) == (cut.item, "one two three")
        assert rest.id != cut.id
        assert rest.end["usage"]["input_tokens_details"]["cached_tokens"] > 0
        items = await items_of(world, key, cut.conversation)
        assert [(i["text"], i["status"]) for i in items][1:] == [("one two three", "completed")]
        await tab.subscribe(rest, seen=0)  # a tab that has nothing of the answer gets all of it
        whole = await Run(tab).follow(rest.id)
        assert (whole.text, whole.events[0]["type"]) == ("one two three", "response.snapshot")
        resent = await (await tab.start(**{"continue": cut.item}, client_id="more")).finish()
        assert resent.text == "one two three"


@in_world()
async def test_c07_lengths_end_as_length_and_wrong_ones_are_refused_by_name(world: World) -> None:
    async with world.client(await world.key("ana")) as ana:
        cut, whole = "response.incomplete", "response.completed"
        for tokens, end, text in ((3, cut, "Par"), (5, cut, "Paris"), (10**9, whole, "Paris")):
            run = await ana.ask("say Paris", sampling={"max_tokens": tokens})
            assert (run.end["type"], run.text) == (end, text)
        for wrong in (0, -1, 1.5, "5", True):
            asked = {"type": "response.create", "client_id": "x", "conversation": {}, "input": question("x")}
            error = await ana.refused(**asked, sampling={"max_tokens": wrong})
            assert (error["code"], error["param"]) == ("invalid_field", "sampling.max_tokens")
        assert (await ana.ask("say still here")).text == "still here"


REFUSED: list[tuple[dict, str]] = [
    ({"sampling": {"cache_salt": "x"}}, "sampling.cache_salt"),
    ({"sampling": {"temperature": 3}}, "sampling.temperature"),
    ({"sampling": {"n": 2}}, "sampling.n"),
    ({"sampling": {"stop_token_ids": [10**6]}}, "sampling.stop_token_ids"),
    ({"text": {"format": {"type": "json_schema", "name": "x"}}}, "text.format.schema"),
    ({"text": {"format": {"type": "xml"}}}, "text.format.type"),
    ({"tools": [{"type": "function"}]}, "tools[0].name"),
    ({"conversation": None}, "conversation"),
    ({"conversation_id": "conv_x"}, "conversation"),
    ({"parent_id": "msg_x"}, "parent_id"),
    ({"input": None}, "input"),
    ({"input": question("")}, "input"),
    ({"input": question("a\0b")}, "input"),
    ({"continue": "msg_x"}, "continue"),
]


@in_world()
async def test_what_cannot_be_done_is_refused_by_name(world: World) -> None:
    async with world.client(await world.key("ana")) as ana:
        for fields, param in REFUSED:
            asked = {"type": "response.create", "client_id": "x", "conversation": {}, "input": question("say x")}
            error = await ana.refused(**{k: v for k, v in (asked | fields).items() if v is not None})
            assert (error["code"], error["param"]) == ("invalid_field", param)
        assert await count_messages(world) == 0
        assert not world.engine._open


@in_world(max_context=64)
async def test_d10_a_prompt_that_does_not_fit_is_refused_with_its_size_and_changes_nothing(world: World) -> None:
    async with world.client(await world.key("ana")) as ana:
        first = await ana.ask("say a", sampling={"max_tokens": 2})
        error = await ana.refused(
            type="response.create", client_id="x", conversation_id=first.conversation, input=question("x" * 200)
        )
        assert error["code"] == "context_length_exceeded"
        assert "at most" in error["message"]
        assert await count_messages(world) == 2
        world.turns.reserve(first.conversation, "free")
        world.turns.release(first.conversation)


@in_world(limits={"text_bytes": 1000})
async def test_a_text_that_is_too_long_is_refused_by_its_bytes(world: World) -> None:
    async with world.client(await world.key("ana")) as ana:
        asked = {"type": "response.create", "client_id": "x", "conversation": {}}
        assert (await ana.refused(**asked, input=question("س" * 501)))["code"] == "too_large"
        assert (await ana.refused(**asked, input=question("x"), instructions="x" * 1001))["code"] == "too_large"
        assert (await ana.refused(**asked, input=question("x"), model="gpt-99"))["code"] == "model_not_found"
        assert (await ana.ask("say yes", model="default")).text == "yes"


@in_world(gate=True)
async def test_who_has_as_many_in_flight_as_allowed_is_told_when_to_try_again(world: World) -> None:
    async with world.client(await world.key("ana")) as ana, world.client(await world.key("bob")) as bob:
        for number in range(6):
            await ana.start(f"say {number}")
        error = await ana.refused(type="response.create", client_id="7", conversation={}, input=question("say 7"))
        assert error["code"] == "too_many_in_flight"
        assert error["retry_after_ms"] > 0
        started = await bob.start("say hello")
        world.open_gate()
        assert (await started.finish()).text == "hello"


@in_world(gate=True, config=small_engine(max_running=1, max_queued=3))
async def test_a_full_queue_refuses_and_places_are_told(world: World) -> None:
    key = await world.key("ana", service=True)
    async with world.client(key) as ana, world.client(key) as tab:
        first = await ana.start("say 0")
        world.pass_steps(2)
        await world.until(lambda: world.turns.find(world.users["ana"], response_id=first.id).text)
        waiting = [await tab.start(f"say {number}") for number in (1, 2, 3)]
        error = await ana.refused(type="response.create", client_id="x", conversation={}, input=question("say x"))
        assert error["code"] == "queue_full"
        world.open_gate()
        for run in (first, waiting[0]):
            await run.finish()


async def stop(client: Client, run: Run) -> Run:
    await client.send(type="response.cancel", response_id=run.id)
    return await run.finish()


@pytest.mark.parametrize("steps", [0, 1, 3], ids=["queued", "prefill", "decode"])
def test_g01_stop_stops_in_every_phase_and_the_text_is_kept(tmp_path, steps: int) -> None:
    @in_world(gate=True, config=small_engine(max_batch_tokens=32))
    async def scene(world: World) -> None:
        key = await world.key("ana")
        async with world.client(key) as ana, world.client(key) as tab:
            run = await ana.start("say " + "x" * 50)
            await tab.subscribe(run)
            if steps:
                world.pass_steps(steps)
            await world.until(lambda: world.runner.steps >= steps)
            await stop(ana, run)
            assert run.end["type"] == "response.cancelled"
            seen = await Run(tab).follow(run.id)
            assert seen.end["type"] == "response.cancelled", "every viewer gets the end"
            at = world.runner.steps
            world.pass_steps(3)
            await world.until(lambda: not world.engine._open)
            assert world.runner.steps <= at + 2
            answer = (await items_of(world, key, run.conversation))[1]
            assert (answer["status"], answer["text"]) == ("cancelled", run.text)
            await ana.send(type="response.cancel", response_id=run.id)
            assert (await ana.until("response.cancelled"))["response_id"] == run.id, "idempotent"
            world.open_gate()
            assert (await ana.ask("say on", conversation_id=run.conversation)).text == "on"

    scene(tmp_path)


@in_world(gate=True)
async def test_d10_after_a_stop_the_answer_goes_on_from_what_was_kept_and_cached(world: World) -> None:
    key = await world.key("ana")
    async with world.client(key) as ana:
        run = await ana.start("say one two three")
        world.pass_steps(7)  # the prompt and its first token, and six more
        turn = world.turns.find(world.users["ana"], response_id=run.id)
        await world.until(lambda: len(turn.text) == 7)
        await stop(ana, run)
        assert run.text == "one two"
        world.open_gate()
        await world.until(lambda: world.engine.stats().state == "idle")
        kept = world.engine.scheduler.sessions[run.conversation].ids
        held = world.runner.tokenizer.decode(kept).rpartition("assistant\n")[2]
        assert held in ("one tw", "one two"), "what is cached is what is kept; its last id may not be computed yet"
        rest = await ana.ask(**{"continue": run.item})
        assert run.text + rest.text == "one two three"
        usage = rest.end["usage"]
        assert usage["input_tokens_details"]["cached_tokens"] == usage["input_tokens"] - 1
        answer = (await items_of(world, key, run.conversation))[1]
        assert (answer["status"], answer["text"]) == ("completed", "one two three")


@in_world(gate=True)
async def test_g01_closing_the_socket_ends_nothing(world: World) -> None:
    key = await world.key("ana")
    async with world.client(key) as ana:
        run = await ana.start("say a whole sentence")
    async with world.client(key) as ana:
        ana.connection.transport.abort()  # a dropped line, without a close frame
    await world.until(lambda: world.turns.audience.count(world.users["ana"]) == 0)
    world.open_gate()
    await world.turns.find(world.users["ana"], response_id=run.id).ended.wait()
    items = await items_of(world, key, run.conversation)
    assert (items[1]["text"], items[1]["status"]) == ("a whole sentence", "completed")


@in_world(gate=True)
async def test_a_question_is_not_lost_with_the_socket_that_brought_it(world: World) -> None:
    key = await world.key("ana")
    async with world.client(key) as ana:
        await ana.send(type="response.create", client_id="c", conversation={}, input=question("say it"))
        ana.connection.transport.abort()
    await world.until(lambda: world.turns.find(world.users["ana"], client_id="c"))
    world.open_gate()
    turn = world.turns.find(world.users["ana"], client_id="c")
    await turn.ended.wait()
    assert turn.text == "it"
    assert not list(world.turns.audience.watching(turn.names.conversation_id))


@in_world()
async def test_instructions_come_first_and_stay(world: World) -> None:
    async with world.client(await world.key("ana")) as ana:
        plain = await ana.ask("say x")
        told = await ana.ask("say x", instructions="Be brief.")
        more = told.end["usage"]["input_tokens"] - plain.end["usage"]["input_tokens"]
        assert more >= len("Be brief.")
        next_turn = await ana.ask("say y", conversation_id=told.conversation)
        assert next_turn.end["usage"]["input_tokens_details"]["cached_tokens"] >= told.end["usage"]["total_tokens"] - 16


@in_world()
async def test_warming_brings_blocks_up_and_stores_nothing(world: World) -> None:
    async with world.client(await world.key("ana")) as ana:
        run = await ana.ask("say one")
        before = world.runner.steps
        await ana.send(type="response.create", client_id="w", conversation_id=run.conversation, generate=False)
        await world.until(lambda: world.runner.steps > before and not world.engine._open)
        assert await count_messages(world) == 2
        error = await ana.refused(type="response.create", client_id="w", conversation={}, generate=False)
        assert error["param"] == "conversation_id"


@in_world()
async def test_what_is_warmed_is_what_the_next_question_comes_after(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    warmed: list[list[str]] = []

    def watched(session_id, chat, *, owner):
        warmed.append([message.content for message in chat.messages])

    async with world.client(await world.key("ana")) as ana:
        run = await ana.ask("say one")
        monkeypatch.setattr(world.engine, "warm", watched)
        for where in ({}, {"parent_id": run.item}):
            await ana.send(
                type="response.create", client_id="w", conversation_id=run.conversation, generate=False, **where
            )
        await ana.send(type="ping", t=1)
        await ana.until("pong")
    assert warmed == [["say one", "one"]] * 2


@in_world()
async def test_g20_a_long_history_is_put_together_off_the_event_loop(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: list[str] = []
    chat_of = asking.chat_of

    def watched(*given):
        threads.append(threading.current_thread().name)
        return chat_of(*given)

    monkeypatch.setattr(asking, "chat_of", watched)
    async with world.client(await world.key("ana")) as ana:
        run = await ana.ask("say one")
        await ana.ask("say two", conversation_id=run.conversation)
    assert len(threads) == 2
    assert threading.main_thread().name not in threads
