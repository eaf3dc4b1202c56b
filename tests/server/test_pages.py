"""The pages as HTML: who gets which, what the forms refuse, where a sign-in leads, and what may be kept by whom."""
import asyncio
import json
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from argon2 import PasswordHasher
from scripted import scripted_engine

from hamdam.server.app import create_app
from hamdam.server.assets import Assets
from hamdam.server.locales import Locales
from hamdam.server.pages import page_routes
from hamdam.server.people.passwords import Passwords
from hamdam.server.settings import Settings
from hamdam.server.storage.database import Database

ADDRESS = "http://hamdam.test"
PASSWORD = "a good long password"
OURS = {"origin": ADDRESS}


class Visit:
    """Somebody with a browser at a server of its own."""

    def __init__(self, client: httpx.AsyncClient, house: Any) -> None:
        self.client, self.house = client, house

    async def page(self, path: str, **options: Any) -> httpx.Response:
        return await self.client.get(path, **options)

    async def post(self, path: str, **form: str) -> httpx.Response:
        return await self.client.post(path, data=form, headers=OURS)

    async def sign_in(self, name: str = "Sara") -> None:
        await self.house.accounts.create(name, PASSWORD)
        assert (await self.post("/sign-in", name=name, password=PASSWORD)).status_code == 303


@asynccontextmanager
async def visit(data: Path) -> AsyncIterator[Visit]:
    database = await Database.open(data / "hamdam.db")
    cheap = Passwords(PasswordHasher(time_cost=1, memory_cost=8, parallelism=1))
    app = create_app(Settings(data=data), scripted_engine(), database, passwords=cheap)
    transport = httpx.ASGITransport(app, client=("10.0.0.7", 1))
    try:
        async with httpx.AsyncClient(transport=transport, base_url=ADDRESS) as client:
            yield Visit(client, app.state.house)
    finally:
        await database.close()


def at_a_server(data: Path, scene: Callable[[Visit], Awaitable[None]]) -> None:
    async def play() -> None:
        async with visit(data) as visitor:
            await scene(visitor)

    asyncio.run(play())


def state_of(page: str) -> dict[str, Any]:
    found = re.search(r'<script type="application/json" id="state">(.*?)</script>', page, re.DOTALL)
    assert found
    return json.loads(found[1])


def test_who_is_not_signed_in_is_led_to_the_door_and_back(tmp_path: Path) -> None:
    async def scene(visitor: Visit) -> None:
        led = await visitor.page("/c/conv_1")
        assert (led.status_code, led.headers["location"]) == (303, "/sign-in?next=/c/conv_1")
        await visitor.house.accounts.create("Sara", PASSWORD)
        back = await visitor.post("/sign-in", name="sara", password=PASSWORD, next="/c/conv_1")
        assert (back.status_code, back.headers["location"]) == (303, "/c/conv_1")
        assert (await visitor.page("/")).status_code == 200
        assert (await visitor.page("/sign-in")).headers["location"] == "/"

    at_a_server(tmp_path, scene)


ELSEWHERE = (
    "//evil.example", "https://evil.example", "/\\evil.example", "/c/../../evil", "javascript:x", "/c/x\n", "/api/me",
)  # fmt: skip


@pytest.mark.parametrize("following", ELSEWHERE)
def test_a_sign_in_leads_nowhere_but_to_our_own_pages(tmp_path: Path, following: str) -> None:
    async def scene(visitor: Visit) -> None:
        await visitor.house.accounts.create("Sara", PASSWORD)
        led = await visitor.post("/sign-in", name="Sara", password=PASSWORD, next=following)
        assert led.headers["location"] == "/"

    at_a_server(tmp_path, scene)


def test_a_refused_sign_in_says_the_same_for_every_reason_and_keeps_the_name(tmp_path: Path) -> None:
    async def scene(visitor: Visit) -> None:
        await visitor.house.accounts.create("Sara", PASSWORD)
        wrong = await visitor.post("/sign-in", name="Sara", password="not this")
        unknown = await visitor.post("/sign-in", name="Sarb", password="not this")
        assert wrong.status_code == unknown.status_code == 401
        assert wrong.text.replace("Sara", "Sarb") == unknown.text
        assert 'value="Sara"' in wrong.text
        assert "not this" not in wrong.text
        assert "set-cookie" not in wrong.headers

    at_a_server(tmp_path, scene)


def test_a_form_of_another_site_is_refused(tmp_path: Path) -> None:
    async def scene(visitor: Visit) -> None:
        await visitor.house.accounts.create("Sara", PASSWORD)
        form = {"name": "Sara", "password": PASSWORD}
        for origin in ("https://evil.example", "null"):
            sent = await visitor.client.post("/sign-in", data=form, headers={"origin": origin})
            assert sent.status_code == 403
            assert "set-cookie" not in sent.headers

    at_a_server(tmp_path, scene)


def test_the_set_up_link_shows_its_form_until_it_is_used(tmp_path: Path) -> None:
    async def scene(visitor: Visit) -> None:
        assert (await visitor.page("/set-up?token=guess")).status_code == 404
        token = await visitor.house.set_up.renew()
        shown = await visitor.page(f"/set-up?token={token}")
        assert shown.status_code == 200
        assert token in shown.text
        refused = await visitor.post("/set-up", token=token, name="Sara", password="short")
        assert refused.status_code == 400
        assert "at least 8 characters" in refused.text
        done = await visitor.post("/set-up", token=token, name="Sara", password=PASSWORD)
        assert (done.status_code, done.headers["location"]) == (303, "/")
        assert (await visitor.page("/")).status_code == 200
        assert (await visitor.page(f"/set-up?token={token}")).status_code == 404
        assert (await visitor.post("/set-up", token=token, name="Eve", password=PASSWORD)).status_code == 404

    at_a_server(tmp_path, scene)


