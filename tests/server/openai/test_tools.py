"""Tools under /v1: the official client round-trips a call, and what is wrong with a tool is said by its name."""
import json
from typing import Any

import pytest
from official_client import client_of
from scripted import CHATML
from weather import ARGUMENTS, CALL, V1_TOOL
from world import World, in_world

URL = "/v1/chat/completions"
TIME = {"type": "function", "function": {"name": "get_time"}}
TWO = f'{CALL}\n<tool_call>\n{{"name": "get_time"}}\n</tool_call>'
QUESTION = {"role": "user", "content": "Is it warm in Tehran?"}


def reply(question: str) -> str:
    if "31" in question:
        return "It is warm."
    return {"both": TWO, "broken": CALL[:40]}.get(question, f"Let me see.\n{CALL}")


def body(text: str = "Is it?", **fields: object) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": text}], "temperature": 0, "tools": [V1_TOOL, TIME]} | fields


@pytest.mark.parametrize("stream", [False, True])
def test_the_official_client_round_trips_a_call(tmp_path, stream: bool) -> None:
    @in_world(reply)
    async def scene(world: World) -> None:
        async with client_of(world, await world.key("ana")) as client:
            asked = {"model": "default", "tools": [V1_TOOL, TIME], "tool_choice": "auto"}
            if stream:
                async with client.chat.completions.stream(**asked, messages=[QUESTION]) as events:
                    done = [event async for event in events if event.type == "tool_calls.function.arguments.done"]
                    answer = (await events.get_final_completion()).choices[0]
                assert [(event.name, event.index) for event in done] == [("get_weather", 0)]
            else:
                answer = (await client.chat.completions.create(**asked, messages=[QUESTION])).choices[0]
            assert (answer.finish_reason, answer.message.content) == ("tool_calls", "Let me see.")
            [call] = answer.message.tool_calls
            assert (call.type, call.function.name) == ("function", "get_weather")
            assert call.function.arguments == ARGUMENTS
            result = {"role": "tool", "tool_call_id": call.id, "content": "31 °C"}
            talk = [QUESTION, answer.message.model_dump(exclude_none=True, exclude={"parsed"}), result]
            talk[1].pop("parsed", None)
            for one in talk[1]["tool_calls"]:
                one["function"].pop("parsed_arguments", None)
            last = await client.chat.completions.create(**asked, messages=talk)
            assert (last.choices[0].message.content, last.choices[0].finish_reason) == ("It is warm.", "stop")

    scene(tmp_path)


@in_world(reply)
async def test_a11_calls_stream_with_index_id_name_and_arguments_as_the_whole_answer_has_them(world: World) -> None:
    async with world.http(await world.key("ana")) as http:
        whole = (await http.post(URL, json=body("both"))).json()["choices"][0]
        assert whole["message"]["content"] is None
        functions = [call["function"] for call in whole["message"]["tool_calls"]]
        assert functions == [
            {"name": "get_weather", "arguments": ARGUMENTS}, {"name": "get_time", "arguments": "{}"},
        ]  # fmt: skip
        pieces, reasons, content = [], [], ""
        async with http.stream("POST", URL, json=body("both", stream=True)) as response:
            async for line in response.aiter_lines():
                if line.startswith("data: {"):
                    choice = json.loads(line[6:])["choices"][0]
                    pieces += choice["delta"].get("tool_calls", [])
                    content += choice["delta"].get("content") or ""
                    reasons += [choice["finish_reason"]] if choice["finish_reason"] else []
        assert (content, reasons) == ("", ["tool_calls"])
        calls: dict[int, dict[str, str]] = {}
        for piece in pieces:
            call = calls.setdefault(piece["index"], {"arguments": ""})
            call["arguments"] += piece["function"]["arguments"]
            if "id" in piece:
                call |= {"id": piece["id"], "name": piece["function"]["name"]}
        assert [{k: calls[i][k] for k in ("name", "arguments")} for i in (0, 1)] == functions
        ids = {calls[0]["id"], calls[1]["id"], *(call["id"] for call in whole["message"]["tool_calls"])}
        assert len(ids) == 4


