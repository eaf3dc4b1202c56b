"""A whole server over the scripted engine, on the loopback, for tests of what goes over the wire. Not a load test.

    @in_world(limits={"replay_s": 0.0}, gate=True)
    async def test_…(world: World) -> None:
        key = await world.key("ana")
        async with world.client(key) as ana: …

Every frame that a client receives is checked against the protocol's types.
"""
import asyncio
import contextlib
import itertools
import json
import socket
import threading
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import msgspec
import uvicorn
from scenes import Scene, given
from scripted import reply, scripted_engine
from websockets.asyncio.client import ClientConnection, connect

from hamdam.engine import EngineConfig
from hamdam.engine.text.codec import Codec
from hamdam.server.app import create_app
from hamdam.server.chat.protocol import AnyServerEvent
from hamdam.server.people.accounts import add_user
from hamdam.server.people.keys import create_key
from hamdam.server.serving import server_config
from hamdam.server.settings import Limits, Settings
from hamdam.server.storage.database import Database

ENDS = {"response.completed", "response.incomplete", "response.cancelled", "response.failed", "response.interrupted"}
_frames = msgspec.json.Decoder(AnyServerEvent)
_numbers = itertools.count(1)


class World:
    def __init__(self, app: Any, engine: Any, database: Database, server: uvicorn.Server) -> None:
        self.app, self.engine, self.runner, self.database = app, engine, engine.runner, database
        self.port: int = server.servers[0].sockets[0].getsockname()[1]
        self.connections = server.server_state.connections
        self.house = app.state.house
        self.turns = self.house.turns
        self.users: dict[str, str] = {}  # name -> id

    async def key(self, name: str, *, service: bool = False) -> str:
        """A key of this person, who is made where there is none of the name yet."""
        async with self.database.write() as sql:
            if name not in self.users:
                self.users[name] = (await add_user(sql, name, "no password", role="member")).id
            return (await create_key(sql, self.users[name], service=service))[1]

    @contextlib.asynccontextmanager
    async def client(self, key: str, **options: Any) -> AsyncIterator["Client"]:
        given = {"subprotocols": ["hamdam.v1"], "additional_headers": {"Authorization": f"Bearer {key}"}}
        sizes = {"max_size": 1 << 24, "max_queue": None}  # unread frames must not hold up a close
        async with connect(f"ws://127.0.0.1:{self.port}/ws", **given | sizes | options) as connection:
            client = Client(connection)
            client.hello = await client.receive()
            yield client

    @contextlib.asynccontextmanager
    async def http(self, key: str | None = None) -> AsyncIterator[httpx.AsyncClient]:
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{self.port}", headers=headers, timeout=30) as client:
            yield client

    def speaks(self, template: str) -> None:
        """The model has this template from now on."""
        tokenizer, ends = self.runner.tokenizer, self.runner.eos_ids
        self.engine.codec = Codec(tokenizer, template, eos_text="<|im_end|>", eos_ids=ends)

    def prompts(self) -> list[str]:
        """The text of every prompt that reaches the model from now on, as it comes."""
        heard: list[str] = []
        answer = self.runner._answer

        def hear(prompt: list[int]) -> Any:
            heard.append(self.runner.tokenizer.decode(prompt, skip_special_tokens=False))
            return answer(prompt)

        self.runner._answer = hear
        return heard

    def pass_steps(self, count: int) -> None:
        """With `gate`: let the engine take this many steps more."""
        self.runner.gate.release(count)

    def open_gate(self) -> None:
        gate, self.runner.gate = self.runner.gate, None
        gate.release(1_000)

    async def until(self, condition: Callable[[], Any]) -> None:
        """Waits for what other tasks and the engine's thread do; no time is measured."""
        for _ in range(5_000):
            if condition():
                return
            await asyncio.sleep(0.002)
        raise AssertionError("it never came true")


