"""The front door and the step loop, over the scripted runner: places, phases, ends. Policy has its own tests."""
import asyncio
import threading
from pathlib import Path

import pytest
from scripted import scripted_engine

from hamdam.engine import (
    Chat,
    ChatMessage,
    EngineConfig,
    EngineStopped,
    Finished,
    InvalidField,
    Owner,
    PromptTooLong,
    QueueFull,
    SamplingParams,
    Started,
    Text,
    TooManyInFlight,
)
from hamdam.engine.text.codec import Codec

ANN, BEN = Owner("ann", "ann"), Owner("ben", "ben")
BOUNDLESS = Owner("service", "service", max_running=None, max_queued=None)
MANY = 10**6


pytestmark = pytest.mark.usefixtures("one_by_one_and_ahead")


def config(**knobs):
    return EngineConfig(model=Path("scripted"), **knobs)


def chat(*texts):
    """Questions and answers in turn."""
    return Chat(tuple(ChatMessage("user" if i % 2 == 0 else "assistant", text) for i, text in enumerate(texts)))


async def run(engine, conversation, owner=ANN, session_id=None, **params):
    generation = await engine.submit(conversation, SamplingParams(**params), owner=owner, session_id=session_id)
    generation.start()
    return [event async for event in generation]


def text_of(events):
    return "".join(e.text for e in events if isinstance(e, Text))


class Running:
    """`async with Running(...) as engine`: started, and stopped with nothing left behind."""

    def __init__(self, **options):
        self.engine = scripted_engine(**options)

    async def __aenter__(self):
        self.engine.start()
        return self.engine

    async def __aexit__(self, *_):
        if self.engine.runner.gate:
            self.engine.runner.gate.release(MANY)
        self.engine.stop()
        assert self.engine.runner.closed
        assert not self.engine._open
        assert not self.engine._in_flight


async def until(condition):
    """Waits for something that the other thread does; the test's own timeout bounds it."""
    while not condition():  # noqa: ASYNC110  (the other thread has no event to set)
        await asyncio.sleep(0.001)


async def idle(engine):
    await until(lambda: engine.stats().state == "idle")
    return engine.stats()


def test_an_answer_is_started_written_and_finished_once():
    async def main():
        async with Running() as engine:
            answer = "سلام می‌روم 🦙"
            events = await run(engine, chat(f"say {answer}"))
            assert isinstance(events[0], Started)
            assert text_of(events) == answer
            assert [e for e in events if isinstance(e, Finished)] == [events[-1]]
            assert events[-1].reason == "stop"
            assert len(events[-1].token_ids) == len(answer.encode())
            assert events[-1].usage.output_tokens == len(answer.encode()) + 1  # and the end token
            assert (await idle(engine)).blocks_running == 0

    asyncio.run(main())


def test_the_second_turn_computes_only_what_is_new():
    async def main():
        async with Running() as engine:
            question = chat("say hello there")
            first = await run(engine, question, session_id="s")
            answer = ChatMessage("assistant", text_of(first), first[-1].token_ids, engine.ids_fingerprint)
            before = engine.runner.computed
            talk = Chat((*question.messages, answer, ChatMessage("user", "say more")))
            usage = (await run(engine, talk, session_id="s"))[-1].usage
            assert usage.cached_tokens == first[-1].usage.total_tokens - 1  # the end token was not computed
            assert engine.runner.computed - before == usage.input_tokens - usage.cached_tokens + usage.output_tokens - 1

    asyncio.run(main())


def test_a_stop_string_is_the_end_of_text_ids_usage_and_session():
    async def main():
        async with Running() as engine:
            events = await run(engine, chat("say one two STOP three"), session_id="s", stop=("STOP",))
            end = events[-1]
            assert text_of(events) == "one two "
            assert (end.reason, end.stop) == ("stop", "STOP")
            assert end.usage.output_tokens == len(end.token_ids) == len("one two STOP")
            await until(lambda: "s" in engine.scheduler.sessions)
            await until(lambda: len(engine.scheduler.sessions["s"].ids) <= end.usage.total_tokens)

    asyncio.run(main())


