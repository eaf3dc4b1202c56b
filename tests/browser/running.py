"""A whole server over the scripted engine, on its own thread, for a browser; and an eye on what pages must never do."""
import asyncio
import os
import re
import socket
import threading
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import uvicorn
from argon2 import PasswordHasher
from playwright.sync_api import BrowserContext, Page
from scripted import scripted_engine

from hamdam.server.app import create_app
from hamdam.server.people.passwords import Passwords
from hamdam.server.serving import server_config
from hamdam.server.settings import Settings
from hamdam.server.storage.database import Database

PASSWORD = "a good long password"
CHEAP = PasswordHasher(time_cost=1, memory_cost=8, parallelism=1)  # nobody guesses here


class Site:
    """The server, on its own thread and loop; what it computes can be held back step by step."""

    def __init__(self, data: Path, port: int = 0) -> None:
        self.engine = scripted_engine()
        self.runner = self.engine.runner
        self._data = data
        self._socket = socket.create_server(("127.0.0.1", port))
        self.port = self._socket.getsockname()[1]
        self.address = f"http://127.0.0.1:{self.port}"
        self._ready: Future[None] = Future()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()), name="site")

    def __enter__(self) -> "Site":
        self._thread.start()
        self._ready.result(60)
        return self

    def __exit__(self, *_: object) -> None:
        self.let_run()
        self.server.should_exit = True
        self._thread.join(60)

    async def _serve(self) -> None:
        try:
            database = await Database.open(self._data / "hamdam.db")
            settings = Settings(data=self._data)
            app = create_app(settings, self.engine, database, passwords=Passwords(CHEAP))
            self.house = app.state.house
            self._loop = asyncio.get_running_loop()
            self.server = _Server(server_config(app, settings.limits), self._ready)
        except BaseException as error:
            self._ready.set_exception(error)
            raise
        try:
            await self.server.serve([self._socket])
        finally:
            await database.close()

    def call(self, make: Callable[[], Any]) -> Any:
        """The result of a coroutine on the server's loop."""
        return asyncio.run_coroutine_threadsafe(make(), self._loop).result(30)

    def enter(self, context: BrowserContext) -> Page:
        """A page on the chat of a person who was not here before."""
        name = f"Person {os.urandom(6).hex()}"
        self.call(lambda: self.house.accounts.create(name, PASSWORD))
        page = context.new_page()
        page.goto("/sign-in")
        page.get_by_label("Name").fill(name)
        page.get_by_label("Password").fill(PASSWORD)
        page.get_by_role("button", name="Sign in").click()
        page.wait_for_url("/")
        return page

    def hold(self, steps: int = 0) -> None:
        """From now on the engine takes only as many steps as it is let."""
        self.runner.gate = threading.Semaphore(steps)

    def let(self, steps: int) -> None:
        self.runner.gate.release(steps)

    def let_run(self) -> None:
        gate, self.runner.gate = self.runner.gate, None
        if gate:
            gate.release(100_000)


class _Server(uvicorn.Server):
    def __init__(self, config: uvicorn.Config, ready: Future[None]) -> None:
        super().__init__(config)
        self._ready = ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            self._ready.set_result(None)
        else:
            self._ready.set_exception(RuntimeError("the server did not start"))


class Watched:
    """What pages did that they must not: dialogs, script errors, policy violations, requests to anywhere else."""

    def __init__(self, context: BrowserContext, address: str) -> None:
        self.faults: list[str] = []
        self.refusals = 0  # answers of 4xx that the test provokes
        self._address = address
        context.on("request", self._request)
        context.on("dialog", lambda dialog: (self.faults.append(f"dialog {dialog.message}"), dialog.dismiss()))
        context.on("console", self._console)
        context.on("weberror", lambda error: self.faults.append(f"script {error.error}"))
        context.add_init_script(
            "addEventListener('securitypolicyviolation', e => console.error('violation ' + e.violatedDirective))"
        )

    def _request(self, request: Any) -> None:
        if not request.url.startswith((self._address, "data:", "blob:")):
            self.faults.append(f"request to {request.url}")

    def _console(self, message: Any) -> None:
        if message.type in ("error", "warning"):
            if "status of 4" in message.text and self.refusals:
                self.refusals -= 1
            elif not re.search("WebSocket connection|net::ERR_", message.text):  # some tests take the server away
                self.faults.append(f"console {message.text}")
