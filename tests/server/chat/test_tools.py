"""Tools over the socket: calls are told, kept with the answer, and answered by an input item."""
from typing import Any

from sqlalchemy import select
from weather import ARGUMENTS, CALL, TOOL, calls_of, output
from world import World, in_world

from hamdam.server.storage.tables import Message


def reply(question: str) -> str:
    if "<tool_response>" in question:
        return f"It is warm: {question.split()[1]}"
    return "Gladly." if question == "Thanks" else f"Let me see.\n{CALL}\n{CALL}"


@in_world(reply)
async def test_a_call_is_told_kept_and_answered(world: World) -> None:
    key = await world.key("ana")
    async with world.client(key) as ana, world.http(key) as http:
        run = await ana.ask("Is it warm?", tools=[TOOL])
        assert (run.text, run.end["type"]) == ("Let me see.", "response.completed")
        deltas, calls = calls_of(run, "delta"), calls_of(run)
        assert [event["arguments"] for event in calls] == [event["delta"] for event in deltas] == [ARGUMENTS] * 2
        assert {event["name"] for event in (*deltas, *calls)} == {"get_weather"}
        assert len({event["call_id"] for event in calls}) == 2
        kept = [{"call_id": e["call_id"], "name": e["name"], "arguments": e["arguments"]} for e in calls]
        async with world.database.read() as sql:
            row = await sql.scalar(select(Message).where(Message.id == run.item))
        assert row.parts == [{"type": "function_call"} | call for call in kept]
        assert row.finish_reason == "tool_calls"
        outputs = [output(calls[0], "31 °C"), output(calls[1], "sunny")]
        more = await ana.ask(conversation_id=run.conversation, input=outputs, tools=[TOOL])
        assert more.text == "It is warm: 31"
        items = (await http.get(f"/api/conversations/{run.conversation}")).json()["items"]
        assert [item["role"] for item in items] == ["user", "assistant", "tool", "assistant"]
        assert items[1]["function_calls"] == kept
        assert items[2]["outputs"] == outputs
        assert "function_calls" not in items[3]
        again = await ana.ask(conversation_id=run.conversation)
        assert again.text == "It is warm: 31", "answered once more, below the outputs"
        assert (await ana.ask("Thanks", conversation_id=run.conversation)).text == "Gladly."


@in_world(reply)
async def test_the_model_sees_its_calls_and_what_came_of_them_in_the_next_turns(world: World) -> None:
    prompts = world.prompts()
    async with world.client(await world.key("ana")) as ana:
        run = await ana.ask("Is it warm?", tools=[TOOL])
        assert prompts[-1].count("The weather somewhere") == 1
        outputs = [output(call, f"{number} °C") for number, call in enumerate(calls_of(run), 31)]
        await ana.ask(conversation_id=run.conversation, input=outputs, tools=[TOOL])
        for text, times in (("The weather somewhere", 1), (ARGUMENTS, 2), ("31 °C", 1), ("32 °C", 1)):
            assert prompts[-1].count(text) == times, text
        await ana.ask("Thanks", conversation_id=run.conversation)
        assert "The weather somewhere" not in prompts[-1], "tools are those of one response"
        assert prompts[-1].count(ARGUMENTS) == 2


@in_world(reply)
async def test_a_repeated_question_and_a_late_viewer_hear_of_the_calls(world: World) -> None:
    key = await world.key("ana")
    async with world.client(key) as ana, world.client(key) as other:
        run = await ana.ask("Is it warm?", tools=[TOOL], client_id="once")
        calls = [call["call_id"] for call in calls_of(run)]
        world.turns._by_response.clear()
        world.turns._by_client.clear()
        await other.send(type="response.create", client_id="once", conversation={}, input=[], tools=[])
        refused = await other.until("error")
        assert refused["error"]["param"] == "input"
        message = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Is it warm?"}]}
        await other.send(type="response.create", client_id="once", conversation={}, input=[message])
        snapshot = await other.until("response.snapshot")
        assert [call["call_id"] for call in snapshot["function_calls"]] == calls


