"""Signing in and out over HTTP: cookies that are secrets, answers that tell nothing, rights that end."""
import asyncio

import pytest
from lobby import PASSWORD, Lobby, in_lobby
from sqlalchemy import select, update

from hamdam.server.people.logins import AT_MOST, LASTS, TOUCHED_EVERY, create_login
from hamdam.server.storage.clock import now_us
from hamdam.server.storage.tables import Login


def session(client) -> str:
    return client.cookies["hamdam"]


@in_lobby()
async def test_signing_in_gives_a_cookie_that_opens_the_door(lobby: Lobby) -> None:
    await lobby.person("Ana", role="admin")
    async with lobby.browser() as ana:
        assert (await ana.get("/api/me")).status_code == 401
        said = await ana.post("/api/sign-in", json={"name": " ANA ", "password": PASSWORD})
        assert said.status_code == 200
        cookie = said.headers["set-cookie"]
        assert cookie.startswith("hamdam=")
        assert {"HttpOnly", "SameSite=lax", "Path=/"} <= {part.strip() for part in cookie.split(";")}
        assert "Secure" not in cookie and "Domain" not in cookie
        me = (await ana.get("/api/me")).json()["user"]
        assert (me["name"], me["role"], me["id"]) == ("Ana", "admin", lobby.users["Ana"])
    assert await lobby.audited() == ["user created", "sign-in"]


@in_lobby(public_url="https://chat.example.org")
async def test_behind_https_the_cookie_is_bound_to_the_host(lobby: Lobby) -> None:
    await lobby.person("ana")
    async with lobby.browser() as ana:
        said = await ana.post("/api/sign-in", json={"name": "ana", "password": PASSWORD})
        cookie = said.headers["set-cookie"]
        assert cookie.startswith("__Host-hamdam=")
        assert {"Secure", "HttpOnly", "Path=/"} <= {part.strip() for part in cookie.split(";")}
        assert "Domain" not in cookie


@in_lobby()
async def test_wrong_name_wrong_password_and_disabled_sound_the_same(lobby: Lobby) -> None:
    await lobby.person("ana")
    await lobby.person("gone")
    await lobby.house.accounts.set_state("gone", "disabled")
    answers = []
    async with lobby.browser() as somebody:
        wrong = (("ana", "wrong"), ("nobody", PASSWORD), ("gone", PASSWORD), ("\x00\u202e", "x" * 1000), ("", ""))
        for name, password in wrong:
            said = await somebody.post("/api/sign-in", json={"name": name, "password": password})
            answers.append((said.status_code, said.json(), "set-cookie" in said.headers))
    assert len({str(answer) for answer in answers}) == 1
    assert answers[0][0] == 401


@in_lobby()
async def test_the_sixth_guess_is_refused_whatever_address_is_claimed(lobby: Lobby) -> None:
    await lobby.person("ana")
    statuses = []
    for i in range(8):
        async with lobby.browser() as somebody:
            claimed = f"198.51.100.{i}"
            forged = {"x-forwarded-for": claimed, "x-real-ip": claimed, "forwarded": f"for={claimed}"}
            said = await somebody.post("/api/sign-in", json={"name": "ana", "password": "wrong"}, headers=forged)
            statuses.append(said.status_code)
    assert statuses == [401] * 5 + [429] * 3
    assert 0 < int(said.headers["retry-after"]) <= 13
    async with lobby.browser(address="10.9.9.9") as ana:  # she herself, from elsewhere
        assert (await ana.post("/api/sign-in", json={"name": "ana", "password": PASSWORD})).status_code == 200


@in_lobby()
async def test_g18_the_secret_is_new_at_every_sign_in_and_the_old_one_ends(lobby: Lobby) -> None:
    await lobby.person("ana")
    async with lobby.browser("ana") as ana:
        first = session(ana)
        await ana.post("/api/sign-in", json={"name": "ana", "password": PASSWORD})
        assert session(ana) != first
        assert (await ana.get("/api/me")).status_code == 200
    async with lobby.browser() as thief:
        thief.cookies["hamdam"] = first
        assert (await thief.get("/api/me")).status_code == 401


@in_lobby()
async def test_g18_a_planted_cookie_is_worth_nothing_after_the_sign_in(lobby: Lobby) -> None:
    await lobby.person("ana")
    async with lobby.browser() as ana:
        ana.cookies.set("hamdam", "planted", domain="chat.test")
        said = await ana.post("/api/sign-in", json={"name": "ana", "password": PASSWORD})
        assert "planted" not in said.headers["set-cookie"]
    async with lobby.browser() as attacker:
        attacker.cookies["hamdam"] = "planted"
        assert (await attacker.get("/api/me")).status_code == 401


@in_lobby()
async def test_g18_signing_out_ends_the_cookie_for_everyone_who_has_it(lobby: Lobby) -> None:
    await lobby.person("ana")
    async with lobby.browser("ana") as ana, lobby.browser("ana") as phone:
        cookie = session(ana)
        said = await ana.post("/api/sign-out")
        assert said.status_code == 204
        assert 'hamdam="";' in said.headers["set-cookie"]
        ana.cookies["hamdam"] = cookie
        assert (await ana.get("/api/me")).status_code == 401
        assert (await phone.get("/api/me")).status_code == 200
        assert (await ana.post("/api/sign-out")).status_code == 204, "signing out again is no error"


