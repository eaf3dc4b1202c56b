"""Socket: one open WebSocket, one task that reads and one that writes. What an event does is commands.py.

Its memory is bounded whatever the peer does: replies wait in a short line, runs wait where they are (a cursor each,
delivery.py). A peer that does not read loses the socket, not the answer.
"""
import asyncio
import logging
from collections import deque
from typing import Any, Protocol

from starlette.websockets import WebSocket, WebSocketDisconnect

from ..cutting import cut
from ..errors import ApiError
from ..people.authenticator import Authenticator
from ..people.identity import Forbidden, Identity, Unauthorized
from ..people.permissions import Act, require
from ..people.watcher import DISABLED, SIGN_IN_ENDED
from ..settings import Limits
from ..storage.errors import StorageError
from .audience import Audience
from .client_events import COALESCE_MS, AnyClientEvent
from .delivery import Cursor
from .frames import RefusedFrame, read_frame, write_frame
from .protocol import PROTOCOL, ErrorEvent, RateLimit, ServerEvent, SessionExpiring
from .rate import Rate
from .turn import Turn

log = logging.getLogger("hamdam.chat")
NORMAL, BINARY, FAULT, SLOW, TOO_FAST = 1000, 1003, 1011, 4008, 4429  # and the watcher's two
ABORT_AFTER_S = 1.0


class Handler(Protocol):
    async def __call__(self, socket: "Socket", event: AnyClientEvent) -> None: ...


