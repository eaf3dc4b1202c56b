"""Structured output at both doors, over a model of random logits: what may be asked, and what is refused by name."""
import asyncio
import contextlib
import json
import socket
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import jsonschema
import pytest
from openai import AsyncOpenAI
from random_runner import random_engine
from world import Client, World, running

URL = "/v1/chat/completions"
SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 8}, "size": {"type": "integer", "maximum": 99}},
    "required": ["city", "size"],
    "additionalProperties": False,
}


@contextlib.asynccontextmanager
async def doors(folder: Path) -> AsyncIterator[tuple[World, httpx.AsyncClient, Client]]:
    async with running(folder, make=random_engine) as world:
        key = await world.key("ana")
        async with world.http(key) as http, world.client(key) as ana:
            yield world, http, ana


def body(**fields: object) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": "x"}], "max_tokens": 300, "seed": 1} | fields


def schema(given: object = SCHEMA, **more: object) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "city", "schema": given} | more}


def text_format(given: object = SCHEMA) -> dict[str, Any]:
    return {"text": {"format": {"type": "json_schema", "name": "city", "schema": given}}}


async def said(http: httpx.AsyncClient, **fields: object) -> tuple[str, str]:
    answer = await http.post(URL, json=body(**fields))
    assert answer.status_code == 200, answer.text
    [choice] = answer.json()["choices"]
    return choice["message"]["content"], choice["finish_reason"]


async def refused(http: httpx.AsyncClient, **fields: object) -> tuple[str, str]:
    """param and message"""
    answer = await http.post(URL, json=body(**fields))
    assert answer.status_code == 400, answer.text
    error = answer.json()["error"]
    assert (error["code"], error["type"]) == ("invalid_field", "invalid_request_error")
    return error["param"], error["message"]


def test_an_answer_follows_its_schema_at_both_doors(tmp_path: Path) -> None:
    async def scene() -> None:
        async with doors(tmp_path) as (_, http, ana):
            for strict in (True, False, None):
                text, reason = await said(http, response_format=schema(strict=strict))
                jsonschema.validate(json.loads(text), SCHEMA)
                assert reason == "stop"
            run = await ana.ask("x", **text_format(), sampling={"max_tokens": 300, "seed": 1, "temperature": 1})
            assert run.end is not None and run.end["type"] == "response.completed"
            jsonschema.validate(json.loads(run.text), SCHEMA)

    asyncio.run(scene())


def test_openais_own_client_asks_for_a_schema(tmp_path: Path) -> None:
    async def scene() -> None:
        async with doors(tmp_path) as (world, _, _ana):
            url = f"http://127.0.0.1:{world.port}/v1"
            async with AsyncOpenAI(base_url=url, api_key=await world.key("ana"), max_retries=0) as client:
                found = await client.chat.completions.create(
                    model="default", messages=[{"role": "user", "content": "x"}], max_tokens=300, seed=3,
                    response_format={"type": "json_schema", "json_schema": {"name": "city", "schema": SCHEMA}},
                )  # fmt: skip
        jsonschema.validate(json.loads(found.choices[0].message.content or ""), SCHEMA)

    asyncio.run(scene())


def test_every_other_kind_is_asked_by_one_name_at_both_doors(tmp_path: Path) -> None:
    kinds: list[dict[str, Any]] = [
        {"regex": "[ab]{3}"}, {"choice": ["aab", "bba"]}, {"grammar": 'start: "a" X "b"\nX: "a" | "b"'},
        {"json": {"enum": ["aab", "bba"]}},
    ]  # fmt: skip

    async def scene() -> None:
        async with doors(tmp_path) as (_, http, ana):
            for kind in kinds:
                text, reason = await said(http, structured_outputs=kind)
                run = await ana.ask("x", sampling={"structured_outputs": kind, "max_tokens": 20, "temperature": 1})
                for one in (text, run.text):
                    assert len(one.strip('"')) == 3 and {*one} <= {*'ab"'}
                assert reason == "stop" and run.end is not None and run.end["type"] == "response.completed"
            text, _ = await said(http, response_format={"type": "json_object"}, max_tokens=40)
            assert text.startswith("{")
            assert (await said(http, response_format={"type": "text"}, max_tokens=2))[1] == "length"

    asyncio.run(scene())