def test_a_new_server_says_where_its_first_account_comes_from(tmp_path: Path) -> None:
    async def scene(visitor: Visit) -> None:
        assert "has no accounts yet" in (await visitor.page("/sign-in")).text
        await visitor.house.accounts.create("Sara", PASSWORD, role="admin")
        assert "has no accounts yet" not in (await visitor.page("/sign-in")).text

    at_a_server(tmp_path, scene)


def test_the_chat_comes_with_its_first_state(tmp_path: Path) -> None:
    async def scene(visitor: Visit) -> None:
        await visitor.sign_in("Sara <b>")
        page = (await visitor.page("/")).text
        state = state_of(page)
        assert state["user"] == {"name": "Sara <b>"}
        assert state["conversations"] == {"data": [], "next_cursor": None}
        assert state["current"] is None
        assert state["words"]["composer.send"] == "Send"
        assert "<b>" not in page

    at_a_server(tmp_path, scene)


def test_what_is_not_mine_is_not_there(tmp_path: Path) -> None:
    async def scene(visitor: Visit) -> None:
        await visitor.sign_in()
        gone = await visitor.page("/c/conv_00000000-0000-7000-8000-000000000000")
        assert gone.status_code == 404
        assert "There is nothing here" in gone.text

    at_a_server(tmp_path, scene)


def test_g06_every_page_has_the_strict_policy_and_is_kept_by_nobody(tmp_path: Path) -> None:
    async def scene(visitor: Visit) -> None:
        doors = [await visitor.page(path) for path in ("/sign-in", "/set-up?token=x", "/no/such/page", "/")]
        await visitor.sign_in()
        for page in [*doors, await visitor.page("/"), await visitor.page("/c/nothing")]:
            policy = page.headers["content-security-policy"]
            assert "default-src 'none'" in policy
            assert "unsafe" not in policy
            assert page.headers["cache-control"] == "no-store"
            assert not re.search(r"<script(?![^>]*(src=|json))|<style|\sstyle=|\son\w+=", page.text)

    at_a_server(tmp_path, scene)


def test_programs_are_not_answered_with_pages(tmp_path: Path) -> None:
    async def scene(visitor: Visit) -> None:
        for path in ("/api/nothing", "/v1/nothing"):
            assert (await visitor.page(path)).json()["error"]["code"] == "not_found"
        assert (await visitor.page("/api/sign-in")).status_code == 405
        assert (await visitor.page("/nothing")).headers["content-type"].startswith("text/html")

    at_a_server(tmp_path, scene)


def test_the_theme_is_drawn_by_the_server_and_nothing_else_can_be_put_there(tmp_path: Path) -> None:
    async def scene(visitor: Visit) -> None:
        dark = await visitor.page("/sign-in", headers={"cookie": "theme=dark"})
        assert '<html lang="en" dir="ltr" data-theme="dark">' in dark.text
        other = await visitor.page("/sign-in", headers={"cookie": 'theme="><script>'})
        assert '<html lang="en" dir="ltr">' in other.text

    at_a_server(tmp_path, scene)


def test_assets_are_kept_for_ever_and_what_is_no_asset_is_not(tmp_path: Path) -> None:
    async def scene(visitor: Visit) -> None:
        await visitor.sign_in()
        style = re.search(r'href="(/static/hamdam-[^"]+\.css)"', (await visitor.page("/")).text)
        assert style
        asset = await visitor.page(style[1], headers={"accept-encoding": "gzip"})
        assert asset.headers["cache-control"] == "public, max-age=31536000, immutable"
        assert asset.headers["content-encoding"] == "gzip"
        for path in ("/static/nothing.js", "/static/../pages.py", "/static/%2e%2e/%2e%2e/pyproject.toml"):
            assert (await visitor.page(path)).status_code == 404

    at_a_server(tmp_path, scene)


def test_a_server_without_built_pages_says_so(tmp_path: Path) -> None:
    assets = Assets(tmp_path)
    assert not assets.built
    assert assets.address("chat.js") == "/static/chat.js"


def test_a_browser_gets_the_language_it_prefers_of_those_there_are(tmp_path: Path) -> None:
    (tmp_path / "en.json").write_text('{"direction": "ltr", "a": "A {n}", "b": "B"}', encoding="utf-8")
    (tmp_path / "fa.json").write_text('{"direction": "rtl", "a": "آ {n}"}', encoding="utf-8")
    locales = Locales(tmp_path)
    for asked, language in {
        "": "en", "fa": "fa", "fa-IR,en;q=0.5": "fa", "en-GB,fa;q=0.9": "en", "de, fa;q=0.1": "fa", "de;q=x,,;q=": "en",
    }.items():  # fmt: skip
        assert locales.preferred(asked).language == language, asked
    persian = locales.preferred("fa")
    assert (persian("a", n=3), persian("b")) == ("آ 3", "B")


def test_the_pages_come_last_of_all_routes(tmp_path: Path) -> None:
    async def scene(visitor: Visit) -> None:
        assert [route.path for route in page_routes(visitor.house)][-1] == "/{path:path}"  # type: ignore[attr-defined]

    at_a_server(tmp_path, scene)
