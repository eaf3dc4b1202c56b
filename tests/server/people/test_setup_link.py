"""The set-up link: makes the first admin, once, and nothing else does."""
import asyncio

from lobby import PASSWORD, Lobby, in_lobby
from sqlalchemy import select

from hamdam.server.storage.tables import SetupLink, User


def first(token: str | None, name: str = "Boss") -> dict[str, str | None]:
    return {"token": token, "name": name, "password": PASSWORD}


@in_lobby()
async def test_the_link_makes_an_admin_who_is_signed_in(lobby: Lobby) -> None:
    token = await lobby.house.set_up.renew()
    async with lobby.browser() as boss:
        assert (await boss.post("/api/setup", json=first(token))).status_code == 201
        assert (await boss.get("/api/me")).json()["user"]["role"] == "admin"
    assert await lobby.house.set_up.renew() is None
    assert await lobby.audited() == ["first admin created"]


@in_lobby()
async def test_g10_a_fresh_server_has_no_account_and_no_default_opens_it(lobby: Lobby) -> None:
    assert await lobby.house.accounts.list() == []
    for name in ("admin", "root", "hamdam"):
        for password in ("admin", "admin123", "password", "change-me", "hamdam", ""):
            async with lobby.browser(address=f"10.{len(name)}.{len(password)}.1") as somebody:
                said = await somebody.post("/api/sign-in", json={"name": name, "password": password})
            assert said.status_code in (401, 429)


@in_lobby()
async def test_the_link_works_once_even_for_many_at_once(lobby: Lobby) -> None:
    token = await lobby.house.set_up.renew()

    async def redeem(i: int) -> int:
        async with lobby.browser(address=f"10.0.0.{i}") as one:
            return (await one.post("/api/setup", json=first(token, f"Boss {i}"))).status_code

    assert sorted(await asyncio.gather(*(redeem(i) for i in range(5)))) == [201, 403, 403, 403, 403]
    async with lobby.database.read() as sql:
        assert len((await sql.scalars(select(User))).all()) == 1


@in_lobby()
async def test_a_refused_name_or_password_does_not_use_the_link_up(lobby: Lobby) -> None:
    token = await lobby.house.set_up.renew()
    async with lobby.browser() as boss:
        assert (await boss.post("/api/setup", json=first(token, ""))).status_code == 400
        weak = await boss.post("/api/setup", json=first(token) | {"password": "password"})
        assert (weak.status_code, weak.json()["error"]["param"]) == (400, "password")
        assert (await boss.post("/api/setup", json=first(token))).status_code == 201


@in_lobby()
async def test_a_wrong_link_makes_nobody_and_cannot_be_tried_for_ever(lobby: Lobby) -> None:
    token = await lobby.house.set_up.renew()
    async with lobby.database.read() as sql:
        stored = await sql.scalar(select(SetupLink.secret_hash))
    async with lobby.browser() as somebody:
        wrong = ["", "x", stored, token[:-1], token + "x", "y"]
        statuses = [(await somebody.post("/api/setup", json=first(one))).status_code for one in wrong]
    assert statuses == [403, 403, 403, 403, 403, 429]
    async with lobby.database.read() as sql:
        assert await sql.scalar(select(User.id)) is None


@in_lobby()
async def test_a_new_start_voids_the_old_link(lobby: Lobby) -> None:
    old = await lobby.house.set_up.renew()
    new = await lobby.house.set_up.renew()
    assert not await lobby.house.set_up.valid(old)
    assert await lobby.house.set_up.valid(new)


@in_lobby()
async def test_an_admin_made_by_the_command_voids_the_link(lobby: Lobby) -> None:
    token = await lobby.house.set_up.renew()
    await lobby.person("member")
    assert await lobby.house.set_up.valid(token)
    await lobby.person("boss", role="admin")
    assert not await lobby.house.set_up.valid(token)
    async with lobby.browser() as late:
        assert (await late.post("/api/setup", json=first(token))).status_code == 403


@in_lobby()
async def test_disabling_the_only_admin_opens_no_way_for_another(lobby: Lobby) -> None:
    await lobby.person("boss", role="admin")
    await lobby.house.accounts.set_state("boss", "disabled")
    assert await lobby.house.set_up.renew() is None