@pytest.mark.parametrize("phase", ["placed", "queued", "prefill", "decode"])
def test_cancel_ends_it_by_the_next_step_in_every_phase(phase):
    async def main():
        async with Running(config=config(max_batch_tokens=16, max_running=1)) as engine:
            gate = engine.runner.gate = threading.Semaphore(0)
            blocker = None
            if phase == "queued":
                blocker = await engine.submit(chat("count 500"), SamplingParams(), owner=BEN)
                blocker.start()
                gate.release(8)
                await until(lambda: blocker.usage.output_tokens > 0)
            generation = await engine.submit(chat("say " + "x" * 500), SamplingParams(), owner=ANN, session_id="s")
            if phase != "placed":
                generation.start()
            if phase == "prefill":
                gate.release(2)
                await until(lambda: generation.scheduled)
            if phase == "decode":
                gate.release(60)
                await until(lambda: generation.usage.output_tokens > 3)
            generation.cancel()
            generation.cancel()
            events = [e async for e in generation]
            assert events[-1].reason == "cancelled"
            assert len([e for e in events if isinstance(e, Finished)]) == 1
            assert text_of(events) == "x" * len(events[-1].token_ids)
            if blocker:
                blocker.cancel()
            steps = engine.runner.steps
            while gate.acquire(blocking=False):
                pass  # no permits are left but the ones below
            gate.release(1)  # the step that is in flight
            stats = await idle(engine)
            assert stats.blocks_running == 0
            assert engine.runner.steps - steps <= 1
            engine.scheduler.check_integrity()

    asyncio.run(main())


def test_refusals_come_before_any_work_and_give_the_place_back():
    async def main():
        async with Running(max_context=64) as engine:
            with pytest.raises(PromptTooLong) as refusal:
                await engine.submit(chat("x" * 64), SamplingParams(), owner=ANN)
            assert refusal.value.limit == 63
            assert refusal.value.tokens >= 64
            with pytest.raises(InvalidField, match="stop_token_ids"):
                await engine.submit(chat("x"), SamplingParams(stop_token_ids=(10**6,)), owner=ANN)
            assert engine.runner.steps == 0

    asyncio.run(main())


def test_messages_of_which_a_template_writes_nothing_are_refused_and_the_engine_lives():
    async def main():
        async with Running() as engine:
            runner = engine.runner
            template = "{% for m in messages if m['role'] == 'user' %}{{ m['content'] }}{% endfor %}"
            engine.codec = Codec(runner.tokenizer, template, eos_ids=runner.eos_ids)
            for nothing in (chat(""), Chat((ChatMessage("assistant", "x"),))):
                with pytest.raises(InvalidField, match="messages: the model's chat template writes nothing of them"):
                    await run(engine, nothing)
            assert (await run(engine, chat("x"), max_tokens=1))[-1].reason == "length"

    asyncio.run(main())


def test_an_owner_has_two_running_and_four_waiting_answers():
    async def main():
        async with Running() as engine:
            engine.runner.gate = threading.Semaphore(0)
            mine = [await engine.submit(chat("count 50"), SamplingParams(), owner=ANN) for _ in range(6)]
            with pytest.raises(TooManyInFlight):
                await engine.submit(chat("count 50"), SamplingParams(), owner=ANN)
            mine.pop(0).cancel()
            mine.append(await engine.submit(chat("count 50"), SamplingParams(), owner=ANN))
            theirs = await engine.submit(chat("count 5"), SamplingParams(), owner=BEN)
            for generation in [*mine, theirs]:
                generation.start()
            engine.runner.gate.release(12)
            await until(lambda: theirs.usage.output_tokens > 3)
            assert sum(g.scheduled for g in mine) == 2

    asyncio.run(main())


