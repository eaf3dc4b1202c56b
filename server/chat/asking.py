"""Asking: from a `response.create` to a running turn, in the order that keeps its promises. No transaction waits in it.

    validate -> scope -> take a place in the queue (refusals happen here, before any work)
             -> commit the question and an empty answer -> say so -> start
"""
import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace

from msgspec import UNSET

from hamdam.engine import Chat, Generation, SamplingParams, Tool

from ..errors import ApiError
from ..people.identity import Identity
from ..storage.database import Database
from ..storage.ids import new_id
from ..storage.tables import Message
from ..text_format import read_text_format
from ..tools import choose, read_tools
from .audience import Viewer
from .client_events import CallOutput, CreateResponse, InputMessage
from .owner import Owners
from .place import Place, chat_of, conversation_of, place_of, unpack_ids
from .protocol import ConversationCreated, ItemAdded, ItemUpdated, ServerEvent
from .refusals import engine_refusals
from .saving import NewRun
from .temporary import Temporary
from .turn import Beginning, Names, Turn
from .turns import Turns

BEST = {"temperature": 0.0}
"""How a chat is answered where neither the client nor the model's makers say: as well as the model can."""


@dataclass(frozen=True, slots=True)
class Known:
    """What a `client_id` that was sent before led to, and the turn where it is still in memory."""

    question: Message | None
    answer: Message
    turn: Turn | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    identity: Identity
    asked: CreateResponse
    params: SamplingParams
    names: Mapping[str, str]  # of parts of params, as the client called them
    tools: tuple[Tool, ...]
    must: tuple[str, ...]  # call one of these
    viewer: Viewer

    @property
    def question(self) -> tuple[str, ...] | None:
        messages = [item for item in self.asked.input or () if isinstance(item, InputMessage)]
        return tuple(part.text for message in messages for part in message.content) if messages else None

    @property
    def outputs(self) -> tuple[CallOutput, ...]:
        return tuple(item for item in self.asked.input or () if isinstance(item, CallOutput))


