"""API keys: shown once, kept as a hash, revoked for good, and never able to make themselves another."""
import re

from lobby import Lobby, in_lobby
from sqlalchemy import select, update

from hamdam.server.people.keys import TOUCHED_EVERY
from hamdam.server.storage.clock import now_us
from hamdam.server.storage.tables import ApiKey


@in_lobby()
async def test_a_key_opens_the_door_and_is_shown_once(lobby: Lobby) -> None:
    await lobby.person("ana")
    async with lobby.browser("ana") as ana:
        made = await ana.post("/api/keys", json={"name": "  my   script "})
        assert made.status_code == 201
        key = made.json()["key"]
        assert re.fullmatch(r"hamdam_[a-z0-9]{8}_[A-Za-z0-9_-]{43}", key)
        listed = (await ana.get("/api/keys")).json()["data"]
    assert [(one["prefix"], one["name"], one["last_used_at"]) for one in listed] == [(key[:15], "my script", None)]
    assert key not in str(listed)
    async with lobby.database.read() as sql:
        stored = (await sql.execute(select(ApiKey))).scalar_one()
    assert key.removeprefix(stored.prefix) not in (stored.hash, stored.id)
    async with lobby.program(key) as program:
        assert (await program.get("/api/me")).json()["user"]["name"] == "ana"


@in_lobby()
async def test_g18_a_revoked_key_is_nobody(lobby: Lobby) -> None:
    await lobby.person("ana")
    await lobby.person("ben")
    key = await lobby.key("ana")
    async with lobby.browser("ana") as ana, lobby.browser("ben") as ben, lobby.program(key) as program:
        key_id = (await ana.get("/api/keys")).json()["data"][0]["id"]
        assert (await ben.delete(f"/api/keys/{key_id}")).status_code == 404
        assert (await program.get("/api/me")).status_code == 200
        assert (await ana.delete(f"/api/keys/{key_id}")).status_code == 204
        assert (await program.get("/api/me")).status_code == 401
        assert (await ana.delete(f"/api/keys/{key_id}")).status_code == 404
        assert (await ana.get("/api/keys")).json()["data"] == []


@in_lobby()
async def test_a_key_that_ran_out_is_nobody(lobby: Lobby) -> None:
    await lobby.person("ana")
    async with lobby.browser("ana") as ana:
        made = (await ana.post("/api/keys", json={"expires_in_days": 1})).json()
        assert made["expires_at"] > made["created_at"]
        assert (await ana.post("/api/keys", json={"expires_in_days": 0})).status_code == 400
    async with lobby.program(made["key"]) as program:
        assert (await program.get("/api/me")).status_code == 200
        async with lobby.database.write() as sql:
            await sql.execute(update(ApiKey).values(expires_at=now_us() - 1))
        assert (await program.get("/api/me")).status_code == 401


@in_lobby()
async def test_a_key_cannot_make_keys_or_touch_sign_ins(lobby: Lobby) -> None:
    await lobby.person("boss", role="admin")
    async with lobby.program(await lobby.key("boss")) as program:
        asked = [
            await program.get("/api/keys"),
            await program.post("/api/keys", json={}),
            await program.delete("/api/keys/key_x"),
            await program.get("/api/logins"),
            await program.delete("/api/logins"),
        ]
    assert [said.status_code for said in asked] == [403] * 5


@in_lobby()
async def test_only_an_admin_makes_a_key_that_speaks_for_many(lobby: Lobby) -> None:
    await lobby.person("ana")
    await lobby.person("boss", role="admin")
    async with lobby.browser("ana") as ana, lobby.browser("boss") as boss:
        assert (await ana.post("/api/keys", json={"service": True})).status_code == 403
        assert (await boss.post("/api/keys", json={"service": True})).json()["service"] is True


@in_lobby()
async def test_the_last_use_is_kept_but_not_written_for_every_request(lobby: Lobby) -> None:
    await lobby.person("ana")

    async def used() -> int | None:
        async with lobby.database.read() as sql:
            return await sql.scalar(select(ApiKey.last_used_at))

    async with lobby.program(await lobby.key("ana")) as program:
        await program.get("/api/me")
        first = await used()
        assert first is not None
        await program.get("/api/me")
        assert await used() == first
        async with lobby.database.write() as sql:
            await sql.execute(update(ApiKey).values(last_used_at=first - TOUCHED_EVERY))
        await program.get("/api/me")
        assert await used() > first


@in_lobby()
async def test_every_spelling_that_is_not_the_key_is_nobody(lobby: Lobby) -> None:
    await lobby.person("ana")
    key = await lobby.key("ana")
    async with lobby.program() as program:
        for right in (f"Bearer {key}", f"bearer {key}", f"BEARER  {key} "):
            assert (await program.get("/api/me", headers={"authorization": right})).status_code == 200, right
        keys = [f"Bearer {wrong}" for wrong in ("", "null", key + "x", key[:-1], key.upper())]
        for wrong in [*keys, key, "Bearer", f"Basic {key}", f"Token {key}"]:
            assert (await program.get("/api/me", headers={"authorization": wrong})).status_code == 401, wrong
        assert (await program.get(f"/api/me?key={key}&token={key}&access_token={key}")).status_code == 401
        assert (await program.get("/api/me", headers={"x-api-key": key})).status_code == 401
        twice = [("authorization", f"Bearer {key}"), ("authorization", f"Bearer {key}")]
        assert (await program.get("/api/me", headers=twice)).status_code == 401


@in_lobby()
async def test_cookie_and_key_together_are_refused(lobby: Lobby) -> None:
    await lobby.person("ana")
    key = await lobby.key("ana")
    async with lobby.browser("ana") as ana:
        said = await ana.get("/api/me", headers={"authorization": f"Bearer {key}"})
        assert (said.status_code, said.json()["error"]["code"]) == (401, "unauthorized")


@in_lobby()
async def test_a_disabled_owner_s_key_rests_and_a_deleted_one_s_is_gone(lobby: Lobby) -> None:
    await lobby.person("ana")
    async with lobby.program(await lobby.key("ana")) as program:
        await lobby.house.accounts.set_state("ana", "disabled")
        assert (await program.get("/api/me")).status_code == 403
        await lobby.house.accounts.set_state("ana", "active")
        assert (await program.get("/api/me")).status_code == 200
        await lobby.house.accounts.delete("ana")
        assert (await program.get("/api/me")).status_code == 401
    assert (await lobby.audited())[-3:] == ["user disabled", "user active", "user deleted"]
