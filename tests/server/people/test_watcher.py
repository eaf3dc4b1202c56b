"""The watcher: a right that is lost, by whatever process, is told once and with its code."""
import asyncio
from collections.abc import Awaitable, Callable

import pytest
from lobby import Lobby, in_lobby, lobby
from sqlalchemy import select, update

from hamdam.server.people.accounts import Accounts
from hamdam.server.people.attempts import Attempts
from hamdam.server.people.identity import Forbidden, Identity, Unauthorized
from hamdam.server.people.keys import revoke_key
from hamdam.server.people.logins import AT_MOST, create_login, end_all_logins, end_login
from hamdam.server.people.watcher import DISABLED, SIGN_IN_ENDED
from hamdam.server.storage.clock import SECOND, now_us
from hamdam.server.storage.database import Database
from hamdam.server.storage.tables import ApiKey, Login, User


async def identities(lobby: Lobby) -> tuple[Identity, Identity]:
    """Ana at her browser, and a program with her key."""
    user = await lobby.person("ana")
    async with lobby.database.write() as sql:
        await create_login(sql, user)
    await lobby.key("ana")
    async with lobby.database.read() as sql:
        login, key = await sql.scalar(select(Login.id)), await sql.scalar(select(ApiKey.id))
    return Identity(user, "ana", "member", login_id=login), Identity(user, "ana", "member", key_id=key)


Deed = Callable[[Lobby, Identity, Identity], Awaitable[object]]


async def sign_out(lobby: Lobby, browser: Identity, program: Identity) -> None:
    async with lobby.database.write() as sql:
        await end_login(sql, browser.user_id, browser.login_id or "")


async def sign_out_everywhere(lobby: Lobby, browser: Identity, program: Identity) -> None:
    async with lobby.database.write() as sql:
        await end_all_logins(sql, browser.user_id)


async def sign_in_too_often(lobby: Lobby, browser: Identity, program: Identity) -> None:
    async with lobby.database.write() as sql:
        for _ in range(AT_MOST):
            await create_login(sql, browser.user_id)


async def revoke(lobby: Lobby, browser: Identity, program: Identity) -> None:
    async with lobby.database.write() as sql:
        await revoke_key(sql, program.user_id, program.key_id or "")


async def run_out(lobby: Lobby, browser: Identity, program: Identity) -> None:
    async with lobby.database.write() as sql:
        await sql.execute(update(Login).values(expires_at=now_us() - 1))
        await sql.execute(update(ApiKey).values(expires_at=now_us() - 1))


async def promote(lobby: Lobby, browser: Identity, program: Identity) -> None:
    async with lobby.database.write() as sql:
        await sql.execute(update(User).values(role="admin"))


async def reset_password(lobby: Lobby, browser: Identity, program: Identity) -> None:
    await lobby.house.accounts.set_password("ana", "another good passphrase")


async def disable(lobby: Lobby, browser: Identity, program: Identity) -> None:
    await lobby.house.accounts.set_state("ana", "disabled")


async def delete(lobby: Lobby, browser: Identity, program: Identity) -> None:
    await lobby.house.accounts.delete("ana")


@pytest.mark.parametrize(
    ("deed", "browser_is_told", "program_is_told"),
    [
        (sign_out, SIGN_IN_ENDED, None),
        (sign_out_everywhere, SIGN_IN_ENDED, None),
        (reset_password, SIGN_IN_ENDED, None),
        (sign_in_too_often, SIGN_IN_ENDED, None),
        (revoke, None, SIGN_IN_ENDED),
        (run_out, SIGN_IN_ENDED, SIGN_IN_ENDED),
        (promote, SIGN_IN_ENDED, SIGN_IN_ENDED),
        (disable, DISABLED, DISABLED),
        (delete, SIGN_IN_ENDED, SIGN_IN_ENDED),
    ],
)
def test_g18_each_loss_is_told_to_whom_it_concerns(tmp_path, deed: Deed, browser_is_told, program_is_told) -> None:
    @in_lobby()
    async def scene(lobby: Lobby) -> None:
        authenticator = lobby.house.authenticator
        browser, program = await identities(lobby)
        told: dict[str, list[int]] = {"browser": [], "program": []}
        authenticator.watch(browser, told["browser"].append)
        authenticator.watch(program, told["program"].append)
        await authenticator.watcher.look()
        await asyncio.sleep(0)
        assert told == {"browser": [], "program": []}
        await deed(lobby, browser, program)
        for _ in range(3):
            await authenticator.watcher.look()
            await asyncio.sleep(0)
        said = {"browser": browser_is_told, "program": program_is_told}
        assert told == {name: [code] if code else [] for name, code in said.items()}

    scene(tmp_path=tmp_path)


