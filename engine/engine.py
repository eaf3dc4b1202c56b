"""Engine: the front door, on the event loop: who is let in, and where answers come out. It computes nothing itself.

Steps are taken on a thread of their own (step_loop.py), policy is engine/policy, arithmetic is the runner's. It knows
no HTTP, no user and no database.
"""
import asyncio
import logging
import secrets
from collections import Counter
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from types import MappingProxyType
from typing import Any
from weakref import WeakValueDictionary

from .chat import Chat, Owner
from .config import EngineConfig
from .crossing import Crossing
from .errors import EngineStopped, InvalidField, PromptTooLong, QueueFull, Refusal, TooManyInFlight
from .events import EngineStats
from .generation import Generation
from .grammar.grammars import Grammars
from .grammar.matcher import Grammar, Matcher
from .policy.batch import Runner
from .policy.sampling_params import BANNED, SamplingParams
from .policy.scheduler import Scheduler
from .policy.sequence import Sequence
from .policy.structured_outputs import FIELD, StructuredOutputs
from .policy.thinking import Thinking
from .step_loop import Add, Cancel, CloseSession, Died, Fact, Order, Places, StepLoop
from .text.codec import Codec

log = logging.getLogger("hamdam.engine")
MAX_LISTED = 1 << 17  # tokens and alternatives to them that are listed of one prompt: some 30 MB
NOTHING: Mapping[str, Any] = MappingProxyType({})


