"""The gateway: /ws, up to the upgrade. Whoever may not come in is told so in plain HTTP; afterwards it is socket.py's.

That a cookie comes from our own page (Origin) was checked before any route, in boundary.py.
"""
import asyncio
from dataclasses import asdict
from typing import Any

from starlette.websockets import WebSocket

from ..errors import ApiError
from ..people.authenticator import Authenticator
from ..people.identity import Forbidden, Identity, Unauthorized
from ..people.permissions import Act, require
from ..people.visitor import address_of
from ..settings import Limits
from .commands import Commands
from .owner import Owners
from .protocol import HEARTBEAT_MS, PROTOCOL, SessionCreated
from .rate import Failures
from .socket import Socket
from .turns import Turns


class Gateway:
    def __init__(
        self, turns: Turns, owners: Owners, authenticator: Authenticator, limits: Limits, boot_id: str
    ) -> None:
        self.turns, self.engine, self.authenticator = turns, turns.engine, authenticator
        self.limits, self.boot_id = limits, boot_id
        self.commands = Commands(turns, owners)
        self.failures = Failures(limits.upgrades_per_minute)

    async def __call__(self, connection: WebSocket) -> None:
        try:
            identity = await self._admit(connection)
        except ApiError as error:
            await connection.send_denial_response(error.response())
            return
        socket = Socket(connection, identity, self.authenticator, self.turns.audience, self.limits)
        socket.say(self._hello(identity))
        await socket.run(self.commands)

    async def _admit(self, connection: WebSocket) -> Identity:
        if PROTOCOL not in connection.scope.get("subprotocols", ()):
            why = f"The subprotocol {PROTOCOL} must be offered."
            raise ApiError("invalid_field", why, param="sec-websocket-protocol")
        identity = await self._identify(connection)
        open_already = self.turns.audience.count(identity.user_id)
        if not identity.service and open_already >= self.limits.sockets_per_user:
            raise ApiError("rate_limit_exceeded", "Too many open sockets.", retry_after_ms=10_000)
        self.turns.refuse_while_draining()
        if self.engine.stats().state == "dead":
            raise ApiError("engine_unavailable", "The engine does not run.", retry_after_ms=10_000)
        return identity

    async def _identify(self, connection: WebSocket) -> Identity:
        """Who fails too often is told to wait; who is known comes in, however often others at their address fail."""
        try:
            identity = await self.authenticator.identify(connection)
            require(identity, Act.CHAT)
        except (Unauthorized, Forbidden):
            address, now = address_of(connection), asyncio.get_running_loop().time()
            if wait := self.failures.wait(address, now):
                raise ApiError(
                    "rate_limit_exceeded", "Too many failed attempts.", retry_after_ms=int(wait * 1e3) + 1
                ) from None
            self.failures.note(address, now)
            raise
        return identity

    def _hello(self, identity: Identity) -> SessionCreated:
        limits: dict[str, Any] = asdict(self.limits) | {"max_context": self.engine.max_context}
        return SessionCreated(
            user={"id": identity.user_id, "name": identity.name, "role": identity.role},
            protocol=PROTOCOL,
            boot_id=self.boot_id,
            heartbeat_ms=HEARTBEAT_MS,
            limits=limits,
            models=[{"id": self.engine.model_name, "default": True, "max_context": self.engine.max_context}],
        )