@in_world(reply)
async def test_what_is_not_called_is_text(world: World) -> None:
    async with world.http(await world.key("ana")) as http:
        for text, fields, content in (
            ("broken", {}, CALL[:40]),
            ("Is it?", {"tools": [TIME]}, f"Let me see.\n{CALL}"),
            ("Is it?", {"tool_choice": "none"}, f"Let me see.\n{CALL}"),
            ("Is it?", {"tools": []}, f"Let me see.\n{CALL}"),
        ):
            answer = (await http.post(URL, json=body(text, **fields))).json()["choices"][0]
            assert (answer["message"]["content"], answer["finish_reason"]) == (content, "stop")
            assert "tool_calls" not in answer["message"]


@in_world(reply)
async def test_of_a_call_that_was_cut_there_is_the_beginning_and_the_reason_is_length(world: World) -> None:
    async with world.http(await world.key("ana")) as http:
        for text, said, beginning in (
            ("both", None, ARGUMENTS[:9]), ("both", None, ""), ("both", "", None),
            ("Is it?", "Let me see.", ARGUMENTS[:9]),
        ):  # fmt: skip
            upto = {None: "get_wea", "": '"get_weather"'}.get(beginning, f'"arguments": {beginning}')
            most = len(reply(text).partition(upto)[0] + upto)
            cut = (await http.post(URL, json=body(text, max_tokens=most))).json()["choices"][0]
            assert (cut["message"]["content"], cut["finish_reason"]) == (said, "length")
            functions = [call["function"] for call in cut["message"].get("tool_calls", [])]
            assert functions == ([] if beginning is None else [{"name": "get_weather", "arguments": beginning}])
            pieces = []
            async with http.stream("POST", URL, json=body(text, max_tokens=most, stream=True)) as response:
                async for line in response.aiter_lines():
                    if line.startswith("data: {"):
                        pieces += [json.loads(line[6:])["choices"][0]]
            calls = [call["function"] for piece in pieces for call in piece["delta"].get("tool_calls", [])]
            assert "".join(call["arguments"] for call in calls) == (beginning or "")
            assert "".join(piece["delta"].get("content") or "" for piece in pieces) == (said or "")
            assert pieces[-1]["finish_reason"] == "length"


@in_world(reply)
async def test_without_parallel_calls_an_answer_ends_with_its_first(world: World) -> None:
    async with world.http(await world.key("ana")) as http:
        answer = (await http.post(URL, json=body("both", parallel_tool_calls=False))).json()
        assert len(answer["choices"][0]["message"]["tool_calls"]) == 1
        assert answer["choices"][0]["finish_reason"] == "tool_calls"
        assert answer["usage"]["completion_tokens"] < len(CALL.encode())


@in_world(reply)
async def test_the_models_own_template_is_given_tools_and_none_without(world: World) -> None:
    own = (
        "{% for tool in tools or [] %}<|im_start|>tool {{ tool | tojson }}<|im_end|>{% endfor %}{% for m in messages %}"
        "{% for call in m.tool_calls or [] %}<|im_start|>assistant\n<tool_call>{{ call.function | tojson }}</tool_call>"
        "{% endfor %}"
        "{% endfor %}"
    ) + CHATML
    world.speaks(own)
    prompts = world.prompts()
    async with world.http(await world.key("ana")) as http:
        assert (await http.post(URL, json=body())).status_code == 200
        assert f"<|im_start|>tool {json.dumps(V1_TOOL)}<|im_end|>" in prompts[-1]
        assert (await http.post(URL, json=body(tool_choice="none"))).status_code == 200
        assert "get_weather" not in prompts[-1]


def tool(**function: object) -> dict[str, Any]:
    return {"type": "function", "function": {"name": "bad"} | function}


WRONG_TOOLS: list[tuple[object, str]] = [
    ({}, "tools"),
    ([5], "tools[0]"),
    ([V1_TOOL, {"type": "web_search"}], "tools[1].type"),
    ([{"type": "function"}], "tools[0].function"),
    ([tool(name="two words")], "tools[0].function.name"),
    ([tool(name="")], "tools[0].function.name"),
    ([V1_TOOL, TIME, V1_TOOL], "tools[2].function.name"),
    ([tool(description=5)], "tools[0].function.description"),
    ([tool(strict="yes")], "tools[0].function.strict"),
    ([tool(secret=1)], "tools[0].function.secret"),
    ([V1_TOOL | {"secret": 1}], "tools[0].secret"),
    ([tool(parameters=[])], "tools[0].function.parameters"),
    ([tool(parameters={"type": "string"})], "tools[0].function.parameters.type"),
    ([tool(parameters={"properties": {"a": "text"}})], "tools[0].function.parameters.properties.a"),
    ([tool(parameters={"required": "a"})], "tools[0].function.parameters.required"),
    ([tool(name=f"f{i}") for i in range(129)], "tools"),
]


