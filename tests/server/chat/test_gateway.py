"""The gateway: who may come in, what is said first, what a bad frame costs, and what a lost right does."""
import asyncio
import json
from collections.abc import Callable

import pytest
from sqlalchemy import update
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus
from world import World, in_world

from hamdam.engine import EngineStats
from hamdam.server.chat.protocol import PROTOCOL
from hamdam.server.people.keys import revoke_key
from hamdam.server.people.logins import create_login, end_all_logins
from hamdam.server.storage.clock import SECOND, now_us
from hamdam.server.storage.tables import ApiKey, Login, User


async def refused(world: World, **options) -> tuple[int, dict]:
    """Status and error of a handshake that must not succeed."""
    given = {"subprotocols": [PROTOCOL]} | options
    with pytest.raises(InvalidStatus) as error:
        async with connect(f"ws://127.0.0.1:{world.port}/ws", **given):
            pass
    response = error.value.response
    return response.status_code, dict(response.headers)


async def sign_in(world: World, name: str) -> dict[str, str]:
    """The headers of a browser that is signed in, on our own page."""
    await world.key(name)
    async with world.database.write() as sql:
        secret = await create_login(sql, world.users[name])
    return {"Cookie": f"hamdam={secret}", "Origin": f"http://127.0.0.1:{world.port}"}


@in_world()
async def test_the_first_event_says_who_where_and_how_much(world: World) -> None:
    async with world.client(await world.key("ana")) as ana:
        hello = ana.hello
        assert hello["type"] == "session.created"
        assert hello["user"] == {"id": world.users["ana"], "name": "ana", "role": "member"}
        assert (hello["protocol"], hello["boot_id"], hello["heartbeat_ms"]) == (PROTOCOL, world.house.boot_id, 20_000)
        assert hello["limits"]["running_per_user"] == 2
        assert hello["models"] == [{"id": "scripted", "default": True, "max_context": 8192}]
        assert ana.connection.subprotocol == PROTOCOL


@in_world()
async def test_without_the_subprotocol_there_is_no_upgrade(world: World) -> None:
    bearer = {"Authorization": f"Bearer {await world.key('ana')}"}
    for offered in (None, ["hamdam.v2"], ["hamdam.ticket.x"]):
        status, headers = await refused(world, subprotocols=offered, additional_headers=bearer)
        assert status == 400
        assert "content-security-policy" in {name.lower() for name in headers}


@in_world()
async def test_a_refused_handshake_gets_its_status_and_body_and_fills_no_log(world: World, caplog) -> None:
    for headers, status, code in (
        ({}, 401, "unauthorized"),
        ({"Authorization": "Bearer nonsense"}, 401, "unauthorized"),
        ({"Cookie": "hamdam=x", "Origin": "https://evil.example"}, 403, "forbidden"),
    ):
        with pytest.raises(InvalidStatus) as error:
            async with connect(f"ws://127.0.0.1:{world.port}/ws", subprotocols=[PROTOCOL], additional_headers=headers):
                pass
        response = error.value.response
        assert (response.status_code, json.loads(response.body)["error"]["code"]) == (status, code)
    await world.until(lambda: not world.connections)
    assert caplog.records == []


@in_world()
async def test_who_leaves_in_the_middle_of_a_handshake_fills_no_log(world: World, caplog) -> None:
    upgrade = "Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
    whole = f"GET /ws HTTP/1.1\r\nHost: x\r\n{upgrade}Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
    for sent in (whole, whole.replace("Key", "Kex"), whole.replace("13", "12"), whole.replace("/ws", "/nowhere")):
        for reads in (True, False):
            reader, writer = await asyncio.open_connection("127.0.0.1", world.port)
            writer.write(sent.encode())
            await writer.drain()
            if reads:
                assert (await reader.read()).startswith(b"HTTP/1.1 4")
            writer.transport.abort()
            await world.until(lambda: not world.connections)
    assert caplog.records == []


@in_world(limits={"upgrades_per_minute": 4})
async def test_strangers_are_refused_and_after_a_few_attempts_not_even_looked_at(world: World) -> None:
    for bearer in ("nonsense", "hamdam_aaaaaaaa_" + "x" * 43, "", "nonsense"):
        status, _ = await refused(world, additional_headers={"Authorization": f"Bearer {bearer}"} if bearer else {})
        assert status == 401
    status, headers = await refused(world, additional_headers={"Authorization": "Bearer nonsense"})
    assert status == 429
    assert int(headers["retry-after"]) > 0


