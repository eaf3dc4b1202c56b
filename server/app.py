"""The app: every wire of the house in one function. Process and port are serving.py's, what flows the rooms'."""
import asyncio
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from starlette.applications import Starlette
from starlette.middleware import Middleware

from hamdam.engine import Engine

from .boundary import Accidents, BodyLimit, SameOrigin, SecurityHeaders
from .chat.owner import Owners
from .chat.routes import chat_routes
from .chat.saving import recover
from .chat.turns import Turns
from .errors import error_handlers
from .house import House
from .openai.routes import openai_routes
from .openapi import openapi_routes
from .operations.health import health_routes
from .pages import page_routes
from .people.accounts import Accounts
from .people.attempts import Attempts
from .people.authenticator import Authenticator
from .people.cookie import Cookie
from .people.passwords import Passwords
from .people.routes import people_routes
from .people.setup_link import SetUp
from .settings import Settings
from .storage.database import Database
from .storage.folder import DataFolder
from .storage.secrets import Secrets


def create_app(
    settings: Settings, engine: Engine, database: Database, *, passwords: Passwords | None = None
) -> Starlette:
    """The server, not yet running: its lifespan starts and stops the engine. Raises StorageError (a bad secret)."""
    cookie = Cookie(settings.public_url)
    accounts = Accounts(database, passwords or Passwords(), Attempts())
    authenticator = Authenticator(database, cookie)
    house = House(
        settings=settings,
        engine=engine,
        database=database,
        owners=Owners(Secrets(DataFolder(settings.data).secrets).cache_root, settings.limits),
        cookie=cookie,
        authenticator=authenticator,
        accounts=accounts,
        set_up=SetUp(database, accounts),
        turns=Turns(engine, database, authenticator, settings.limits),
        boot_id=secrets.token_hex(8),
    )

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        await recover(database)
        engine.start()
        try:
            async with asyncio.TaskGroup() as tasks:
                watching = tasks.create_task(house.authenticator.watcher.run())
                yield
                await house.turns.close()  # done already where a signal stopped the server
                watching.cancel()
        finally:
            engine.stop()
            await house.turns.shelves.memory.close()

    app = Starlette(
        routes=[
            *health_routes(house),
            *people_routes(house),
            *chat_routes(house),
            *openai_routes(house),
            *openapi_routes(house),
            *page_routes(house),
        ],
        middleware=[
            Middleware(SecurityHeaders, https=cookie.secure),
            Middleware(SameOrigin, cookie=cookie, public_url=settings.public_url),
            Middleware(BodyLimit, limit=settings.limits.body_bytes),
            Middleware(Accidents),
        ],
        exception_handlers=error_handlers(),
        lifespan=lifespan,
    )
    app.router.redirect_slashes = False  # an address is right or is not; a redirect would lose a POST's body
    app.state.house = house
    return app
