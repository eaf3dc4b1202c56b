"""Commands: what each client event does. It reads no frame and sends none itself: it says, and follows, on a Socket."""
from msgspec.structs import replace

from ..errors import ApiError
from ..storage.tables import Message
from .asking import Asking, Known
from .client_events import AnyClientEvent, CancelResponse, CreateResponse, Ping, SessionUpdate, Subscribe, Unsubscribe
from .history import item_of
from .owner import Owners
from .protocol import ConversationSubscribed, ItemAdded, Pong, RateLimit, RateLimitsUpdated, SessionUpdated
from .socket import Socket
from .stored import created_of, end_of, snapshot_of, state_of
from .turn import Turn
from .turns import Turns


class Commands:
    def __init__(self, turns: Turns, owners: Owners) -> None:
        self.turns, self.history, self.audience = turns, turns.history, turns.audience
        self.asking = Asking(turns, owners)

    async def __call__(self, socket: Socket, event: AnyClientEvent) -> None:
        match event:
            case CreateResponse():
                await self._create(socket, event)
            case CancelResponse():
                await self._cancel(socket, event)
            case Subscribe():
                await self._subscribe(socket, event)
            case Unsubscribe():
                self.audience.unsubscribe(socket, event.conversation_id)
            case SessionUpdate():
                if event.coalesce_ms is not None:
                    socket.coalesce_s = event.coalesce_ms / 1e3
                coalesce_ms = round(socket.coalesce_s * 1e3)
                socket.say(SessionUpdated(coalesce_ms=coalesce_ms, locale=event.locale, in_reply_to=event.event_id))
            case Ping():
                socket.say(Pong(t=event.t, in_reply_to=event.event_id))

    async def _create(self, socket: Socket, event: CreateResponse) -> None:
        if not event.generate:
            await self.asking.warm(socket.identity, event)
        elif known := await self.asking.ask(socket.identity, event, socket):
            self._repeat(socket, known, event.event_id)
        else:
            socket.say(RateLimitsUpdated(rate_limits=self._left(socket), in_reply_to=event.event_id))

    def _left(self, socket: Socket) -> list[RateLimit]:
        """What its user may still ask for; a service key has only the server's bounds."""
        limits, owner = [socket.events_left()], self.asking.owners.of(socket.identity)
        if owner.max_running is not None and owner.max_queued is not None:
            limit = owner.max_running + owner.max_queued
            remaining = max(0, limit - self.turns.engine.in_flight(owner.id))
            limits.append(RateLimit(name="responses", limit=limit, remaining=remaining))
        return limits

    def _repeat(self, socket: Socket, known: Known, event_id: str | None) -> None:
        """The same question again, perhaps because the first answer got lost on the way: the same events again."""
        for row in (known.question, known.answer):
            if row is not None:
                socket.say(ItemAdded(item=item_of(row), client_id=known.answer.client_id, in_reply_to=event_id))
        self.audience.subscribe(socket, known.answer.conversation_id)
        if known.turn is None:
            for say in (created_of, snapshot_of, end_of):
                socket.say(say(known.answer))
        elif known.turn.continues:  # its start makes sense only on top of the text before it
            socket.say(known.turn.numbered[0])
            socket.follow(known.turn, None)
        else:
            socket.follow(known.turn, 0)

    async def _cancel(self, socket: Socket, event: CancelResponse) -> None:
        """Answered by the run's end, also where it has ended long ago."""
        run = await self._run(socket, event.response_id)
        if not isinstance(run, Turn):
            socket.say(end_of(run))
            return
        run.generation.cancel()
        if not socket.follows(event.response_id):
            socket.follow(run, len(run.numbered))

    async def _subscribe(self, socket: Socket, event: Subscribe) -> None:
        """After the last wait all is read in one go: nothing falls between a snapshot and what follows it."""
        conversation = await self.history.conversation(socket.user_id, event.conversation_id)
        before = await self._run(socket, event.after.response_id) if event.after else None
        running = self.turns.running_in(conversation.id)
        of = before.names.conversation_id if isinstance(before, Turn) else before and before.conversation_id
        if before is not None and of != conversation.id:
            raise _no_such_response()
        runs = [before.state() if isinstance(before, Turn) else state_of(before)] if before is not None else []
        if running is not None and running is not before:
            runs.append(running.state())
        self.audience.subscribe(socket, conversation.id)
        told = ConversationSubscribed(conversation_id=conversation.id, revision=conversation.revision, runs=runs)
        socket.say(replace(told, in_reply_to=event.event_id))
        if isinstance(before, Turn):
            seen = event.after.sequence_number if event.after else 0
            socket.follow(before, None if before.continues and seen == 0 else seen)
        elif before is not None:
            socket.say(snapshot_of(before))
            socket.say(end_of(before))
        if running is not None and running is not before:
            socket.follow(running, None)

    async def _run(self, socket: Socket, response_id: str) -> Turn | Message:
        """A run of this user: in memory, or as it is stored. Raises response_not_found."""
        if turn := self.turns.find(socket.user_id, response_id=response_id):
            return turn
        row = await self.history.answer(socket.user_id, response_id=response_id)
        if found := self.turns.find(socket.user_id, response_id=response_id) or row:  # it may have begun meanwhile
            return found
        raise _no_such_response()


def _no_such_response() -> ApiError:
    return ApiError("response_not_found", "There is no such response.", param="response_id")