class Engine:
    """`start` on a running event loop, then `submit`; `stop` ends every open generation."""

    def __init__(
        self,
        config: EngineConfig,
        codec: Codec,
        runner: Runner,
        *,
        model_name: str = "default",
        sampling: Mapping[str, Any] = NOTHING,
        grammars: Grammars | None = None,
    ) -> None:
        """`sampling`: what the model's makers recommend, for what a client leaves open.

        `grammars`: prepared ones of this vocabulary, where there are any. The engine closes them.
        """
        self.config, self.codec, self.runner, self.model_name = config, codec, runner, model_name
        self.sampling = sampling
        self.scheduler = Scheduler(
            config, num_blocks=runner.num_blocks, max_context=runner.max_context, kv_fingerprint=runner.kv_fingerprint
        )
        self.max_context = self.scheduler.max_ids
        if self.max_context < runner.max_context:
            log.warning("KV memory holds %d tokens of a context of %d", self.max_context, runner.max_context)
        self.max_prompt = self.scheduler.max_prompt
        self.ids_fingerprint = codec.fingerprint
        self._open: dict[int, Generation] = {}
        self._in_flight: Counter[str] = Counter()
        self._reserved = 0  # places of requests that are still being encoded
        self._next_id = 0
        self._seconds_per_answer = 5.0  # running mean, for estimates only
        self._encoders = ThreadPoolExecutor(2, thread_name_prefix="hamdam-encode")
        self._encoding: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()  # by owner, while it is needed
        self._grammars = grammars or Grammars(lambda: codec.texts(runner.vocab_size))
        self._warming: dict[asyncio.Task[None], str] = {}  # the session of each
        self._steps = StepLoop(self.scheduler, runner)
        self._crossing: Crossing[Fact, Order] | None = None
        self._stopped = False

    def start(self) -> None:
        """Starts the engine's thread; the running event loop is the one that all generations live on."""
        self._crossing = Crossing(asyncio.get_running_loop(), self._receive)
        self._steps.start(self._crossing)

    def stop(self) -> None:
        """Ends the thread after its current step and every open generation with `stopped`. Idempotent."""
        self._stopped = True
        self._steps.stop()
        self._encoders.shutdown(wait=False, cancel_futures=True)
        self._grammars.close()
        self._fail_all(self._steps.fault or "the engine was stopped")

    def sampling_params(self, asked: Mapping[str, Any], otherwise: Mapping[str, Any] = NOTHING) -> SamplingParams:
        """A client's object; what it leaves open as the model's makers recommend, and then as `otherwise` says.

        Raises InvalidField by name.
        """
        usual = {**otherwise, **self.sampling}
        said = {name: value for name, value in asked.items() if value is not None or name not in usual}
        return SamplingParams.from_dict(usual | said)

    async def submit(
        self, chat: Chat, params: SamplingParams, *, owner: Owner, session_id: str | None = None
    ) -> Generation:
        """Takes a place in the queue; no forward work happens before `Generation.start()`.

        Raises PromptTooLong, QueueFull, TooManyInFlight, InvalidField, EngineStopped.
        """
        self._refuse(owner, params)
        self._reserve(owner)
        try:
            self._refuse_hopeless(chat)
            async with self._encoding.setdefault(owner.id, asyncio.Lock()):  # nobody fills all encoders
                ids = await asyncio.get_running_loop().run_in_executor(self._encoders, self.codec.encode_chat, chat)
                if not ids:  # no position of which the next token could be foretold
                    raise InvalidField("messages", "the model's chat template writes nothing of them")
                if len(ids) > self.max_prompt:
                    raise PromptTooLong(len(ids), self.max_prompt)
                _refuse_to_list(len(ids), params)
                matcher = await self._matcher(chat, ids, params, owner)
            self._refuse_when_stopped()
            sequence = self._sequence(ids, params, owner, session_id, matcher)
            sequence.thinking = self._thinking(chat, ids, params)
            answer = self.codec.answer_stream(
                chat, ids, params.stop, include_stop=params.include_stop_str, logprobs=params.logprobs,
                in_form=params.structured_outputs is not None and not chat.must_call,
            )
        except BaseException:
            self._give_back(owner)
            raise
        finally:
            self._reserved -= 1
        generation = Generation(sequence, answer, self.codec.spelled, self._begin, self._end)
        self._open[sequence.id] = generation
        return generation

    def warm(self, session_id: str, chat: Chat, *, owner: Owner) -> None:
        """The reader opened a chat: brings its blocks up. A hint only: a refusal changes nothing but speed."""
        task = asyncio.get_running_loop().create_task(self._warm(session_id, chat, owner))
        self._warming[task] = session_id
        task.add_done_callback(self._warming.pop)

    async def _warm(self, session_id: str, chat: Chat, owner: Owner) -> None:
        try:
            params = SamplingParams(temperature=0, max_tokens=1)
            generation = await self.submit(chat, params, owner=owner, session_id=session_id)
        except (Refusal, EngineStopped) as refusal:
            log.debug("not warmed: %s", refusal)
            return
        generation.start()
        async for _ in generation:
            pass

    def close_session(self, session_id: str) -> None:
        """Ends what runs in it and forgets its blocks at once."""
        for warming in [task for task, warmed in self._warming.items() if warmed == session_id]:
            warming.cancel()  # it may still be encoding, and would open the session again
        for generation in [g for g in self._open.values() if g.sequence.session_id == session_id]:
            generation.cancel()
        self._order(CloseSession(session_id))

    def stats(self) -> EngineStats:
        """Never blocks: the state after the last finished step."""
        return self._steps.stats()

    @property
    def waiting(self) -> int:
        return self._reserved + sum(not g.scheduled for g in self._open.values())

    def in_flight(self, owner_id: str) -> int:
        """How many of this owner's answers run or wait."""
        return self._in_flight[owner_id]

    def _refuse(self, owner: Owner, params: SamplingParams) -> None:
        self._refuse_when_stopped()
        self._refuse_ids(params)
        if owner.max_running is not None and owner.max_queued is not None:
            limit = owner.max_running + owner.max_queued
            if self._in_flight[owner.id] >= limit:
                raise TooManyInFlight(limit, retry_after=self._seconds_per_answer)
        if self.waiting >= self.config.max_queued:
            raise QueueFull(self.waiting + 1, retry_after=max(1.0, self._eta(self.waiting + 1) / 1e3))

    def _refuse_ids(self, params: SamplingParams) -> None:
        """What the model has no logit for; and what would leave it nothing to draw."""
        size = min(self.runner.vocab_size, self.codec.vocab_size)  # a model may have room for more than the tokenizer
        banned = {token for token, bias in params.logit_bias if bias <= BANNED}
        allowed = None if params.allowed_token_ids is None else frozenset(params.allowed_token_ids)
        for field, ids in (
            ("stop_token_ids", params.stop_token_ids), ("allowed_token_ids", allowed or ()),
            ("logit_bias", [token for token, _ in params.logit_bias]),
        ):
            if ids and max(ids) >= size:
                raise InvalidField(field, f"{max(ids)} is not below {size}, the size of the vocabulary")
        if len(banned) >= size or (allowed is not None and allowed <= banned):
            raise InvalidField("logit_bias", "every token is banned")
        if allowed and params.min_tokens and allowed <= banned | self.runner.eos_ids | {*params.stop_token_ids}:
            raise InvalidField("allowed_token_ids", "only ends of an answer, which min_tokens holds back")

    def _refuse_when_stopped(self) -> None:
        if self._steps.fault is not None:
            raise EngineStopped(self._steps.fault)
        if self._crossing is None or self._stopped:
            raise EngineStopped("the engine was stopped" if self._stopped else "the engine has not started")

    def _refuse_hopeless(self, chat: Chat) -> None:
        """A text that cannot fit whatever it says is refused by its length, before anybody tokenises it."""
        size = sum(len(part) for message in chat.messages for part in message.parts)
        at_least = size // self.codec.longest_token
        if at_least > self.max_prompt:
            raise PromptTooLong(at_least, self.max_prompt)

    def _reserve(self, owner: Owner) -> None:
        self._in_flight[owner.id] += 1
        self._reserved += 1

    def _give_back(self, owner: Owner) -> None:
        self._in_flight[owner.id] -= 1
        if not self._in_flight[owner.id]:
            del self._in_flight[owner.id]

    def _thinking(self, chat: Chat, ids: list[int], params: SamplingParams) -> Thinking | None:
        if params.thinking_budget is None:
            return None
        tokens = self.codec.thought_tokens(chat)
        if tokens is None:
            raise InvalidField("thinking_budget", "this model has no tokens that begin and end a thought")
        return Thinking(params.thinking_budget, *tokens, inside=self.codec.thinks(chat, ids))

    async def _matcher(self, chat: Chat, ids: list[int], params: SamplingParams, owner: Owner) -> Matcher | None:
        """Calls that have to be made; a form, or calls in its place; calls by their schemas wherever they are made."""
        form = None if chat.must_call else params.structured_outputs
        free = form is None and not chat.must_call
        if free and not any(tool.strict for tool in chat.tools):
            return None
        field = FIELD if form is not None else "tools"
        if not (self.runner.eos_ids or params.stop_token_ids):
            raise InvalidField(field, "this model has no token that ends an answer; stop_token_ids are needed")
        if self.codec.calls_are_text or chat.must_call:
            matcher = await self._matcher_of_text(chat, ids, form, owner)
        else:
            matcher = await self._matcher_of_messages(chat, ids, form, owner)
        if chat.continue_last and not matcher.waits and not matcher.begin("".join(chat.messages[-1].parts)):
            raise InvalidField(field, "the answer that is to go on does not follow it")
        return matcher

    async def _matcher_of_text(
        self, chat: Chat, ids: list[int], form: StructuredOutputs | None, owner: Owner
    ) -> Matcher:
        grammars = [await self._grammars.compiled(form, owner.id)] if form is not None else []
        free = form is None and not chat.must_call
        if chat.tools:
            calls = self.codec.free_forms(chat) if free else [self.codec.call_form(chat, chat.must_call)]
            try:
                grammars += [await self._grammars.compiled(one, owner.id) for one in calls]
            except InvalidField as refusal:
                raise await self._bad_tool(chat, owner, refusal) from refusal
        ahead = self.codec.thought_ahead(chat, ids) if free else None
        return Matcher(grammars, self.codec.thought_end(chat, ids), ahead)

    async def _matcher_of_messages(
        self, chat: Chat, ids: list[int], form: StructuredOutputs | None, owner: Owner
    ) -> Matcher:
        """Of a model whose answers and calls are messages, each of which has its own form or is free."""
        held: dict[str, Grammar] = {}
        for name, one in self.codec.message_forms(chat, form).items():
            try:
                held[name] = await self._grammars.compiled(one, owner.id)
            except InvalidField as refusal:
                raise refusal if one is form else await self._bad_tool(chat, owner, refusal) from refusal
        after = self.codec.messages(chat) if form is None else self.codec.thought_end(chat, ids)
        return Matcher([*held.values()][:1], after, messages=held, may_end=form is None)

    async def _bad_tool(self, chat: Chat, owner: Owner, refusal: InvalidField) -> InvalidField:
        """Which of the tools it is whose schema cannot be held to."""
        for index, tool in enumerate(chat.tools):
            if tool.strict or tool.name in chat.must_call:
                try:
                    await self._grammars.compiled(self.codec.call_form(chat, (tool.name,)), owner.id)
                except InvalidField as own:
                    return InvalidField(f"tools[{index}]", f"the tool `{tool.name}`: {own.why}")
        return InvalidField("tools", refusal.why)

    def _sequence(
        self, ids: list[int], params: SamplingParams, owner: Owner, session_id: str | None, matcher: Matcher | None
    ) -> Sequence:
        self._next_id += 1
        eos, asked = self.runner.eos_ids, frozenset(params.stop_token_ids)
        room = self.max_context - len(ids)
        return Sequence(
            id=self._next_id,
            owner=owner,
            ids=ids,
            num_prompt=len(ids),
            params=params,
            seed=params.seed if params.seed is not None else secrets.randbits(63),
            max_tokens=min(params.max_tokens or room, room),
            stop_ids=asked if params.ignore_eos and matcher is None else asked | eos,
            held_back_ids=asked | eos,
            bad_ids=tuple(ids for word in params.bad_words for ids in sorted(self.codec.spellings(word)) if ids),
            session_id=session_id,
            matcher=matcher,
        )

    def _begin(self, generation: Generation) -> None:
        self._order(Add(generation.sequence))

    def _end(self, generation: Generation, keep: int | None) -> None:
        """A generation ended: its place is free. With `keep` the scheduler does not know yet."""
        if self._open.pop(generation.sequence.id, None) is None:
            return
        self._give_back(generation.sequence.owner)
        if keep is not None and generation.begun:
            self._order(Cancel(generation.sequence.id, keep))
        if generation.finished and generation.scheduled:
            self._seconds_per_answer += 0.1 * (generation.finished.timings.total_ms / 1e3 - self._seconds_per_answer)

    def _order(self, order: Order) -> None:
        if self._crossing and not self._stopped:
            self._crossing.order(order)

    def _receive(self, facts: list[Fact]) -> None:
        """All that was told since the last time, on the event loop."""
        for fact in facts:
            match fact:
                case Places(sequence_ids=waiting):
                    for place, sequence_id in enumerate(waiting, 1):
                        if generation := self._open.get(sequence_id):
                            generation.place(place, self._eta(place))
                case Died(why=why):
                    self._fail_all(why)
                case _:
                    if generation := self._open.get(fact.sequence.id):
                        generation.take(fact)

    def _eta(self, place: int) -> float:
        """Milliseconds until the sequence at `place` may start, from how long answers took lately. An estimate."""
        return 1e3 * self._seconds_per_answer * place / self.config.max_running

    def _fail_all(self, why: str) -> None:
        for generation in list(self._open.values()):
            generation.fail(why)


def _refuse_to_list(tokens: int, params: SamplingParams) -> None:
    """All that is listed of a prompt is in memory at a time."""
    if params.prompt_logprobs is not None and tokens * (1 + params.prompt_logprobs) > MAX_LISTED:
        most = MAX_LISTED // (1 + params.prompt_logprobs)
        raise InvalidField("prompt_logprobs", f"the prompt has {tokens} tokens; so much is listed of {most} at most")