def test_an_answer_that_was_cut_goes_on_in_its_form(tmp_path: Path) -> None:
    form: dict[str, Any] = {"structured_outputs": {"json": {"const": {"city": ["Tehran", 1]}}}}

    async def scene() -> None:
        async with doors(tmp_path) as (_, _http, ana):
            cut = await ana.ask("x", sampling=form | {"max_tokens": 9, "temperature": 1})
            assert cut.end is not None and cut.end["type"] == "response.incomplete"
            other = {"type": "response.create", "client_id": "d", "continue": cut.item}
            error = await ana.refused(**other, sampling={"structured_outputs": {"regex": "[0-9]"}})
            assert error["param"] == "sampling.structured_outputs"
            rest = await ana.ask(**{"continue": cut.item}, sampling=form | {"max_tokens": 300, "temperature": 1})
            assert rest.end is not None and rest.end["type"] == "response.completed"
            assert json.loads(cut.text + rest.text.removeprefix(cut.text)) == {"city": ["Tehran", 1]}

    asyncio.run(scene())


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"response_format": "json"}, "response_format"),
    ({"response_format": {"type": "xml"}}, "response_format.type"),
    ({"response_format": {"type": "json_object", "schema": {}}}, "response_format.schema"),
    ({"response_format": {"type": "json_schema"}}, "response_format.json_schema.name"),
    ({"response_format": {"type": "json_schema", "json_schema": {"name": "x"}}}, "response_format.json_schema.schema"),
    ({"response_format": schema(name="a b")}, "response_format.json_schema.name"),
    ({"response_format": schema(strict="yes")}, "response_format.json_schema.strict"),
    ({"response_format": schema(other=1)}, "response_format.json_schema.other"),
    ({"response_format": schema({"not": {}})}, "response_format.json_schema.schema"),
    ({"response_format": schema(), "structured_outputs": {"regex": "a"}}, "response_format"),
    ({"structured_outputs": {"regex": "a", "choice": ["a"]}}, "structured_outputs"),
    ({"structured_outputs": {}}, "structured_outputs"),
    ({"structured_outputs": "a"}, "structured_outputs"),
    ({"structured_outputs": {"ebnf": "a"}}, "structured_outputs.ebnf"),
    ({"structured_outputs": {"regex": "("}}, "structured_outputs.regex"),
    ({"structured_outputs": {"regex": ""}}, "structured_outputs.regex"),
    ({"structured_outputs": {"choice": []}}, "structured_outputs.choice"),
    ({"structured_outputs": {"choice": [1]}}, "structured_outputs.choice"),
    ({"structured_outputs": {"grammar": "start: nothing"}}, "structured_outputs.grammar"),
    ({"structured_outputs": {"json": {"not": {}}}}, "structured_outputs.json"),
]


def test_what_cannot_be_followed_is_refused_by_name(tmp_path: Path) -> None:
    async def scene() -> None:
        async with doors(tmp_path) as (world, http, ana):
            for fields, param in REFUSED:
                assert (await refused(http, **fields))[0] == param, fields
                sampling = {name: value for name, value in fields.items() if name == "structured_outputs"}
                if len(sampling) == len(fields):
                    assert (await ana.refused(**asked(sampling=sampling)))["param"] == f"sampling.{param}"
            error = await ana.refused(**asked(**text_format({"not": {}})))
            assert error["param"] == "text.format.schema" and "/not" in error["message"]
            both = asked(**text_format(), sampling={"structured_outputs": {"regex": "a"}})
            assert (await ana.refused(**both))["param"] == "text.format"
            assert not world.engine._open and not world.engine._in_flight

    asyncio.run(scene())