def test_the_queue_has_an_end_and_says_where_one_stands():
    async def main():
        async with Running(config=config(max_queued=3)) as engine:
            engine.runner.gate = threading.Semaphore(0)
            for _ in range(3):
                await engine.submit(chat("count 50"), SamplingParams(), owner=BOUNDLESS)
            with pytest.raises(QueueFull) as refusal:
                await engine.submit(chat("count 50"), SamplingParams(), owner=ANN)
            assert refusal.value.place == 4
            assert refusal.value.retry_after >= 1
            for generation in list(engine._open.values()):
                generation.cancel()

    asyncio.run(main())


def test_stopping_the_engine_ends_every_answer():
    async def main():
        engine = scripted_engine()
        engine.runner.gate = threading.Semaphore(0)
        engine.start()
        generation = await engine.submit(chat("count 500"), SamplingParams(), owner=ANN)
        generation.start()
        engine.runner.gate.release(MANY)
        engine.stop()
        engine.stop()
        assert [e async for e in generation][-1].reason == "stopped"
        with pytest.raises(EngineStopped):
            await engine.submit(chat("x"), SamplingParams(), owner=ANN)

    asyncio.run(main())


def test_a_dead_step_loop_ends_every_answer_and_is_seen(caplog):
    async def main():
        engine = scripted_engine()
        engine.start()
        engine.runner.run = lambda batch: 1 // 0
        generation = await engine.submit(chat("hello"), SamplingParams(), owner=ANN)
        generation.start()
        end = [e async for e in generation][-1]
        assert end.reason == "stopped"
        assert "ZeroDivisionError" in end.error
        assert engine.stats().state == "dead"
        engine.stop()

    asyncio.run(main())
    assert "step loop died" in caplog.text


def test_one_broken_row_ends_alone():
    async def main():
        async with Running() as engine:
            good = await engine.submit(chat("count 20"), SamplingParams(), owner=ANN)
            bad = await engine.submit(chat("count 20"), SamplingParams(), owner=BEN)
            engine.runner.broken.add(bad.sequence.id)
            good.start()
            bad.start()
            ends = [[e async for e in g] for g in (good, bad)]
            assert ends[0][-1].reason == "stop"
            assert text_of(ends[0]) == " ".join(map(str, range(1, 21)))
            assert ends[1][-1].reason == "failed"
            assert ends[1][-1].error == "not a number"

    asyncio.run(main())


def test_an_idle_engine_takes_no_steps_and_forgets_a_closed_session():
    async def main():
        async with Running() as engine:
            await run(engine, chat("say hello"), session_id="s")
            stats = await idle(engine)
            assert stats.sessions == 1
            assert stats.blocks_pinned > 0
            steps = engine.runner.steps
            engine.close_session("s")
            await until(lambda: engine.stats().sessions == 0)
            assert engine.stats().blocks_free == engine.stats().blocks_total
            assert engine.runner.steps == steps

    asyncio.run(main())


def test_warming_computes_the_prompt_before_it_is_needed():
    async def main():
        async with Running() as engine:
            question = chat("say hello there, all of you")
            engine.warm("s", question, owner=ANN)
            await until(lambda: engine.stats().sessions == 1 and engine.stats().state == "idle")
            before = engine.runner.computed
            usage = (await run(engine, question, session_id="s"))[-1].usage
            assert usage.cached_tokens == usage.input_tokens - 1
            assert engine.runner.computed - before == usage.output_tokens

    asyncio.run(main())


def test_one_seed_is_repeatable_and_n_answers_differ_by_seed():
    params = SamplingParams(seed=7, n=3)
    seeds = [params.choice(i).seed for i in range(3)]
    assert seeds[0] == 7
    assert len(set(seeds)) == 3
    assert seeds == [params.choice(i).seed for i in range(3)]
    assert all(params.choice(i).n == 1 for i in range(3))