class Asking:
    def __init__(self, turns: Turns, owners: Owners) -> None:
        self.turns, self.engine, self.owners = turns, turns.engine, owners
        self.temporary = Temporary(turns)
        self._sent: dict[tuple[str, str], tuple[asyncio.Lock, int]] = {}

    async def ask(self, identity: Identity, asked: CreateResponse, viewer: Viewer) -> Known | None:
        """None: a new turn runs, and everybody who is to know was told. Else what was asked for before.

        Once begun it comes to its end whoever waits for it: a question is not lost with the socket that brought it.
        """
        form = read_text_format(asked.text.format if asked.text else None, "text.format")
        with engine_refusals("sampling.", names=form.names):
            params = self.engine.sampling_params(form.added_to(asked.sampling, "text.format"), otherwise=BEST)
        tools, must = choose(read_tools(asked.tools), asked.tool_choice)
        ask = Ask(
            identity=identity, asked=asked, params=params, names=form.names, tools=tools, must=must, viewer=viewer
        )
        self._refuse(ask)
        return await asyncio.shield(self.turns.own(self._ask(ask)))

    async def warm(self, identity: Identity, asked: CreateResponse) -> None:
        """Only bring the conversation's blocks up: a hint that is not answered."""
        if asked.conversation_id is None:
            raise ApiError("invalid_field", "Only a conversation that is there can be warmed.", param="conversation_id")
        async with self.turns.shelves.of(asked.conversation_id).read() as sql:
            conversation = await conversation_of(sql, identity.user_id, asked)
            place = await place_of(sql, conversation, asked) if conversation else Place()
        tools, _ = choose(read_tools(asked.tools), asked.tool_choice)
        chat = replace(await self._chat(asked.conversation_id, place, None), tools=tools)
        self.engine.warm(asked.conversation_id, chat, owner=self.owners.of(identity))

    def _refuse(self, ask: Ask) -> None:
        """What can be said to be wrong without looking anything up."""
        asked, here = ask.asked, self.engine.model_name
        models = (asked.model, asked.conversation.model if asked.conversation else None)
        if any(model not in (None, "default", here) for model in models):
            raise ApiError("model_not_found", "This server has no such model.", param="model")
        texts = (*(ask.question or ()), *(one.output for one in ask.outputs), asked.instructions or "")
        if sum(len(text.encode()) for text in texts) > self.turns.limits.text_bytes:
            raise ApiError("too_large", f"A text may have at most {self.turns.limits.text_bytes} bytes.", param="input")
        goes_on, placed = asked.continue_ is not None, asked.parent_id is not UNSET
        for field, wrong, why in (
            ("input", any("\0" in text for text in texts), "A text cannot contain U+0000."),
            ("input", ask.question is not None and not any(ask.question), "The question is empty."),
            ("input", not (asked.input or asked.conversation_id or goes_on), "A question is needed."),
            ("continue", goes_on and asked.input is not None, "An answer goes on without a new question."),
            ("conversation", _places(asked) != 1, "Either `conversation_id` or `conversation`."),
            ("parent_id", placed and asked.conversation_id is None, "A new conversation has no messages."),
            ("parent_id", placed and goes_on, "Not together with `continue`."),
            ("sampling.n", ask.params.n != 1, "A conversation has one answer at a time."),
            ("sampling.prompt_logprobs", ask.params.prompt_logprobs is not None, "Only /v1 tells these."),
            ("input", len(asked.input or ()) > 1 and ask.question is not None, "One message, or what came of calls."),
        ):
            if wrong:
                raise ApiError("invalid_field", why, param=field)

    async def _ask(self, ask: Ask) -> Known | None:
        turns, asked, user_id = self.turns, ask.asked, ask.identity.user_id
        async with self._once(user_id, asked.client_id):
            if known := await self._known(user_id, asked.client_id):
                return known
            database = await self._database(user_id, asked)
            async with database.read() as sql:
                conversation = await conversation_of(sql, user_id, asked)
            if conversation and asked.store is turns.shelves.is_temporary(conversation.id):
                raise ApiError("invalid_field", "A conversation stays as it was begun.", param="store")
            conversation_id, response_id = conversation.id if conversation else new_id("conv"), new_id("resp")
            turns.reserve(conversation_id, response_id)
            try:
                place = Place(instructions=asked.instructions)
                if conversation is None and asked.store is False:
                    self.temporary.begin(ask.identity, conversation_id)
                if conversation is not None:
                    # Looked up again: only now is what the run before this one wrote in the database, or in memory.
                    async with database.read() as sql:
                        place = await place_of(sql, await conversation_of(sql, user_id, asked) or conversation, asked)
                chat = await self._chat(conversation_id, place, ask.question, ask.outputs)
                chat = replace(
                    chat, tools=ask.tools, must_call=ask.must, parallel_calls=asked.parallel_tool_calls
                )
                _refuse_unknown_calls(chat, ask.outputs)
                with engine_refusals("sampling.", texts="input", names=ask.names):
                    owner = self.owners.of(ask.identity)
                    generation = await self.engine.submit(chat, ask.params, owner=owner, session_id=conversation_id)
                try:
                    turn = await self._begin(ask, conversation_id, response_id, place, generation)
                except BaseException:
                    generation.cancel()  # gives the place back
                    raise
            except BaseException:
                turns.release(conversation_id)
                if conversation is None:
                    turns.shelves.forget(conversation_id)
                raise
            turns.audience.subscribe(ask.viewer, conversation_id)
            turns.run(turn)
            return None

    async def _database(self, user_id: str, asked: CreateResponse) -> Database:
        """Where the conversation is kept that is meant; `continue` may name it by an answer alone."""
        named = asked.conversation_id
        if named is None and asked.continue_ is not None:
            answer = await self.turns.history.answer(user_id, message_id=asked.continue_)
            named = answer.conversation_id if answer else None
        return self.turns.shelves.of(named)

    async def _chat(
        self,
        conversation_id: str,
        place: Place,
        question: tuple[str, ...] | None,
        outputs: tuple[CallOutput, ...] = (),
    ) -> Chat:
        newer = {item_id: turn.message() for item_id, turn in self.turns.ahead(conversation_id).items()}
        return await asyncio.to_thread(chat_of, place, question, newer, outputs)

    async def _begin(
        self, ask: Ask, conversation_id: str, response_id: str, place: Place, generation: Generation
    ) -> Turn:
        """Store the question and the empty answer, then tell everybody."""
        asked, user_id, continued = ask.asked, ask.identity.user_id, place.continued
        new = asked.conversation_id is None and continued is None
        run = NewRun(
            user_id=user_id,
            conversation_id=conversation_id,
            response_id=response_id,
            answer_id=continued.id if continued else new_id("msg"),
            client_id=asked.client_id,
            model=self.engine.model_name,
            parent_id=place.parent_id,
            question_id=new_id("msg") if asked.input else None,
            question=ask.question or (),
            outputs=ask.outputs,
            instructions=asked.instructions,
            new_conversation=new,
            continued=continued is not None,
        )
        conversation, items = await self.turns.saving.begin(run)
        said: list[ServerEvent] = [ConversationCreated(conversation=conversation)] if new else []
        said += [(ItemUpdated if continued else ItemAdded)(item=item, client_id=run.client_id) for item in items]
        for event in said:
            self.turns.audience.publish(user_id, event, origin=ask.viewer, in_reply_to=asked.event_id)
        names = Names(
            user_id=user_id,
            conversation_id=conversation_id,
            response_id=response_id,
            item_id=run.answer_id,
            client_id=run.client_id,
        )
        return Turn(names, generation, self.engine.ids_fingerprint, self._beginning(place))

    def _beginning(self, place: Place) -> Beginning | None:
        """An answer that goes on keeps its ids where they were made by the tokenizer and template of today."""
        if (answer := place.continued) is None:
            return None
        if answer.token_ids is not None and answer.ids_fingerprint == self.engine.ids_fingerprint:
            return Beginning(answer.text, unpack_ids(answer.token_ids), answer.answered)
        return Beginning(answer.text, None if answer.text else (), answer.answered)

    async def _known(self, user_id: str, client_id: str) -> Known | None:
        turn = self.turns.find(user_id, client_id=client_id)
        history, item_id = self.turns.history, turn.names.item_id if turn else None
        answer = await history.answer(user_id, message_id=item_id, client_id=client_id)
        return Known(await history.question_of(answer), answer, turn) if answer else None

    @asynccontextmanager
    async def _once(self, user_id: str, client_id: str) -> AsyncIterator[None]:
        """One at a time for the same `client_id`: the second one finds what the first one made."""
        key = user_id, client_id
        lock, waiting = self._sent.get(key, (asyncio.Lock(), 0))
        self._sent[key] = lock, waiting + 1
        try:
            async with lock:
                yield
        finally:
            lock, waiting = self._sent.pop(key)
            if waiting > 1:
                self._sent[key] = lock, waiting - 1


def _refuse_unknown_calls(chat: Chat, outputs: tuple[CallOutput, ...]) -> None:
    """What came of a call belongs right below the answer that made it."""
    before = chat.messages[: len(chat.messages) - len(outputs)]
    made = {call.id for call in before[-1].tool_calls} if before else set()
    for index, one in enumerate(outputs):
        if one.call_id not in made:
            why = "The answer before it makes no such call, or it has its output already."
            raise ApiError("invalid_field", why, param=f"input[{index}].call_id")
        made.remove(one.call_id)


def _places(asked: CreateResponse) -> int:
    """How many conversations are named; `continue` names one by its message."""
    if asked.continue_ is not None:
        return 1 if asked.conversation is None else 2
    return (asked.conversation_id is not None) + (asked.conversation is not None)
