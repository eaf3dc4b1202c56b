"""The head of a request: what a stranger sends before anybody can refuse it takes neither memory nor a connection."""
import asyncio
import contextlib

import pytest
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from hamdam.server import request_head
from hamdam.server.request_head import MAX_BYTES
from hamdam.server.serving import server_config
from hamdam.server.settings import Limits

GET = b"GET / HTTP/1.1\r\nHost: a\r\n"


async def _length(request: Request) -> Response:
    return Response(str(len(await request.body())))


async def _talk(*pieces: bytes) -> bytes:
    """All that a server says to the pieces, until it closes the connection. b"" waits for the next answer's head."""
    config = server_config(Starlette(routes=[Route("/", _length, methods=["GET", "POST"])]), Limits())
    server = uvicorn.Server(config)
    config.load()
    server.lifespan = config.lifespan_class(config)
    await server.startup()
    try:
        port = server.servers[0].sockets[0].getsockname()[1]
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        said = b""
        with contextlib.suppress(ConnectionError):  # it hung up before it had read all
            for piece in pieces:
                writer.write(piece)
                await writer.drain()
                if not piece:
                    said += await reader.readuntil(b"\r\n\r\n")
            said += await asyncio.wait_for(reader.read(), 30)
        writer.close()
        return said
    finally:
        await server.shutdown()


@pytest.mark.parametrize(
    ("head", "more"), [(b"GET /", b"a" * 1000), (GET + b"X: ", b"a" * 1000), (GET, b"X: " + b"a" * 1000 + b"\r\n")]
)
def test_a_head_without_end_is_cut_off(head: bytes, more: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request_head, "WITHIN_S", 3600)  # it is not the time that does it
    asyncio.run(_talk(head, *[more] * 1000))


def test_a_head_that_does_not_come_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request_head, "WITHIN_S", 0.05)
    assert asyncio.run(_talk()) == b""
    assert asyncio.run(_talk(GET, b"X: ")) == b""


def test_a_line_end_between_two_requests_holds_no_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request_head, "WITHIN_S", 0.05)
    assert asyncio.run(_talk(GET + b"\r\n", b"", b"\r\n")).count(b" 200 ") == 1


def test_a_large_body_and_the_request_behind_it_are_no_large_head() -> None:
    body = b"b" * (MAX_BYTES * 3)
    post = b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n" % len(body)
    said = asyncio.run(_talk(post + body + GET, b"Connection: close\r\n\r\n"))
    assert said.count(b" 200 ") == 2
    assert str(len(body)).encode() in said
