"""The app: what was left half-done is put in order before anybody is let in, and nothing is left open after it."""
import asyncio
import threading

import pytest
from lobby import Lobby, in_lobby, lobby
from sqlalchemy import select
from starlette.routing import BaseRoute, Route
from world import World, in_world

from hamdam.engine import EngineStopped, Owner, SamplingParams
from hamdam.engine.chat import Chat, ChatMessage
from hamdam.server.app import create_app
from hamdam.server.people.identity import Identity
from hamdam.server.storage.clock import now_us
from hamdam.server.storage.tables import Conversation, Message

ANA = Identity("user_ana", "ana", "member", key_id="key_1")


def row(user: str, message: str, **columns: object) -> Message:
    given = {"parts": [], "text": "", "status": "completed", "last_sequence": 0, "created_at": now_us()} | columns
    return Message(id=message, user_id=user, conversation_id="conv_1", **given)


@in_lobby()
async def test_rows_in_progress_are_interrupted_before_the_first_request(lobby: Lobby) -> None:
    user = await lobby.person("ana")
    now = now_us()
    async with lobby.database.write() as sql:
        sql.add(Conversation(id="conv_1", user_id=user, created_at=now, updated_at=now))
        await sql.flush()
        sql.add(row(user, "msg_1", role="user", text="How?"))
        await sql.flush()
        sql.add(row(user, "msg_2", role="assistant", parent_id="msg_1", text="Like th", status="in_progress"))
    async with lobby.app.router.lifespan_context(lobby.app), lobby.database.read() as sql:
        answer = (await sql.execute(select(Message).where(Message.id == "msg_2"))).scalar_one()
        assert (answer.status, answer.text) == ("interrupted", "Like th")


@in_lobby()
async def test_the_engine_lives_as_long_as_the_app(lobby: Lobby) -> None:
    engine, owner = lobby.house.engine, Owner("ana", "ana")

    async def ask() -> str:
        generation = await engine.submit(Chat((ChatMessage("user", "say yes"),)), SamplingParams(), owner=owner)
        generation.start()
        return [event async for event in generation][-1].reason

    with pytest.raises(EngineStopped):
        await ask()
    before = threading.active_count()
    async with lobby.app.router.lifespan_context(lobby.app):
        assert await ask() == "stop"
    with pytest.raises(EngineStopped):
        await ask()
    assert not [thread for thread in threading.enumerate() if thread.name == "hamdam-engine"]
    assert threading.active_count() <= before + 3  # the encoders' threads and the grammars' end with their queues


@in_lobby()
async def test_no_task_outlives_the_app(lobby: Lobby) -> None:
    before = asyncio.all_tasks()
    async with lobby.app.router.lifespan_context(lobby.app):
        assert len(asyncio.all_tasks()) > len(before)
    await asyncio.sleep(0)
    assert asyncio.all_tasks() == before


def paths(routes: list[BaseRoute]) -> list[tuple[str, str]]:
    return [(m, r.path) for r in routes if isinstance(r, Route) for m in sorted((r.methods or set()) - {"HEAD"})]


@in_lobby()
async def test_the_routes_are_those_of_the_protocol_each_once(lobby: Lobby) -> None:
    found = paths(lobby.app.routes)
    assert len(found) == len(set(found))
    assert {
        ("GET", "/healthz"),
        ("GET", "/readyz"),
        ("GET", "/api/me"),
        ("POST", "/api/setup"),
        ("POST", "/api/sign-in"),
        ("POST", "/api/sign-out"),
        ("GET", "/api/logins"),
        ("DELETE", "/api/logins"),
        ("GET", "/api/keys"),
        ("GET", "/api/conversations"),
        ("POST", "/v1/chat/completions"),
        ("GET", "/v1/models"),
        ("GET", "/"),
        ("GET", "/set-up"),
    } <= set(found)


@in_lobby()
async def test_g07_no_route_but_the_open_ones_answers_a_stranger(lobby: Lobby) -> None:
    """Which are open is written here: a new route that answers without asking who it is fails this test."""
    asks = {"/api/setup", "/api/sign-in", "/api/sign-out", "/set-up", "/sign-in"}
    open_to_all = {*asks, "/healthz", "/readyz", "/asyncapi.json", "/openapi.json"}
    asked = 0
    async with lobby.browser() as stranger:
        for method, path in paths(lobby.app.routes):
            if path in open_to_all or path.startswith(("/static", "/{path")):
                continue
            said = await stranger.request(method, path.replace("{id}", "conv_1"))
            home = said.status_code == 303 and said.headers["location"].startswith("/sign-in")
            assert home or said.status_code == 401, (method, path, said.status_code)
            asked += 1
    assert asked >= 15


def test_two_apps_in_one_process_share_nothing(tmp_path) -> None:
    async def scene() -> None:
        async with lobby(tmp_path / "a") as one, lobby(tmp_path / "b") as other:
            await one.person("ana")
            assert await other.house.accounts.list() == []
            assert one.house.owners.of(ANA) != other.house.owners.of(ANA)
            again = create_app(one.house.settings, one.house.engine, one.database)
            assert again.state.house.owners.of(ANA) == one.house.owners.of(ANA)
            assert again.state.house.boot_id != one.house.boot_id

    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    asyncio.run(scene())


@in_world()
async def test_g18_a_right_taken_by_a_request_closes_the_socket_with_its_code(world: World) -> None:
    key = await world.key("ana")
    async with world.client(key) as ana, world.client(await world.key("ben")) as ben:
        await world.house.accounts.set_state("ana", "disabled")
        assert await ana.closed() == 4403
        await ben.send(type="ping", t=1)
        assert (await ben.until("pong"))["t"] == 1
