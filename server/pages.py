"""The pages: set-up, sign in, the chat, and the one that says no. HTML only: what they show comes from the other rooms.

Set-up and sign-in are forms that work without any script; their posts pass the Origin check of everything unsafe
(boundary.py).
"""
import re
from collections.abc import Awaitable, Callable
from typing import Any
from urllib.parse import parse_qsl, quote

import msgspec
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import BaseRoute, Match, Route
from starlette.types import Scope

from .assets import WEB, Assets
from .errors import ApiError
from .house import House
from .locales import Locale, Locales
from .people.accounts import has_admin
from .people.identity import Identity, Unauthorized
from .people.passwords import SHORTEST
from .people.visitor import visitor_of

NOT_KEPT = {"cache-control": "no-store"}
THEMES = ("light", "dark")
FIRST_ITEMS = 30  # messages that come with the page; older ones are asked for
LOCAL_PATH = re.compile(r"/(c/[\w-]{1,64})?\Z", re.ASCII)  # where a sign-in may lead to: never to another site
NOT_PAGES = ("/api/", "/v1/", "/ws", "/static/", "/healthz", "/readyz", "/metrics")
Page = Callable[[Request], Awaitable[Response]]


def page_routes(house: House) -> list[BaseRoute]:
    """To be the last of the routes: what no room knows gets a page that says so."""
    pages = Pages(house, Assets(), Locales())
    return [
        *pages.assets.routes(),
        Route("/", pages.said(pages.chat)),
        Route("/c/{id}", pages.said(pages.chat)),
        Route("/sign-in", pages.said(pages.sign_in_form)),
        Route("/sign-in", pages.said(pages.sign_in), methods=["POST"]),
        Route("/set-up", pages.said(pages.set_up_form)),
        Route("/set-up", pages.said(pages.set_up), methods=["POST"]),
        Elsewhere("/{path:path}", pages.said(pages.nothing)),
    ]


class Elsewhere(Route):
    """Any path that a person may have typed; not those of programs, whose refusals are not HTML (nor always 404)."""

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        if scope["type"] != "http" or scope["path"].startswith(NOT_PAGES):
            return Match.NONE, {}
        return super().matches(scope)