@in_world(reply)
async def test_what_is_wrong_with_tools_and_outputs_is_refused_by_name(world: World) -> None:
    async with world.client(await world.key("ana")) as ana:
        run = await ana.ask("Is it warm?", tools=[TOOL])
        [first, second] = calls_of(run)
        message = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "x"}]}
        here: dict[str, Any] = {"conversation_id": run.conversation}
        for given, param in (
            (here | {"input": [output(first, "a"), {"type": "function_call_output", "call_id": "none", "output": "x"}]},
             "input[1].call_id"),
            (here | {"input": [output(first, "a"), output(first, "b")]}, "input[1].call_id"),
            (here | {"input": [output(first, "a"), message]}, "input"),
            (here | {"input": [message, message]}, "input"),
            (here | {"input": [{"type": "function_call_output", "call_id": "x"}]}, "input[0].output"),
            (here | {"input": [output(first, "\0")]}, "input"),
            ({"conversation": {}, "input": [output(first, "a")]}, "input[0].call_id"),
            (here | {"input": [message], "tools": [{"type": "function", "name": "a b"}]}, "tools[0].name"),
            (here | {"input": [message], "tools": [TOOL, TOOL]}, "tools[1].name"),
            (here | {"input": [message], "tools": [TOOL | {"strict": 1}]}, "tools[0].strict"),
        ):  # fmt: skip
            error = await ana.refused(type="response.create", client_id="c", **given)
            assert (error["code"], error["param"]) == ("invalid_field", param)
        assert not world.engine._open
        fine = await ana.ask(input=[output(second, "a"), output(first, "b")], tools=[TOOL], **here)
        assert fine.text == "It is warm: a"
        error = await ana.refused(type="response.create", client_id="c", input=[output(first, "a")], **here)
        assert error["param"] == "input[0].call_id"


@in_world(reply)
async def test_a_call_of_a_temporary_conversation_is_kept_no_longer_than_it(world: World) -> None:
    async with world.client(await world.key("ana")) as ana:
        run = await ana.ask("Is it warm?", tools=[TOOL], store=False)
        outputs = [output(call, "31 °C") for call in calls_of(run)]
        assert (await ana.ask(conversation_id=run.conversation, input=outputs)).text == "It is warm: 31"
        async with world.database.read() as sql:
            assert await sql.scalar(select(Message)) is None


@in_world(reply)
async def test_without_parallel_calls_an_answer_ends_with_its_first_here_too(world: World) -> None:
    async with world.client(await world.key("ana")) as ana:
        run = await ana.ask("Is it warm?", tools=[TOOL], parallel_tool_calls=False)
        assert len(calls_of(run)) == 1 and run.end["type"] == "response.completed"


@in_world(reply)
async def test_a_call_that_was_cut_with_its_answer_is_begun_once_more_where_it_goes_on(world: World) -> None:
    prompts = world.prompts()
    async with world.client(await world.key("ana")) as ana:
        most = len(f"Let me see.\n{CALL[:-20]}".encode())
        run = await ana.ask("Is it warm?", tools=[TOOL], sampling={"max_tokens": most})
        assert (run.text, run.end["type"], run.end["reason"]) == ("Let me see.", "response.incomplete", "length")
        assert not calls_of(run) and not calls_of(run, "delta")
        logged = await ana.ask("Is it warm?", tools=[TOOL], sampling={"max_tokens": most, "logprobs": True})
        listed = [one for event in logged.events for one in event.get("logprobs", [])]
        assert (logged.text, len(listed)) == ("Let me see.", most), "those of its tokens are told all the same"
        more = await ana.ask(**{"continue": run.item}, tools=[TOOL])
        assert (more.text, more.end["type"]) == ("", "response.completed")
        assert [call["arguments"] for call in calls_of(more)] == [ARGUMENTS] * 2
        asked = {"conversation_id": run.conversation, "input": [output(call, "31 °C") for call in calls_of(more)]}
        assert (await ana.ask(**asked, tools=[TOOL])).text == "It is warm: 31"
        other = await ana.ask("Is it cold?", tools=[TOOL], sampling={"max_tokens": most})
        assert (await ana.ask("Thanks", conversation_id=other.conversation)).text == "Gladly."
        assert CALL[:20] not in prompts[-1], "what nobody can make is no part of the conversation"


@in_world(reply)
async def test_an_answer_that_was_cut_after_a_call_goes_on_with_what_came_of_it(world: World) -> None:
    async with world.client(await world.key("ana")) as ana:
        most = len(f"Let me see.\n{CALL}".encode()) + 9
        run = await ana.ask("Is it warm?", tools=[TOOL], sampling={"max_tokens": most})
        assert run.end["type"] == "response.incomplete"
        [call] = calls_of(run)
        error = await ana.refused(**{"type": "response.create", "client_id": "c", "continue": run.item})
        assert error["param"] == "continue" and "calls" in error["message"]
        more = await ana.ask(conversation_id=run.conversation, input=[output(call, "31 °C")], tools=[TOOL])
        assert more.text == "It is warm: 31"