@in_world()
async def test_g05_a_cookie_opens_the_socket_only_from_our_own_page(world: World) -> None:
    ours = await sign_in(world, "ana")
    own = ours["Origin"]
    async with connect(f"ws://127.0.0.1:{world.port}/ws", subprotocols=[PROTOCOL], additional_headers=ours):
        pass
    port = world.port
    for foreign in (
        "https://evil.example", "null", f"http://127.0.0.1.evil.example:{port}", f"https://127.0.0.1:{port}",
        f"http://127.0.0.1:{port + 1}", f"http://localhost:{port}", own + "/", "", None,
    ):  # fmt: skip
        headers = {"Cookie": ours["Cookie"]} | ({"Origin": foreign} if foreign is not None else {})
        assert (await refused(world, additional_headers=headers))[0] == 403, foreign


@in_world()
async def test_g05_a_key_needs_no_origin_and_a_key_with_a_cookie_is_refused(world: World) -> None:
    key = await world.key("ana")
    async with world.client(key) as ana:
        assert ana.hello["type"] == "session.created"
    both = await sign_in(world, "ana") | {"Authorization": f"Bearer {key}"}
    assert (await refused(world, additional_headers=both))[0] == 401
    with pytest.raises(InvalidStatus):
        async with connect(f"ws://127.0.0.1:{world.port}/ws?key={key}", subprotocols=[PROTOCOL]):
            pass


@in_world()
async def test_g05_http_and_socket_decide_alike_for_every_state_of_an_account(world: World) -> None:
    browser = await sign_in(world, "ana")
    program = {"Authorization": f"Bearer {await world.key('ana')}"}

    async def decisions(headers: dict[str, str]) -> set[int]:
        paths = ("/api/conversations", "/v1/models")
        async with world.http() as http:
            said = {(await http.get(path, headers=headers)).status_code for path in paths}
        try:
            async with connect(f"ws://127.0.0.1:{world.port}/ws", subprotocols=[PROTOCOL], additional_headers=headers):
                return said | {200}
        except InvalidStatus as error:
            return said | {error.response.status_code}

    for state, status in (("active", 200), ("disabled", 403), ("pending", 403), ("active", 200)):
        async with world.database.write() as sql:
            await sql.execute(update(User).values(state=state))
        assert [await decisions(headers) for headers in (browser, program)] == [{status}] * 2, state
    await revoke(world)
    async with world.database.write() as sql:
        await end_all_logins(sql, world.users["ana"])
    assert [await decisions(headers) for headers in (browser, program)] == [{401}] * 2


@in_world(limits={"sockets_per_user": 2})
async def test_a_user_has_so_many_sockets_and_a_service_key_as_many_as_it_needs(world: World) -> None:
    key = await world.key("ana")
    async with world.client(key), world.client(key):
        assert (await refused(world, additional_headers={"Authorization": f"Bearer {key}"}))[0] == 429
        async with world.client(await world.key("ana", service=True)), world.client(await world.key("bob")):
            pass
    await world.until(lambda: world.turns.audience.count(world.users["ana"]) == 0)
    async with world.client(key):
        pass


@in_world()
async def test_no_upgrade_while_the_server_drains_or_the_engine_is_dead(world: World, monkeypatch) -> None:
    bearer = {"Authorization": f"Bearer {await world.key('ana')}"}
    world.turns.draining = True
    assert (await refused(world, additional_headers=bearer))[0] == 503
    world.turns.draining = False
    monkeypatch.setattr(world.engine, "stats", lambda: EngineStats(state="dead"))
    assert (await refused(world, additional_headers=bearer))[0] == 503


@in_world()
async def test_a_bad_frame_is_refused_and_the_socket_stays(world: World) -> None:
    async with world.client(await world.key("ana")) as ana:
        assert (await ana.refused(type="no.such.type"))["code"] == "unknown_type"
        for frame in ("{not json", "[]", '{"t": NaN}', '{"a":' * 5000):
            await ana.connection.send(frame)
            assert (await ana.until("error"))["error"]["code"] == "invalid_json"
        await ana.send(type="ping", t=7, event_id="p")
        assert await ana.until("pong") == {"type": "pong", "t": 7, "in_reply_to": "p"}
        await ana.send(type="session.update", coalesce_ms=200, locale="fa-IR", event_id="u")
        updated = await ana.until("session.updated")
        assert updated == {"type": "session.updated", "coalesce_ms": 200, "locale": "fa-IR", "in_reply_to": "u"}