@in_lobby()
async def test_sign_ins_are_listed_and_ended_one_by_one_or_all(lobby: Lobby) -> None:
    await lobby.person("ana")
    await lobby.person("ben")
    async with lobby.browser("ana") as ana, lobby.browser("ana") as phone, lobby.browser("ben") as ben:
        listed = (await ana.get("/api/logins")).json()["data"]
        assert [one["current"] for one in listed].count(True) == 1
        assert len(listed) == 2
        other = next(one["id"] for one in listed if not one["current"])
        assert (await ben.delete(f"/api/logins/{other}")).status_code == 404
        unknown = await ben.delete("/api/logins/login_nothing")
        assert unknown.json() == (await ben.delete(f"/api/logins/{other}")).json()
        assert (await phone.get("/api/me")).status_code == 200
        assert (await ana.delete(f"/api/logins/{other}")).status_code == 204
        assert (await phone.get("/api/me")).status_code == 401
        assert (await ana.delete("/api/logins")).status_code == 204
        assert (await ana.get("/api/me")).status_code == 401
        assert (await ben.get("/api/me")).status_code == 200


@in_lobby()
async def test_g18_a_new_password_and_disabling_end_every_sign_in(lobby: Lobby) -> None:
    await lobby.person("ana")
    async with lobby.browser("ana") as ana:
        await lobby.house.accounts.set_password("ana", "another good passphrase")
        assert (await ana.get("/api/me")).status_code == 401
        for password, status in ((PASSWORD, 401), ("another good passphrase", 200)):
            said = await ana.post("/api/sign-in", json={"name": "ana", "password": password})
            assert said.status_code == status
        await lobby.house.accounts.set_state("ana", "disabled")
        assert (await ana.get("/api/me")).status_code == 401
        await lobby.house.accounts.set_state("ana", "active")
        assert (await ana.get("/api/me")).status_code == 401, "a stolen cookie must not come back to life"


@in_lobby()
async def test_a_sign_in_slides_while_it_is_used_and_runs_out_when_it_is_not(lobby: Lobby) -> None:
    await lobby.person("ana")

    async def expiry() -> int:
        async with lobby.database.read() as sql:
            return await sql.scalar(select(Login.expires_at))

    async def set_used(at: int) -> None:
        async with lobby.database.write() as sql:
            await sql.execute(update(Login).values(last_used_at=at, expires_at=at + LASTS))

    async with lobby.browser("ana") as ana:
        await set_used(now_us() - TOUCHED_EVERY - 1)
        assert (await ana.get("/api/me")).status_code == 200
        slid = await expiry()
        assert slid > now_us() + LASTS - TOUCHED_EVERY
        assert (await ana.get("/api/me")).status_code == 200
        assert await expiry() == slid, "not a write for every request"
        await set_used(now_us() - LASTS - 1)
        assert (await ana.get("/api/me")).status_code == 401


@in_lobby()
async def test_the_least_used_sign_in_ends_when_there_are_too_many(lobby: Lobby) -> None:
    user = await lobby.person("ana")
    async with lobby.database.write() as sql:
        secrets = [await create_login(sql, user) for _ in range(AT_MOST + 3)]
    async with lobby.browser() as ana:
        for place, alive in ((0, 401), (2, 401), (3, 200), (-1, 200)):
            ana.cookies["hamdam"] = secrets[place]
            assert (await ana.get("/api/me")).status_code == alive, place


@in_lobby()
async def test_nothing_in_the_database_signs_in(lobby: Lobby) -> None:
    await lobby.person("ana")
    async with lobby.browser("ana") as ana:
        secret = session(ana)
        async with lobby.database.read() as sql:
            stored = (await sql.execute(select(Login))).scalar_one()
        assert secret not in (stored.secret_hash, stored.id)
        assert len(secret) >= 43
        for forged in (stored.secret_hash, stored.id, "", "null", "0", secret[:-1], secret.upper()):
            ana.cookies.clear()
            ana.cookies["hamdam"] = forged
            assert (await ana.get("/api/me")).status_code == 401, forged


@pytest.mark.parametrize(
    ("body", "code", "param"),
    [
        (b"{", "invalid_json", None),
        (b"", "invalid_json", None),
        (b"[" * 5000, "invalid_field", None),
        (b"[]", "invalid_field", None),
        (b'{"zzz": ' + b"[" * 100_000, "invalid_field", "zzz"),
        (b'{"name": "ana"}', "invalid_field", "password"),
        (b'{"name": 1, "password": "x"}', "invalid_field", "name"),
        (b'{"name": "ana", "password": "x", "role": "admin"}', "invalid_field", "role"),
        (b'{"name": "' + b"x" * 2000 + b'", "password": "x"}', "invalid_field", "name"),
    ],
)
def test_a_body_is_read_strictly(tmp_path, body: bytes, code: str, param: str | None) -> None:
    @in_lobby()
    async def scene(lobby: Lobby) -> None:
        async with lobby.browser() as somebody:
            said = await somebody.post("/api/sign-in", content=body)
        assert said.status_code == 400
        error = said.json()["error"]
        assert (error["code"], error.get("param")) == (code, param)

    scene(tmp_path=tmp_path)


@in_lobby()
async def test_sign_ins_at_the_same_time_are_all_true(lobby: Lobby) -> None:
    names = [f"user{i}" for i in range(6)]
    for name in names:
        await lobby.person(name)

    async def one(name: str) -> str:
        async with lobby.browser(name) as client:
            return (await client.get("/api/me")).json()["user"]["name"]

    assert await asyncio.gather(*(one(name) for name in names)) == names