class Client:
    def __init__(self, connection: ClientConnection) -> None:
        self.connection = connection
        self.hello: dict[str, Any] = {}
        self.log: list[dict[str, Any]] = []  # all that came
        self.runs: dict[str, Run] = {}  # by response: whose events go where

    async def send(self, **event: Any) -> None:
        await self.connection.send(json.dumps(event))

    async def receive(self) -> dict[str, Any]:
        frame = await asyncio.wait_for(self.connection.recv(), 30)
        event: dict[str, Any] = json.loads(frame)
        assert msgspec.to_builtins(_frames.decode(frame)) == event, "a field that the protocol does not have"
        self.log.append(event)
        if run := self.runs.get(event.get("response_id", "")):
            run.take(event)
        return event

    async def until(self, *types: str, **fields: Any) -> dict[str, Any]:
        """The next event of one of these types (and with these fields); what comes before is left out."""
        while True:
            event = await self.receive()
            if event["type"] in types and fields.items() <= event.items():
                return event

    async def closed(self) -> int:
        """The code the server closes with."""
        with contextlib.suppress(Exception):
            while True:
                await asyncio.wait_for(self.connection.recv(), 30)
        assert self.connection.close_code is not None
        return self.connection.close_code

    async def refused(self, **event: Any) -> dict[str, Any]:
        """The error that this event is answered with."""
        event_id = event.pop("event_id", None) or f"e{next(_numbers)}"
        await self.send(**event, event_id=event_id)
        while True:
            error = (await self.until("error"))["error"]
            if error.get("event_id") == event_id:
                return error

    async def start(self, text: str | None = None, /, **fields: Any) -> "Run":
        """Ask, and read to `response.created`. Without a place it is a new conversation."""
        client_id = fields.pop("client_id", None) or f"c{next(_numbers)}"
        self.runs = {id: run for id, run in self.runs.items() if run.end is None or client_id != run.client_id}
        if "conversation_id" not in fields and "continue" not in fields:
            fields.setdefault("conversation", {})
        if text is not None:
            content = [{"type": "input_text", "text": text}]
            fields["input"] = [{"type": "message", "role": "user", "content": content}]
        await self.send(type="response.create", event_id=client_id, client_id=client_id, **fields)
        run = Run(self, client_id=client_id)
        while True:
            event = await self.receive()
            run.before.append(event)
            if event["type"] == "error" and event["error"].get("event_id") == client_id:
                raise AssertionError(event["error"])
            if event["type"] == "response.created" and event.get("client_id") == client_id:
                run.take(event)
                self.runs[event["response_id"]] = run
                return run

    async def ask(self, text: str | None = None, /, **fields: Any) -> "Run":
        return await (await self.start(text, **fields)).finish()

    async def subscribe(self, run: "Run", *, seen: int | None = None) -> dict[str, Any]:
        """Follow another client's run from here on (with `seen`: as one who has that much of it)."""
        after = {} if seen is None else {"after": {"response_id": run.id, "sequence_number": seen}}
        await self.send(type="conversation.subscribe", conversation_id=run.conversation, **after)
        return await self.until("conversation.subscribed")


class Run:
    """What a client sees of one response, by the protocol's client rule."""

    def __init__(self, client: Client, *, seen: int = 0, text: str = "", client_id: str = "") -> None:
        self.client, self.seen, self.text, self.client_id = client, seen, text, client_id
        self.id = self.conversation = self.item = ""
        self.before: list[dict[str, Any]] = []
        self.events: list[dict[str, Any]] = []
        self.end: dict[str, Any] | None = None

    def take(self, event: dict[str, Any]) -> None:
        if self.end is not None and event.get("sequence_number", 0) <= self.seen:
            return  # said again, as it was asked for
        self.events.append(event)
        self.id, self.conversation = event["response_id"], event["conversation_id"]
        self.item = event.get("item_id", self.item)
        last = event.get("sequence_number")
        if event["type"] == "response.snapshot":
            self.text, self.seen = event["text"], last
        elif last is not None:
            assert event.get("from_seq", last) == self.seen + 1, f"a gap or a repeat: {event} after {self.seen}"
            self.seen = last
        if event["type"] == "response.output_text.delta":
            self.text += event["delta"]
        if event["type"] in ENDS:
            self.end = event

    async def more(self) -> dict[str, Any]:
        """The next event of this run that is not here yet."""
        had = len(self.events)
        while len(self.events) == had:
            await self.client.receive()
        return self.events[-1]

    async def finish(self) -> "Run":
        while self.end is None:
            await self.more()
        return self

    async def follow(self, response_id: str) -> "Run":
        """The run as a client that subscribes to it next sees it, to its end."""
        self.id = response_id
        self.client.runs[response_id] = self
        return await self.finish()


@contextlib.asynccontextmanager
async def running(
    data: Path, *, limits: dict[str, Any] | None = None, gate: bool = False, narrow: bool = False,
    make: Callable[..., Any] = scripted_engine, **engine: Any,
) -> AsyncIterator[World]:
    """`gate`: the engine waits at each step for `pass_steps`. `narrow`: the kernel buffers little of what we send."""
    settings = Settings(data=data, port=0, limits=replace(Limits(), **(limits or {})))
    database = await Database.open(data / "hamdam.db")
    scripted = make(**engine)
    if gate:
        scripted.runner.gate = threading.Semaphore(0)
    try:
        app = create_app(settings, scripted, database)
        server = uvicorn.Server(server_config(app, settings.limits))
        server.capture_signals = contextlib.nullcontext
        serving = asyncio.create_task(server.serve())
        while not server.started:
            await asyncio.sleep(0.005)
            if serving.done():
                serving.result()
        listening = server.servers[0].sockets[0]
        if narrow:  # inherited by what is accepted
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        world = World(app, scripted, database, server)
        try:
            yield world
        finally:
            if gate and scripted.runner.gate:
                world.open_gate()
            await world.turns.close()
            server.should_exit = True
            await serving
    finally:
        await database.close()


def in_world(script: Callable[[str], str] = reply, **options: Any) -> Callable[[Scene], Callable[..., None]]:
    """Gives an async test a running World as `world`."""
    return given("world", lambda folder: running(folder, script=script, **options))


def small_engine(**knobs: Any) -> EngineConfig:
    return EngineConfig(model=Path("scripted"), **knobs)
