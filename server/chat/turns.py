"""Turns: all runs that go on or ended lately. No socket, no HTTP, and no word about what a run says.

An end is stored before it is said. Where storing fails the end says so, the text stays here to be read, and saving is
tried again until it is done. Texts of running turns are saved together once a second. After its end a turn stays for
`replay_s`, for whoever lost the connection.
"""
import asyncio
import logging
from collections.abc import Coroutine
from typing import Any

from sqlalchemy.exc import SQLAlchemyError

from hamdam.engine import Engine, Finished, Timings

from ..errors import ApiError
from ..people.authenticator import Authenticator
from ..settings import Limits
from ..storage.database import Database
from ..storage.errors import StorageError
from .audience import Audience
from .ending import ending_of
from .history import History
from .protocol import ConversationDeleted, ConversationUpdated, ServerDraining
from .saving import Saving, Written
from .shelves import Shelves
from .turn import Turn

log = logging.getLogger("hamdam.chat")
SAVE_EVERY_S = 1.0
RECONNECT_AFTER_MS = 2000


class Turns:
    def __init__(self, engine: Engine, database: Database, authenticator: Authenticator, limits: Limits) -> None:
        self.engine, self.authenticator, self.limits = engine, authenticator, limits
        self.shelves = shelves = Shelves(database)
        self.history, self.saving, self.audience = History(shelves), Saving(shelves), Audience()
        self.draining = False
        self._reserved: dict[str, str] = {}  # by conversation: its run, from before there are rows
        self._by_response: dict[str, Turn] = {}
        self._by_client: dict[tuple[str, str], Turn] = {}
        self._unsaved: dict[str, Written] = {}  # by response: ends that could not be stored yet
        self._tasks: set[asyncio.Task[Any]] = set()
        self._saver: asyncio.Task[None] | None = None

    # Looking ---------------------------------------------------------------------------------------------------------

    def find(self, user_id: str, *, response_id: str | None = None, client_id: str | None = None) -> Turn | None:
        """This user's turn, while it is in memory."""
        turn = self._by_response.get(response_id) if response_id else self._by_client.get((user_id, client_id or ""))
        return turn if turn and turn.names.user_id == user_id else None

    def runs(self, conversation_id: str) -> bool:
        """Whether a run goes on, is about to begin, or has its end still to be stored."""
        return conversation_id in self._reserved

    def running_in(self, conversation_id: str) -> Turn | None:
        turn = self._by_response.get(self._reserved.get(conversation_id, ""))
        return turn if turn and turn.end is None else None

    def ahead(self, conversation_id: str) -> dict[str, Turn]:
        """By answer: turns that know more of it than the database; they run, or their end could not be stored."""
        turns = [turn for turn in self._by_response.values() if turn.names.conversation_id == conversation_id]
        return {t.names.item_id: t for t in turns if t.end is None or t.names.response_id in self._unsaved}

    def refuse_while_draining(self) -> None:
        if self.draining:
            raise ApiError("draining", "The server restarts.", retry_after_ms=RECONNECT_AFTER_MS)

    # Running ---------------------------------------------------------------------------------------------------------

    def reserve(self, conversation_id: str, response_id: str) -> None:
        """One run a conversation at a time. Raises conversation_busy with the one that runs."""
        self.refuse_while_draining()
        if conversation_id in self._reserved:
            running = self._reserved[conversation_id]
            raise ApiError("conversation_busy", "An answer is being written here.", response_id=running)
        self._reserved[conversation_id] = response_id

    def release(self, conversation_id: str) -> None:
        self._reserved.pop(conversation_id, None)

    def run(self, turn: Turn) -> None:
        """From here on the turn is ours: its generation is started, everybody who watches the conversation follows."""
        names = turn.names
        self._by_response[names.response_id] = turn
        self._by_client[names.user_id, names.client_id] = turn
        for viewer in list(self.audience.watching(names.conversation_id)):
            viewer.follow(turn, 0)
        turn.generation.start()
        self.own(self._carry(turn))
        if self._saver is None or self._saver.done():
            self._saver = self.own(self._save_on())

    def own(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """A task that ends with the server, not with whoever asked for it."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)
        return task

    def _done(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None and not isinstance(error, ApiError | StorageError):  # for whoever asked, and said there
            log.error("a task of the chat broke", exc_info=error)

    async def delete(self, user_id: str, conversation_id: str) -> None:
        """Stop what runs in a conversation, forget its rows and then its blocks. Raises conversation_not_found."""
        await self.history.conversation(user_id, conversation_id)
        if turn := self.running_in(conversation_id):
            turn.generation.cancel()
            await turn.ended.wait()
        self.reserve(conversation_id, "")  # nothing begins here while the rows go
        try:
            await self.history.delete(user_id, conversation_id)
        finally:
            self.release(conversation_id)
        self.shelves.forget(conversation_id)
        self.engine.close_session(conversation_id)
        self.audience.publish(user_id, ConversationDeleted(conversation_id=conversation_id))
        self.audience.forget(conversation_id)

    async def close(self) -> None:
        """The server goes down: no new turns, the running ones end as interrupted and can go on later."""
        self.draining = True
        self.audience.publish_all(ServerDraining(reconnect_after_ms=RECONNECT_AFTER_MS))
        for turn in list(self._by_response.values()):
            if turn.end is None:
                turn.generation.cancel()
        if self._saver:
            self._saver.cancel()
        while waiting := self._tasks - {asyncio.current_task()}:
            await asyncio.wait(waiting)
        await self._save_ends()

    async def _carry(self, turn: Turn) -> None:
        """A turn from its start to its stored end. Signing out ends sockets, not answers; a disabled account both."""
        unwatch = self.authenticator.watch_account(turn.names.user_id, lambda _code: turn.generation.cancel())
        try:
            await self._end(turn, await self._finished(turn))
        finally:
            unwatch()
            self.release(turn.names.conversation_id)
            asyncio.get_running_loop().call_later(self.limits.replay_s, self._forget, turn)

    async def _finished(self, turn: Turn) -> Finished:
        try:
            return await turn.follow()
        except Exception:
            log.exception("a turn broke")
            turn.generation.cancel()
            return Finished("failed", turn.generation.usage, turn.generation.token_ids, Timings())

    async def _end(self, turn: Turn, finished: Finished) -> None:
        dead = self.engine.stats().state == "dead"
        ending = ending_of(finished, called=turn.called, going_down=self.draining, engine_dead=dead)
        end, row = turn.ending(ending, finished.token_ids)
        try:
            conversation = await self.saving.finish(row)
        except Exception:  # whatever it was: a run has an end, and its text is not lost
            log.exception("an answer could not be saved, it is kept in memory")
            self._unsaved[row.response_id] = row
            turn.append(turn.not_saved(ending))
            return
        turn.append(end)
        if conversation is not None:
            self.audience.publish(turn.names.user_id, ConversationUpdated(conversation=conversation))

    def _forget(self, turn: Turn) -> None:
        names = turn.names
        if names.response_id in self._unsaved:
            asyncio.get_running_loop().call_later(max(self.limits.replay_s, SAVE_EVERY_S), self._forget, turn)
            return
        self._by_response.pop(names.response_id, None)
        if self._by_client.get((names.user_id, names.client_id)) is turn:
            del self._by_client[names.user_id, names.client_id]

    # Saving ----------------------------------------------------------------------------------------------------------

    async def _save_on(self) -> None:
        """Once a second while there is something to save."""
        while self._unsaved or any(turn.end is None for turn in self._by_response.values()):
            await asyncio.sleep(SAVE_EVERY_S)
            await self.save()

    async def save(self) -> None:
        """What is written so far, in one transaction; then the ends that could not be stored before."""
        grown = [turn for turn in self._by_response.values() if turn.end is None and turn.saved < len(turn.numbered)]
        written = [turn.written() for turn in grown]
        try:
            if written:
                await self.saving.save(written)
        except (StorageError, SQLAlchemyError) as error:
            log.warning("running answers could not be saved: %s", error)
        else:
            for turn, row in zip(grown, written, strict=True):
                turn.saved = row.last_sequence
        await self._save_ends()

    async def _save_ends(self) -> None:
        for response_id, row in list(self._unsaved.items()):
            try:
                conversation = await self.saving.finish(row)
            except (StorageError, SQLAlchemyError) as error:
                log.warning("an answer could still not be saved: %s", error)
                return
            self._unsaved.pop(response_id, None)
            if conversation is not None and (turn := self._by_response.get(response_id)):
                self.audience.publish(turn.names.user_id, ConversationUpdated(conversation=conversation))