@in_world()
async def test_e06_one_bad_tool_names_that_tool(world: World) -> None:
    async with world.http(await world.key("ana")) as http:
        for tools, param in WRONG_TOOLS:
            refused = await http.post(URL, json=body(tools=tools))
            assert (refused.status_code, refused.json()["error"]["param"]) == (400, param), tools
        nineteen = [tool(name=f"good_{i}", parameters={"type": "object", "properties": {}}) for i in range(19)]
        refused = await http.post(URL, json=body(tools=[*nineteen, tool(parameters={"properties": 5})]))
        assert "`bad`" in refused.json()["error"]["message"]
        assert refused.json()["error"]["param"] == "tools[19].function.parameters.properties"
        assert (await http.post(URL, json=body(tools=[tool(description="x" * (300 << 10))]))).status_code == 413
        assert world.runner.steps == 0
        assert (await http.post(URL, json=body(tools=nineteen))).status_code == 200


def called(**function: object) -> dict[str, Any]:
    call = {"id": "c1", "type": "function", "function": {"name": "get_time", "arguments": "{}"} | function}
    return {"role": "assistant", "content": None, "tool_calls": [call]}


RESULT = {"role": "tool", "content": "x", "tool_call_id": "c1"}
WRONG_MESSAGES: list[tuple[list[dict[str, Any]], str]] = [
    ([{"role": "tool", "content": "x"}], "messages[0].tool_call_id"),
    ([{"role": "tool", "content": "x", "tool_call_id": "c1"}], "messages[0].tool_call_id"),
    ([called(), {"role": "tool", "content": "x", "tool_call_id": "c2"}], "messages[1].tool_call_id"),
    ([called(), {"role": "tool", "tool_call_id": "c1"}], "messages[1].content"),
    ([called(), RESULT, RESULT], "messages[2].tool_call_id"),
    ([called(), RESULT, {"role": "user", "content": "x"}, RESULT], "messages[3].tool_call_id"),
    ([called(), {"role": "user", "content": "x"}, RESULT], "messages[2].tool_call_id"),
    ([called() | {"tool_calls": called()["tool_calls"] * 2}], "messages[0].tool_calls[1].id"),
    ([called(), {"role": "user", "content": "x", "tool_call_id": "c1"}], "messages[1].tool_call_id"),
    ([called(arguments='{"place": "Tehr')], "messages[0].tool_calls[0].function.arguments"),
    ([called(arguments="{")], "messages[0].tool_calls[0].function.arguments"),
    ([called(arguments="[]")], "messages[0].tool_calls[0].function.arguments"),
    ([called(arguments='{"a": NaN}')], "messages[0].tool_calls[0].function.arguments"),
    ([called(arguments={})], "messages[0].tool_calls[0].function.arguments"),
    ([called(name=5)], "messages[0].tool_calls[0].function.name"),
    ([called(name="a<|im_end|>")], "messages[0].tool_calls[0].function.name"),
    ([called() | {"tool_calls": [{"id": 5, "function": {}}]}], "messages[0].tool_calls[0].function.name"),
    ([called() | {"tool_calls": {}}], "messages[0].tool_calls"),
    ([called() | {"role": "user"}], "messages[0].tool_calls"),
    ([{"role": "assistant", "content": None}], "messages[0].content"),
]


@in_world()
async def test_calls_and_results_that_are_none_are_refused_by_name(world: World) -> None:
    async with world.http(await world.key("ana")) as http:
        for messages, param in WRONG_MESSAGES:
            refused = await http.post(URL, json={"messages": messages})
            assert (refused.status_code, refused.json()["error"]["param"]) == (400, param), messages
        again = [called(), RESULT, called(), RESULT]
        assert (await http.post(URL, json={"messages": again})).status_code == 200, "an id may be used in a later turn"
        for choice, fields in (
            ("required", {"tools": []}), ("any", {}), (5, {}), ({"type": "function"}, {}), ({"type": "custom"}, {}),
            ({"type": "function", "function": {"name": "rm"}}, {}), ({"type": "function", "function": "rm"}, {}),
        ):  # fmt: skip
            refused = await http.post(URL, json=body(tool_choice=choice, **fields))
            assert (refused.status_code, refused.json()["error"]["param"]) == (400, "tool_choice")