class Socket:
    def __init__(
        self,
        connection: WebSocket,
        identity: Identity,
        authenticator: Authenticator,
        audience: Audience,
        limits: Limits,
    ) -> None:
        self.identity, self.user_id = identity, identity.user_id
        self.coalesce_s = COALESCE_MS / 1e3
        self._connection, self._authenticator = connection, authenticator
        self._audience, self._limits = audience, limits
        self._rate = Rate(limits.events_per_second, limits.event_burst)
        self._line: deque[str] = deque()  # frames of no run, in order
        self._line_size = 0
        self._cursors: dict[str, Cursor] = {}  # by response
        self._news = asyncio.Event()
        self._closing: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    # What others do to it --------------------------------------------------------------------------------------------

    def say(self, event: ServerEvent) -> None:
        """Put an event in line. One large one is no offence, to leave that much unread is."""
        if len(self._line) >= self._limits.outgoing_frames or self._line_size > self._limits.outgoing_bytes:
            self.close(SLOW)
            return
        frame = write_frame(event)
        self._line.append(frame)
        self._line_size += _bytes(frame)
        self._news.set()

    def refuse(self, error: ApiError, event_id: str | None) -> None:
        self.say(ErrorEvent(error=error.body(event_id)))

    def follow(self, turn: Turn, seen: int | None) -> None:
        turn.followers.add(self._news.set)
        self._cursors[turn.names.response_id] = Cursor(turn, seen)
        self._news.set()

    def follows(self, response_id: str) -> bool:
        return response_id in self._cursors

    def unfollow(self, conversation_id: str) -> None:
        for cursor in [c for c in self._cursors.values() if c.turn.names.conversation_id == conversation_id]:
            self._drop(cursor)

    def events_left(self) -> RateLimit:
        left, seconds = self._rate.left(asyncio.get_running_loop().time())
        limit = self._limits.event_burst
        return RateLimit(name="events", limit=limit, remaining=left, reset_seconds=round(seconds, 3))

    def close(self, code: int) -> None:
        """Soon; the first code counts."""
        if not self._closing.done():
            self._closing.set_result(code)

    # Its life --------------------------------------------------------------------------------------------------------

    async def run(self, handle: Handler) -> None:
        """From the accepted handshake until the peer goes, or `close`. Ends nothing but itself."""
        unwatch = self._authenticator.watch(self.identity, self.close, self._expiring)
        self._audience.join(self)
        tasks: list[asyncio.Task[None]] = []
        try:
            await self._connection.accept(PROTOCOL)
            tasks = [asyncio.create_task(self._read(handle)), asyncio.create_task(self._write())]
            ends: list[asyncio.Future[Any]] = [*tasks, self._closing]
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        finally:
            unwatch()
            self._audience.leave(self)
            for cursor in list(self._cursors.values()):
                self._drop(cursor)
            for task in tasks:
                task.cancel()
            results = await asyncio.gather(*tasks, return_exceptions=True)
        await self._close(results)

    def _expiring(self, in_s: int) -> None:
        self.say(SessionExpiring(in_s=in_s))

    async def _read(self, handle: Handler) -> None:
        """One event at a time: while one is looked at, the next waits in the peer's window."""
        while True:
            message = await self._connection.receive()
            if message["type"] == "websocket.disconnect":
                raise WebSocketDisconnect(message.get("code", NORMAL))
            text = message.get("text")
            if text is None:
                self.close(BINARY)
                return
            await self._take(text, handle)

    async def _take(self, text: str, handle: Handler) -> None:
        """A bad event is answered, the socket stays; a right that is gone closes it."""
        event_id: str | None = None
        now = asyncio.get_running_loop().time()
        try:
            if wait := self._rate.take(now):
                if self._rate.insisting(now) >= self._limits.rate_grace_s:
                    self.close(TOO_FAST)
                raise ApiError("rate_limit_exceeded", "Too many events.", retry_after_ms=int(wait * 1e3) + 1)
            event = read_frame(text)
            event_id = event.event_id
            self.identity = await self._authenticator.check(self.identity)
            require(self.identity, Act.CHAT)
            await handle(self, event)
        except RefusedFrame as error:
            self.refuse(error, error.event_id)
        except ApiError as error:
            self.refuse(error, event_id)
            if isinstance(error, Unauthorized | Forbidden):
                self.close(SIGN_IN_ENDED if isinstance(error, Unauthorized) else DISABLED)
        except StorageError as error:
            log.error("%s", error)
            self.refuse(ApiError("internal", "The server cannot save anything now."), event_id)
        except Exception:
            log.exception("an event could not be handled")
            self.refuse(ApiError("internal", "This went wrong here."), event_id)

    async def _write(self) -> None:
        clock = asyncio.get_running_loop().time
        while True:
            self._news.clear()
            while frame := self._next(clock()):
                async with asyncio.timeout(self._limits.slow_consumer_s):
                    await self._connection.send({"type": "websocket.send", "text": frame})
            due = min((cursor.due for cursor in self._cursors.values() if cursor.waits), default=None)
            try:
                async with asyncio.timeout_at(due):
                    await self._news.wait()
            except TimeoutError:
                pass

    def _next(self, now: float) -> str | None:
        """What was said first, then what the runs have."""
        if self._line:
            frame = self._line.popleft()
            self._line_size -= _bytes(frame)
            return frame
        for cursor in list(self._cursors.values()):
            if event := cursor.next(now, self.coalesce_s):
                return write_frame(event)
            if cursor.drained:
                self._drop(cursor)
        return None

    def _drop(self, cursor: Cursor) -> None:
        self._cursors.pop(cursor.turn.names.response_id, None)
        cursor.turn.followers.discard(self._news.set)

    async def _close(self, ends: list[BaseException | None]) -> None:
        """Say goodbye to a peer that is still there; one that does not read is cut off a second later."""
        ends = [end for end in ends if end is not None and not isinstance(end, asyncio.CancelledError)]
        if any(isinstance(end, WebSocketDisconnect | OSError) and not isinstance(end, TimeoutError) for end in ends):
            return
        code = self._closing.result() if self._closing.done() else None
        for end in ends:
            code = code or (SLOW if isinstance(end, TimeoutError) else FAULT)
            if not isinstance(end, TimeoutError):
                log.error("a socket broke", exc_info=end)
        try:
            async with asyncio.timeout(ABORT_AFTER_S):
                while self._line:
                    await self._connection.send({"type": "websocket.send", "text": self._line.popleft()})
                await self._connection.close(code or NORMAL)
        except TimeoutError:
            self._abort()
        except (WebSocketDisconnect, RuntimeError):  # gone in the meantime, or closed by the server's shutdown
            return
        if code == SLOW:  # what it has not read yet would keep the connection open
            asyncio.get_running_loop().call_later(ABORT_AFTER_S, self._abort)

    def _abort(self) -> None:
        cut(self._connection.scope)


def _bytes(frame: str) -> int:
    return len(frame.encode())