def asked(**fields: Any) -> dict[str, Any]:
    content = [{"type": "input_text", "text": "x"}]
    question = [{"type": "message", "role": "user", "content": content}]
    return {"type": "response.create", "client_id": "c", "conversation": {}, "input": question} | fields


E01: list[tuple[dict[str, Any], str]] = [
    ({"type": "object", "properties": {"city": {"type": "string"}, "extra": "text"}}, "/properties/extra"),
    ({"type": "string", "pattern": "(["}, "/pattern"),
    ({"type": "integer", "minimum": 5, "maximum": 3}, "/minimum"),
    ({"enum": []}, "/enum"),
    ({"$ref": "http://example.com/x.json"}, "/$ref"),
    ({"properties": {"a": {"oneOf": [{"type": "integer"}, {"type": "number"}]}}}, "/properties/a/oneOf"),
    ({"patternProperties": {"a(": {}}, "additionalProperties": False}, "/patternProperties/a("),
    ({"additionalProperties": {"type": "string", "pattern": "a(?=b)"}}, "/additionalProperties/pattern"),
    ({"type": "object", "properties": {"a": {"enum": ["x"], "type": "integer"}}, "required": ["a"]}, "a"),
]


def test_what_leaves_no_answer_is_the_clients_fault_and_not_asked_again(tmp_path: Path) -> None:
    async def scene() -> None:
        async with doors(tmp_path) as (_, http, ana):
            asked = {"structured_outputs": {"regex": "[a-z]"}, "allowed_token_ids": [ord("7")]}
            answer = await http.post(URL, json=body(**asked))
            assert (answer.status_code, answer.json()["error"]["code"]) == (400, "invalid_field")
            assert "allowed_token_ids leave no token that the grammar allows" in answer.json()["error"]["message"]
            streamed = await http.post(URL, json=body(stream=True, **asked))
            assert '"code":"invalid_field"' in streamed.text
            run = await ana.ask("x", sampling=asked)
            assert (run.events[-1]["type"], run.events[-1]["error"]["code"]) == ("response.failed", "invalid_field")

    asyncio.run(scene())


def test_e01_a_bad_schema_is_refused_by_its_place_and_nobody_else_notices(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scene() -> None:
        async with doors(tmp_path) as (world, http, _ana):
            stream = asyncio.create_task(said(http, max_tokens=300, ignore_eos=True))
            connected: list[object] = []
            connect = socket.socket.connect
            monkeypatch.setattr(
                socket.socket, "connect", lambda own, address: connected.append(address) or connect(own, address)
            )
            for given, place in E01:
                param, message = await refused(http, response_format=schema(given))
                assert param == "response_format.json_schema.schema"
                assert place in message, message
                assert (await said(http, structured_outputs={"choice": ["ok"]})) == ("ok", "stop")
            assert {*connected} <= {("127.0.0.1", world.port)}
            assert (await stream)[1] == "length"

    asyncio.run(scene())


def test_e08_fifty_who_ask_for_the_same_at_once_have_it_compiled_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scene() -> None:
        async with running(tmp_path, make=random_engine, max_queued=100) as world:
            compiled: list[str] = []
            grammars, go_on = world.engine._grammars, threading.Event()
            compile_one = grammars._compile

            def counted(asked: Any) -> Any:
                compiled.append(asked.source)
                go_on.wait()
                return compile_one(asked)

            monkeypatch.setattr(grammars, "_compile", counted)
            key = await world.key("service", service=True)
            async with world.http(key) as http:
                all_of_them = [
                    asyncio.create_task(said(http, structured_outputs={"choice": ["ok"]}, user=f"user {n}"))
                    for n in range(50)
                ]
                await world.until(lambda: world.engine._reserved == 50)
                go_on.set()
                assert {*await asyncio.gather(*all_of_them)} == {("ok", "stop")}
            assert compiled == ['["ok"]']

    asyncio.run(scene())