class Pages:
    def __init__(self, house: House, assets: Assets, locales: Locales) -> None:
        self.house, self.assets, self.locales = house, assets, locales
        self.templates = Environment(
            loader=FileSystemLoader(WEB / "templates"), autoescape=True, undefined=StrictUndefined, trim_blocks=True
        )
        self.templates.policies["json.dumps_kwargs"] = {"ensure_ascii": False, "separators": (",", ":")}

    def said(self, page: Page) -> Page:
        """`page`, with its refusals said as a page too."""

        async def with_refusals(request: Request) -> Response:
            try:
                return await page(request)
            except ApiError as error:
                return self._refusal(request, error)

        return with_refusals

    async def chat(self, request: Request) -> Response:
        """The chat with all it needs to be drawn: no question goes back to the server before the first picture."""
        try:
            identity = await self.house.authenticator.identify(request)
        except Unauthorized:
            return RedirectResponse(f"/sign-in?next={quote(request.url.path)}", 303, NOT_KEPT)
        if not self.assets.built:
            return self._error(request, 503, "error.title", "error.notBuilt")
        locale = self._locale(request)
        state = {
            "user": {"name": identity.name},
            "language": locale.language,
            "words": locale.words,
            **await self._talk(identity, request.path_params.get("id")),
        }
        return self._page(request, "chat.html", state=state, preload=self.assets.preload)

    async def _talk(self, identity: Identity, conversation_id: str | None) -> dict[str, Any]:
        turns, current = self.house.turns, None
        if conversation_id is not None:
            conversation, items, earlier = await turns.history.items(
                identity.user_id, conversation_id, limit=FIRST_ITEMS
            )
            current = {"conversation": conversation, "items": items, "has_more": earlier}
        data, cursor = await turns.history.conversations(identity.user_id)
        talk = {"conversations": {"data": data, "next_cursor": cursor}, "current": current}
        return msgspec.to_builtins(talk)  # type: ignore[no-any-return]

    async def sign_in_form(self, request: Request) -> Response:
        try:
            await self.house.authenticator.identify(request)
        except ApiError:
            return await self._sign_in_page(request, _local(request.query_params.get("next", "/")))
        return RedirectResponse("/", 303, NOT_KEPT)

    async def sign_in(self, request: Request) -> Response:
        form = await _form(request)
        name, following = form.get("name", ""), _local(form.get("next", "/"))
        visitor = visitor_of(request, self.house.cookie)
        try:
            secret = await self.house.accounts.sign_in(name, form.get("password", ""), visitor)
        except ApiError as error:
            return await self._sign_in_page(request, following, name, error)
        return self._signed_in(following, secret)

    async def _sign_in_page(
        self, request: Request, following: str, name: str = "", error: ApiError | None = None
    ) -> Response:
        async with self.house.database.read() as sql:
            nobody_yet = not await has_admin(sql)
        return self._page(
            request, "sign-in.html", error.status if error else 200,
            next=following, name=name, nobody_yet=nobody_yet, refusal=self._why(request, error, "signIn.wrong"),
        )  # fmt: skip

    async def set_up_form(self, request: Request) -> Response:
        token = request.query_params.get("token", "")
        if not await self.house.set_up.valid(token):
            return self._error(request, 404, "setup.invalidTitle", "setup.invalid")
        return self._set_up_page(request, token)

    async def set_up(self, request: Request) -> Response:
        form = await _form(request)
        token, name = form.get("token", ""), form.get("name", "")
        visitor = visitor_of(request, self.house.cookie)
        try:
            secret = await self.house.set_up.redeem(token, name, form.get("password", ""), visitor)
        except ApiError as error:
            if error.code == "forbidden":
                return self._error(request, 404, "setup.invalidTitle", "setup.invalid")
            return self._set_up_page(request, token, name, error)
        return self._signed_in("/", secret)

    def _set_up_page(self, request: Request, token: str, name: str = "", error: ApiError | None = None) -> Response:
        refusal = self._why(request, error, None)
        status = error.status if error else 200
        return self._page(request, "set-up.html", status, token=token, name=name, shortest=SHORTEST, refusal=refusal)

    async def nothing(self, request: Request) -> Response:
        return self._error(request, 404, "error.notFoundTitle", "error.notFound")

    def _signed_in(self, following: str, secret: str) -> Response:
        response = RedirectResponse(following, 303, NOT_KEPT)
        self.house.cookie.set(response, secret)
        return response

    def _why(self, request: Request, error: ApiError | None, always: str | None) -> str:
        """The refusal of a form in words; `always` where the reason is not to be told."""
        if error is None:
            return ""
        locale = self._locale(request)
        if error.code == "rate_limit_exceeded":
            return locale("form.tooMany")
        return locale(always) if always else error.message

    def _refusal(self, request: Request, error: ApiError) -> Response:
        if error.status == 404:
            return self._error(request, 404, "error.notFoundTitle", "error.notFound")
        return self._error(request, error.status, "error.title", None, error.message)

    def _error(self, request: Request, status: int, heading: str, key: str | None, message: str = "") -> Response:
        locale = self._locale(request)
        message = locale(key) if key else message
        return self._page(request, "error.html", status, heading=locale(heading), message=message)

    def _page(self, request: Request, template: str, status: int = 200, **values: object) -> Response:
        locale = self._locale(request)
        theme = request.cookies.get("theme")
        html = self.templates.get_template(template).render(
            t=locale,
            language=locale.language,
            theme=theme if theme in THEMES else None,
            asset=self.assets.address,
            **values,
        )
        return HTMLResponse(html, status, NOT_KEPT)

    def _locale(self, request: Request) -> Locale:
        return self.locales.preferred(request.headers.get("accept-language", ""))


def _local(path: str) -> str:
    return path if LOCAL_PATH.fullmatch(path) else "/"


async def _form(request: Request) -> dict[str, str]:
    try:
        return dict(parse_qsl((await request.body()).decode(), keep_blank_values=True, max_num_fields=10))
    except ValueError as error:  # not UTF-8, or too many fields
        raise ApiError("invalid_field", "This is no form of ours.") from error