@pytest.mark.parametrize(("frame", "code"), [(b"bytes", 1003), ("x" * 2000, 1009)], ids=["binary", "too big"])
def test_frames_of_a_kind_we_do_not_take_close_the_socket(tmp_path, frame: str | bytes, code: int) -> None:
    @in_world(limits={"frame_bytes": 1000})
    async def scene(world: World) -> None:
        async with world.client(await world.key("ana")) as ana:
            await ana.connection.send(frame)
            assert await ana.closed() == code

    scene(tmp_path)


@in_world(limits={"events_per_second": 1, "event_burst": 2, "rate_grace_s": 0.0})
async def test_who_sends_too_much_is_told_and_who_insists_is_closed(world: World) -> None:
    async with world.client(await world.key("ana")) as ana:
        for _ in range(4):
            await ana.send(type="ping")
        error = await ana.until("error")
        assert error["error"]["code"] == "rate_limit_exceeded"
        assert error["error"]["retry_after_ms"] > 0
        assert await ana.closed() == 4429


async def disable(world: World) -> None:
    async with world.database.write() as sql:
        await sql.execute(update(User).values(state="disabled"))


async def revoke(world: World) -> None:
    async with world.database.write() as sql:
        for key in await sql.scalars(ApiKey.__table__.select().with_only_columns(ApiKey.id)):
            await revoke_key(sql, world.users["ana"], key)


async def expire(world: World) -> None:
    async with world.database.write() as sql:
        await sql.execute(update(ApiKey).values(expires_at=now_us() - 1))


async def promote(world: World) -> None:
    async with world.database.write() as sql:
        await sql.execute(update(User).values(role="admin"))


@pytest.mark.parametrize(("take", "code"), [(disable, 4403), (revoke, 4401), (expire, 4401), (promote, 4401)])
def test_g18_a_right_that_is_taken_away_closes_the_socket(tmp_path, take: Callable, code: int) -> None:
    @in_world(gate=True)
    async def scene(world: World) -> None:
        async with world.client(await world.key("ana")) as ana, world.client(await world.key("bob")) as bob:
            run = await ana.start("say one")
            if take is disable:
                await bob.connection.close()
            await take(world)
            assert await ana.closed() == code
            turn = world.turns.find(world.users["ana"], response_id=run.id)
            if take is disable:
                await turn.ended.wait()
                assert turn.status == "cancelled", "a disabled account's work ends"
            else:
                assert turn.end is None, "signing out does not stop what was asked"

    scene(tmp_path)


@in_world()
async def test_g18_signing_out_closes_the_sockets_of_that_sign_in_only(world: World) -> None:
    ours = await sign_in(world, "ana")
    key = await world.key("ana")
    async with world.client(key, additional_headers=ours) as tab, world.client(key) as other:
        async with world.database.write() as sql:
            assert await end_all_logins(sql, world.users["ana"]) == 1
        assert await tab.closed() == 4401
        assert (await refused(world, additional_headers=ours))[0] == 401
        await other.send(type="ping", t=1)
        assert (await other.until("pong"))["t"] == 1
    async with world.database.read() as sql:
        assert not (await sql.scalars(Login.__table__.select())).all()


@in_world()
async def test_g18_every_event_asks_again_whether_the_right_still_holds(world: World) -> None:
    async with world.client(await world.key("ana")) as ana:
        world.house.authenticator.watcher._watched.clear()  # as if the watcher had not looked yet
        await revoke(world)
        await ana.send(type="ping", event_id="p")
        assert (await ana.until("error"))["error"] | {"message": ""} == {
            "type": "authentication_error", "code": "unauthorized", "message": "", "event_id": "p",
        }  # fmt: skip
        assert await ana.closed() == 4401


@in_world()
async def test_a_sign_in_that_ends_soon_is_announced(world: World) -> None:
    headers = await sign_in(world, "ana")
    async with world.client("", additional_headers=headers) as ana:
        async with world.database.write() as sql:
            await sql.execute(update(Login).values(expires_at=now_us() + 100 * SECOND))
        assert 90 <= (await ana.until("session.expiring"))["in_s"] <= 100
