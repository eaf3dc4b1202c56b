"""The boundary: what every request and handshake passes before any route, as plain ASGI. Who asks is not its question.

    SecurityHeaders   the strict content security policy on every response, whoever made it
    SameOrigin        unsafe requests and cookie sockets come from our own pages, or from no browser at all
    BodyLimit         a body is refused by its length, said or counted, before anybody reads all of it
    Accidents         what breaks behind it is answered as `internal`, once in the log and with nothing of the inside
"""
import logging
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import HTTPConnection
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from .errors import ApiError
from .people.authenticator import bearer_key
from .people.cookie import Cookie

log = logging.getLogger("hamdam.server")
POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self' blob: data:",
        "font-src 'self'",
        "connect-src 'self'",
        "frame-ancestors 'none'",
        "base-uri 'none'",
        "form-action 'self'",
        "manifest-src 'self'",
        "require-trusted-types-for 'script'",
        "trusted-types dompurify hamdam",
    )
)
HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    # Not `no-referrer`: browsers would then send `Origin: null` with our own forms.
    "referrer-policy": "same-origin",
    "permissions-policy": "camera=(), display-capture=(), geolocation=(), microphone=(), payment=(), usb=()",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}
STRICT_TRANSPORT = "max-age=31536000"
SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
DEFAULT_PORTS = {"http": 80, "https": 443}


class SecurityHeaders:
    def __init__(self, app: ASGIApp, *, https: bool) -> None:
        self.app = app
        self.headers = HEADERS | ({"strict-transport-security": STRICT_TRANSPORT} if https else {})

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_guarded(message: Message) -> None:
            if message["type"] in ("http.response.start", "websocket.http.response.start"):
                headers = MutableHeaders(scope=message)
                for name, value in self.headers.items():
                    headers.setdefault(name, value)  # a route may only have its own where it set one on purpose
            await send(message)

        await self.app(scope, receive, send_guarded)


class SameOrigin:
    """Browsers send a page's Origin with what it sends; cookies come along whoever's page it is, keys do not."""

    def __init__(self, app: ASGIApp, *, cookie: Cookie, public_url: str | None) -> None:
        self.app, self.cookie = app, cookie
        self.public_origin = origin(public_url) if public_url else None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        socket = scope["type"] == "websocket"
        if (socket or (scope["type"] == "http" and scope["method"] not in SAFE_METHODS)) and not self._ours(scope):
            error = ApiError("forbidden", "This request does not come from a page of this server (see --public-url).")
            await refuse(error, scope, receive, send)
        else:
            await self.app(scope, receive, send)

    def _ours(self, scope: Scope) -> bool:
        conn = HTTPConnection(scope)
        with_cookie = self.cookie.read(conn) is not None
        if not with_cookie and (scope["type"] == "websocket" or _has_key(conn)):
            return True  # nothing in it that a foreign page could have borrowed
        origins = conn.headers.getlist("origin")
        if origins:
            return len(origins) == 1 and origins[0] == (self.public_origin or _own_origin(conn))
        if with_cookie and scope["type"] == "websocket":
            return False
        fetched_from = conn.headers.get("sec-fetch-site")
        return fetched_from == "same-origin" if fetched_from else not with_cookie


def origin(url: str) -> str:
    """`scheme://host[:port]` as a browser writes it: lower case, no default port."""
    parts = urlsplit(url)
    host = f"[{parts.hostname}]" if ":" in (parts.hostname or "") else (parts.hostname or "")
    port = "" if parts.port in (None, DEFAULT_PORTS.get(parts.scheme)) else f":{parts.port}"
    return f"{parts.scheme}://{host}{port}"


def _own_origin(conn: HTTPConnection) -> str | None:
    scheme = {"ws": "http", "wss": "https"}.get(conn.scope["scheme"], conn.scope["scheme"])
    try:
        return origin(f"{scheme}://{conn.headers.get('host', '')}")
    except ValueError:  # a port that is none
        return None


def _has_key(conn: HTTPConnection) -> bool:
    try:
        return bearer_key(conn) is not None
    except ApiError:
        return True  # the authenticator says what is wrong with it


class BodyLimit:
    def __init__(self, app: ASGIApp, *, limit: int) -> None:
        self.app, self.limit = app, limit

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        said = Headers(scope=scope).get("content-length", "")
        if said.isdecimal() and int(said) > self.limit:
            await refuse(self._error(), scope, receive, send)
            return
        counted = 0

        async def receive_counted() -> Message:
            nonlocal counted
            message = await receive()
            counted += len(message.get("body", b""))
            if counted > self.limit:
                raise self._error()  # in the route that reads; answered by the app's handler
            return message

        await self.app(scope, receive_counted, send)

    def _error(self) -> ApiError:
        return ApiError("too_large", f"A body may have at most {self.limit} bytes.")


class Accidents:
    """Not an exception handler of Starlette's: that one stands outside of SecurityHeaders."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        begun = scope["type"] != "http"

        async def send_noted(message: Message) -> None:
            nonlocal begun
            begun = True
            await send(message)

        try:
            await self.app(scope, receive, send_noted)
        except Exception:
            if begun:
                raise  # the server under us cuts the connection and logs
            log.exception("%s %s failed", scope["method"], scope["path"])
            await refuse(ApiError("internal", "Something went wrong on the server."), scope, receive, send)


async def refuse(error: ApiError, scope: Scope, receive: Receive, send: Send) -> None:
    """Answer in the app's place. A handshake is refused as plain HTTP too, before any upgrade (Starlette knows how)."""
    await error.response()(scope, receive, send)