@pytest.mark.parametrize(
    ("deed", "browser_is", "program_is"),
    [
        (sign_out, Unauthorized, None),
        (revoke, None, Unauthorized),
        (run_out, Unauthorized, Unauthorized),
        (disable, Unauthorized, Forbidden),
        (delete, Unauthorized, Unauthorized),
    ],
)
def test_g18_the_check_of_every_event_sees_it_at_once(tmp_path, deed: Deed, browser_is, program_is) -> None:
    @in_lobby()
    async def scene(lobby: Lobby) -> None:
        check = lobby.house.authenticator.check
        browser, program = await identities(lobby)
        assert (await check(browser), await check(program)) == (browser, program)
        await deed(lobby, browser, program)
        for identity, error in ((browser, browser_is), (program, program_is)):
            if error is None:
                assert await check(identity) == identity
            else:
                with pytest.raises(error):
                    await check(identity)

    scene(tmp_path=tmp_path)


@in_lobby()
async def test_the_check_gives_the_role_of_now(lobby: Lobby) -> None:
    browser, program = await identities(lobby)
    await promote(lobby, browser, program)
    assert (await lobby.house.authenticator.check(browser)).role == "admin"


@in_lobby()
async def test_who_stopped_watching_is_told_nothing(lobby: Lobby) -> None:
    browser, _ = await identities(lobby)
    told: list[int] = []
    unwatch = lobby.house.authenticator.watch(browser, told.append)
    unwatch()
    unwatch()
    await sign_out_everywhere(lobby, browser, browser)
    await lobby.house.authenticator.watcher.look()
    await asyncio.sleep(0)
    assert told == []


def test_a_loss_by_another_process_is_told_by_the_task_itself(tmp_path) -> None:
    """As the `hamdam` command does it: another Database on the same file, and nobody is asked to look."""

    async def scene() -> None:
        async with lobby(tmp_path) as here:
            browser, program = await identities(here)
            told = [asyncio.get_running_loop().create_future() for _ in range(2)]
            watching = asyncio.create_task(here.house.authenticator.watcher.run())
            for identity, future in zip((browser, program), told, strict=True):
                here.house.authenticator.watch(identity, future.set_result)
            other = await Database.attach(here.database.path)
            await Accounts(other, here.house.accounts.passwords, Attempts()).set_state("ana", "disabled")
            await other.close()
            assert await asyncio.wait_for(asyncio.gather(*told), 10) == [DISABLED, DISABLED]
            watching.cancel()
            await asyncio.wait({watching})

    asyncio.run(scene())


@in_lobby()
async def test_a_callback_that_breaks_does_not_blind_the_watcher(lobby: Lobby) -> None:
    browser, program = await identities(lobby)
    broken: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: broken.append(context["exception"]))

    def breaks(code: int) -> None:
        raise KeyError(code)

    told: list[int] = []
    lobby.house.authenticator.watch(browser, breaks)
    lobby.house.authenticator.watch(program, told.append)
    await disable(lobby, browser, program)
    await lobby.house.authenticator.watcher.look()
    await asyncio.sleep(0)
    assert told == [DISABLED]
    assert len(broken) == 1


@in_lobby()
async def test_a_sign_in_that_ends_soon_is_said_once_until_it_is_put_off(lobby: Lobby) -> None:
    browser, program = await identities(lobby)
    left: list[int] = []
    lost: list[int] = []
    for identity in (browser, program):
        lobby.house.authenticator.watch(identity, lost.append, left.append)

    async def look(seconds: int) -> None:
        async with lobby.database.write() as sql:
            await sql.execute(update(Login).values(expires_at=now_us() + seconds * SECOND))
        for _ in range(3):
            await lobby.house.authenticator.watcher.look()
        await asyncio.sleep(0)

    await look(301)
    assert left == []
    await look(299)
    assert len(left) == 1 and 290 <= left[0] <= 299
    await look(200)
    assert len(left) == 1
    await look(86_400)
    await look(100)
    assert len(left) == 2 and left[1] <= 100, "it was used in between"
    await look(-1)
    assert lost == [SIGN_IN_ENDED], "the key goes on"
