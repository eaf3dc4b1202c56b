"""Serving: one process, from a data folder to an open port and back. It knows no route.

Everything that can be wrong is found before the port opens.
"""
import asyncio
import contextlib
import gc
import signal
import socket
import sys
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace
from typing import Any

import uvicorn
import uvloop
from starlette.applications import Starlette
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

from hamdam.engine import BLOCK_SIZE, Engine

from .app import create_app
from .cutting import CUT
from .request_head import BoundedHead
from .settings import Limits, Settings
from .storage.database import Database
from .storage.folder import DataFolder

PING_S = 20.0
FINISH_S = 10  # how long a stop waits for the answers that are being written
WILDCARDS = frozenset({"0.0.0.0", "::"})


class ServeError(Exception):
    """The server cannot start; `str(error)` is one line."""


class AbortableHttp(BoundedHead):
    """Lets a stream drop a peer that reads nothing: what it has not read would keep the connection open for ever."""

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self.scope["extensions"] = {CUT: self.transport.abort}  # type: ignore[dict-item]  # uvicorn: a dict


class AbortableProtocol(WebSocketsSansIOProtocol):
    """The same for the gateway: an ASGI close would wait for its answer for ever."""

    async def run_asgi(self) -> None:
        self.scope["extensions"][CUT] = self.transport.abort  # type: ignore[assignment]  # uvicorn: a dict
        await super().run_asgi()

    async def send(self, message: Any) -> None:
        """A refusal completes a handshake too. uvicorn overlooks that, and would log an error for each stranger."""
        await super().send(message)
        if message["type"] == "websocket.http.response.body" and not message.get("more_body", False):
            self.handshake_complete = True


class Server(uvicorn.Server):
    """Stops in order at SIGTERM or SIGINT and then returns, so that the process ends with 0; a second one hurries."""

    def __init__(
        self, config: uvicorn.Config, *, opened: Callable[[], None], stopping: Callable[[], Awaitable[None]]
    ) -> None:
        super().__init__(config)
        self._opened, self._stopping = opened, stopping
        self._stop: asyncio.Task[None] | None = None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            self._opened()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.stop)
        try:
            yield
        finally:
            for number in (signal.SIGTERM, signal.SIGINT):
                loop.remove_signal_handler(number)

    def stop(self) -> None:
        if self._stop is None:
            self._stop = asyncio.get_running_loop().create_task(self._finish())
        else:
            self.should_exit = self.force_exit = True

    async def _finish(self) -> None:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._stopping(), FINISH_S)
        self.should_exit = True


def server_config(app: Starlette, limits: Limits) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        port=0,  # where no socket is given: any that is free
        loop="uvloop",
        http=AbortableHttp,
        ws=AbortableProtocol,
        ws_max_size=limits.frame_bytes,
        ws_per_message_deflate=False,  # a compression context for every idle tab would be most of the memory
        ws_ping_interval=PING_S,
        ws_ping_timeout=PING_S,
        lifespan="on",
        proxy_headers=False,  # X-Forwarded-For is what anybody may write
        server_header=False,
        access_log=False,
        log_config=None,
        timeout_graceful_shutdown=5,
    )


def serve(settings: Settings, make_engine: Callable[[Settings], Engine]) -> None:
    """Runs until told to stop. Raises StorageError, ServeError or what `make_engine` does, before the port opens."""
    folder = DataFolder(settings.data)
    folder.lock()
    try:
        with _bind(settings) as port:
            uvloop.run(_serve(settings, folder, make_engine, port))
    finally:
        folder.unlock()


async def _serve(
    settings: Settings, folder: DataFolder, make_engine: Callable[[Settings], Engine], port: socket.socket
) -> None:
    database = await Database.open(folder.database)
    try:
        with _all_is_here_to_stay():
            engine = make_engine(settings)  # seconds, on this thread: nothing else runs yet
            settings = replace(settings, port=port.getsockname()[1])
            app = create_app(settings, engine, database)
        house = app.state.house
        link = await house.set_up.renew()

        def opened() -> None:
            _say(f"Serving {model_line(engine)}")
            _say(f"Hamdam is at {address(settings)}")
            if link is not None:
                _say(f"Set up the first account (this link works once): {address(settings)}/set-up?token={link}")

        await Server(server_config(app, settings.limits), opened=opened, stopping=house.turns.close).serve([port])
    finally:
        await database.close()


@contextlib.contextmanager
def _all_is_here_to_stay() -> Iterator[None]:
    """What is made meanwhile, and all that was before, is never searched for garbage: a start is sooner over, and later
    searches do not hold up the loop for the hundred thousand objects of code and vocabulary."""
    gc.disable()
    try:
        yield
        gc.freeze()
    finally:
        gc.enable()


def address(settings: Settings) -> str:
    """Where people find the pages, as well as we can know it."""
    if settings.public_url is not None:
        return settings.public_url
    host = socket.gethostname() if settings.host in WILDCARDS else settings.host
    return f"http://{f'[{host}]' if ':' in host else host}:{settings.port}"


def model_line(engine: Engine) -> str:
    memory = engine.stats().blocks_total * BLOCK_SIZE
    room = f"up to {engine.max_context} tokens a conversation, memory for {memory} tokens in all"
    return f"{engine.model_name} ({engine.runner.description}): {room}"


def _bind(settings: Settings) -> socket.socket:
    """Take the port without listening: a taken one is found now, and nobody is let in before everything is ready."""
    try:
        family, kind, protocol, _, where = socket.getaddrinfo(
            settings.host, settings.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        port = socket.socket(family, kind, protocol)
        try:
            port.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            port.bind(where)
        except OSError:
            port.close()
            raise
    except (OSError, UnicodeError) as error:
        why = getattr(error, "strerror", None) or "this is no host name"
        raise ServeError(f"{settings.host}:{settings.port} cannot be opened: {why}") from error
    return port


def _say(line: str) -> None:
    print(line, file=sys.stdout, flush=True)
