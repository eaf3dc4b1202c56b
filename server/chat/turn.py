"""Turn: one run's numbered list of events, grown by its generation. No socket and no database.

Its followers have a cursor into the list (delivery.py). Which turns there are, and that an end is stored before it is
said, is turns.py.
"""
import asyncio
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace

from hamdam.engine import (
    Called,
    ChatMessage,
    Finished,
    Generation,
    Prefilled,
    Queued,
    Reasoning,
    Started,
    Text,
    ToolCall,
)

from ..logprobs import listed
from .ending import Ending
from .parts import ONLY_TEXT, Answered
from .place import pack_ids
from .protocol import (
    CallDelta,
    CallDone,
    Delta,
    Numbered,
    ReasoningDelta,
    ReasoningDone,
    ResponseCreated,
    ResponseInProgress,
    ResponsePrefill,
    ResponseQueued,
    ResponseSnapshot,
    ResponseStats,
    RunEnd,
    RunEvent,
    RunState,
    TextDelta,
    TextDone,
)
from .saving import Written

STATE_EVERY_S = 1.0
"""Queue places and figures change all the time; they are told at most this often."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Names:
    """The ids of a run."""

    user_id: str
    conversation_id: str
    response_id: str
    item_id: str
    client_id: str


@dataclass(frozen=True, slots=True)
class Beginning:
    """What of the answer stands already, where it goes on. Ids None: those of the text are not known."""

    text: str = ""
    token_ids: tuple[int, ...] | None = ()
    answered: Answered = ONLY_TEXT


class Turn:
    def __init__(
        self, names: Names, generation: Generation, ids_fingerprint: str, beginning: Beginning | None = None
    ) -> None:
        self.names, self.generation, self.ids_fingerprint = names, generation, ids_fingerprint
        self.beginning = beginning or Beginning()
        self.continues = beginning is not None
        self.numbered: list[Numbered] = []
        self.states: dict[type[RunEvent], tuple[int, RunEvent]] = {}  # the latest of a kind, with its version
        self.followers: set[Callable[[], None]] = set()  # called when there is something new
        self.end: RunEnd | None = None
        self.ended = asyncio.Event()
        self.saved = 0  # the last number whose text is in the database while this runs
        self._pieces = [self.beginning.text]
        self._thoughts = [self.beginning.answered.reasoning]
        self._calls: list[ToolCall] = []  # of this run
        self._thinking = False
        self._token_ids: list[int] = []  # of this run
        self._versions = 0
        self._told: dict[type[RunEvent], float] = {}
        self._first_text = 0.0
        self.add(ResponseCreated, item_id=names.item_id, client_id=names.client_id)

    @property
    def text(self) -> str:
        """The whole answer as far as it is."""
        return _joined(self._pieces)

    @property
    def reasoning(self) -> str:
        """What was thought before it."""
        return _joined(self._thoughts)

    @property
    def answered(self) -> Answered:
        """What the answer has beside its text."""
        return Answered(self.reasoning, (*self.beginning.answered.calls, *self._calls))

    @property
    def called(self) -> bool:
        """Whether this run makes calls."""
        return bool(self._calls)

    @property
    def status(self) -> str:
        if self.end is None:
            return "in_progress"
        return str(type(self.end).__struct_config__.tag).removeprefix("response.")

    def state(self) -> RunState:
        return RunState(self.names.response_id, self.names.item_id, self.status, len(self.numbered))

    def snapshot(self) -> ResponseSnapshot:
        """All but the end, which is always sent as itself. Text and number are read together, with no wait between."""
        number = len(self.numbered) - (self.end is not None)
        answered = self.answered
        return ResponseSnapshot(
            **self._ids,
            item_id=self.names.item_id,
            text=self.text,
            reasoning_text=answered.reasoning,
            function_calls=answered.function_calls,
            status=self.status,
            sequence_number=number,
        )

    async def follow(self) -> Finished:
        """Grow by what the generation tells. Its end is not in the list when this returns: it is to be stored first."""
        clock = asyncio.get_running_loop().time
        async for event in self.generation:
            match event:
                case Queued():
                    self._tell(ResponseQueued, clock(), STATE_EVERY_S, position=event.place, eta_ms=event.eta_ms)
                case Started():
                    self.states.pop(ResponseQueued, None)
                    self.add(ResponseInProgress, input_tokens=event.input_tokens, cached_tokens=event.cached_tokens)
                case Prefilled():
                    self._tell(ResponsePrefill, clock(), done=event.done, total=event.total)
                case Text() | Reasoning():
                    self._grow(event, clock())
                case Called(whole=True):
                    self._call(event)
                case Called():  # nobody can make it: where the answer goes on the model begins it once more
                    self._grow(Text("", event.token_ids, event.logprobs), clock())
                case Finished():
                    return event
        raise RuntimeError("a generation ended without saying so")

    def ending(self, ending: Ending, token_ids: tuple[int, ...]) -> tuple[RunEnd, Written]:
        """The text is final: the last event, and the row that is to be stored before it may be appended.

        `token_ids` are the engine's word on the ids of the answer: cut where its text is cut.
        """
        self._token_ids = list(token_ids)
        self._end_thinking()
        self.add(TextDone, item_id=self.names.item_id, text=self.text)
        end = ending.event(**self._ids, item_id=self.names.item_id, sequence_number=len(self.numbered) + 1)
        return end, replace(self.written(), **asdict(ending), last_sequence=end.sequence_number)

    def not_saved(self, ending: Ending) -> RunEnd:
        return ending.not_saved(**self._ids, item_id=self.names.item_id, sequence_number=len(self.numbered) + 1)

    def message(self) -> ChatMessage:
        """The answer as the engine is told it."""
        answered = self.answered
        return ChatMessage("assistant", self.text, reasoning=answered.reasoning, tool_calls=answered.calls)

    def written(self) -> Written:
        """The answer's row, as far as it is."""
        before = self.beginning.token_ids
        return Written(
            message_id=self.names.item_id,
            response_id=self.names.response_id,
            conversation_id=self.names.conversation_id,
            text=self.text,
            parts=self.answered.parts,
            token_ids=pack_ids((*before, *self._token_ids)) if before is not None else None,
            ids_fingerprint=self.ids_fingerprint if before is not None else None,
            last_sequence=len(self.numbered),
        )

    def add(self, kind: type[Numbered], **fields: object) -> None:
        self.append(kind(**self._ids, sequence_number=len(self.numbered) + 1, **fields))  # type: ignore[arg-type]

    def append(self, event: Numbered) -> None:
        self.numbered.append(event)
        if isinstance(event, RunEnd):
            self.end = event
            self.states.clear()
            self.ended.set()
        self._wake()

    def _grow(self, event: Text | Reasoning, now: float) -> None:
        self._token_ids.extend(event.token_ids)
        if not (event.text or event.logprobs):
            return
        self.states.pop(ResponsePrefill, None)
        kind: type[Delta] = TextDelta
        if isinstance(event, Reasoning):
            self._thinking, kind = self._thinking or event.text != "", ReasoningDelta
            self._thoughts.append(event.text)
        else:
            self._end_thinking()
            self._pieces.append(event.text)
        self.add(kind, item_id=self.names.item_id, delta=event.text, logprobs=listed(event.logprobs) or None)
        self._first_text = self._first_text or now
        usage, lasted = self.generation.usage, now - self._first_text
        output, tps = usage.output_tokens, (usage.output_tokens - 1) / lasted if lasted else 0.0
        facts = {"tps": round(tps, 1), "output_tokens": output, "context_used": usage.total_tokens}
        self._tell(ResponseStats, now, STATE_EVERY_S, **facts)

    def _call(self, event: Called) -> None:
        self._token_ids.extend(event.token_ids)
        self.states.pop(ResponsePrefill, None)
        self._end_thinking()
        self._calls.append(event.call)
        arguments, logprobs = event.call.arguments, listed(event.logprobs) or None
        names = {"item_id": self.names.item_id, "call_id": event.call.id, "name": event.call.name}
        self.add(CallDelta, **names, delta=arguments, logprobs=logprobs)
        self.add(CallDone, **names, arguments=arguments)

    def _end_thinking(self) -> None:
        if self._thinking:
            self._thinking = False
            self.add(ReasoningDone, item_id=self.names.item_id, text=self.reasoning)

    def _tell(self, kind: type[RunEvent], now: float, every: float = 0.0, /, **fields: object) -> None:
        """A state without a number: the latest of its kind wins."""
        if now - self._told.get(kind, -every) < every:
            return
        self._told[kind] = now
        self._versions += 1
        self.states[kind] = (self._versions, kind(**self._ids, **fields))  # type: ignore[arg-type]
        self._wake()

    @property
    def _ids(self) -> dict[str, str]:
        return {"response_id": self.names.response_id, "conversation_id": self.names.conversation_id}

    def _wake(self) -> None:
        for wake in self.followers:
            wake()


def _joined(pieces: list[str]) -> str:
    """All of them as one, which also stands in their place from now on."""
    if len(pieces) > 1:
        pieces[:] = ["".join(pieces)]
    return pieces[0]
