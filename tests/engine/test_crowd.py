"""Many at once, through the whole Engine: nobody is in another's way, and who is cancelled leaves nothing behind."""
import asyncio
import gc
import os
import random
import threading
from pathlib import Path

import pytest
from scripted import scripted_engine

from hamdam.engine import (
    Chat,
    ChatMessage,
    EngineConfig,
    Finished,
    Generation,
    Owner,
    PromptTooLong,
    SamplingParams,
    Text,
)
from hamdam.engine.policy.sequence import Sequence
from hamdam.engine.text.codec import Codec

CROWD = Owner("crowd", "crowd", max_running=None, max_queued=None)
ANN, BEN = Owner("ann", "ann"), Owner("ben", "ben")


pytestmark = pytest.mark.usefixtures("one_by_one_and_ahead")


def chat(text: str) -> Chat:
    return Chat((ChatMessage("user", text),))


async def until(condition) -> None:
    """Waits for something that another thread does; the test's own timeout bounds it."""
    while not condition():  # noqa: ASYNC110  (the other thread has no event to set)
        await asyncio.sleep(0.001)


def alive() -> tuple[int, int, int]:
    """Open files, and how many answers there are in memory: as objects, and as the scheduler's sequences."""
    gc.collect()
    kinds = [type(thing) for thing in gc.get_objects()]
    return len(os.listdir("/proc/self/fd")), kinds.count(Generation), kinds.count(Sequence)


def test_d11_two_thousand_answers_a_third_of_them_cancelled_leave_no_task_no_file_and_no_object() -> None:
    async def main() -> None:
        chance = random.Random(11)
        config = EngineConfig(model=Path("scripted"), max_queued=100, max_batch_tokens=64, max_running=8)
        engine = scripted_engine(config=config, num_blocks=48)
        engine.start()

        async def ask(number: int) -> str:
            text = f"{number % 5} " * (number % 3 + 1)
            patience = chance.randrange(5) if chance.random() < 0.3 else None  # events until it is cancelled
            session = f"s{number % 20}" if number % 2 else None
            generation = await engine.submit(chat(f"say {text}"), SamplingParams(), owner=CROWD, session_id=session)
            if patience == 0:
                generation.cancel()
            generation.start()
            if patience == 1:
                generation.cancel()
            said, reason, seen = "", "", 0
            async for event in generation:
                seen += 1
                said += event.text if isinstance(event, Text) else ""
                reason = event.reason if isinstance(event, Finished) else ""
                if seen == patience:
                    generation.cancel()
            assert said == text[: len(said)]
            assert reason == "cancelled" or said == text
            return reason

        await ask(0)
        before, tasks = alive(), len(asyncio.all_tasks())
        reasons: list[str] = []
        for first in range(0, 2000, 50):
            reasons += await asyncio.gather(*(ask(number) for number in range(first, first + 50)))
        await until(lambda: engine.stats().state == "idle")
        stats = engine.stats()
        assert reasons.count("cancelled") > 200
        assert reasons.count("stop") > 1000
        assert (stats.running, stats.queued, stats.blocks_running) == (0, 0, 0)
        assert stats.blocks_free + stats.blocks_cached + stats.blocks_pinned == stats.blocks_total
        assert not engine._open
        assert not engine._in_flight
        assert engine.waiting == 0
        engine.runner._answers.clear()
        engine.runner.batches.clear()
        assert (alive(), len(asyncio.all_tasks())) == (before, tasks)
        engine.stop()

    asyncio.run(main())


def test_g20_fifty_long_texts_of_one_are_encoded_off_the_loop_and_in_nobody_elses_way(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gate, threads, at_once, most = threading.Event(), set(), 0, 0
    encode = Codec.encode_chat

    def slowly(self: Codec, asked: Chat) -> list[int]:
        nonlocal at_once, most
        if asked.messages[0].content.startswith("x"):
            threads.add(threading.current_thread().name.rpartition("_")[0])
            at_once, most = at_once + 1, max(most, at_once + 1)
            assert gate.wait(60)
            at_once -= 1
            return [1]
        return encode(self, asked)

    monkeypatch.setattr(Codec, "encode_chat", slowly)

    async def main() -> None:
        engine = scripted_engine(num_blocks=1 << 14, max_context=1 << 18)
        engine.start()
        reading = await engine.submit(chat("count 400"), SamplingParams(), owner=ANN)
        params = SamplingParams(max_tokens=1)
        crowd = [asyncio.create_task(engine.submit(chat("x" * 200_000), params, owner=CROWD)) for _ in range(50)]
        await until(lambda: at_once)
        reading.start()
        events = [event async for event in reading]
        assert events[-1].reason == "stop", "who reads goes on reading"
        quick = await engine.submit(chat("say hello"), SamplingParams(), owner=BEN)
        quick.start()
        assert [event async for event in quick][-1].reason == "stop", "and who comes now is not behind the fifty"
        assert not [task for task in crowd if task.done()]
        gate.set()
        for generation in await asyncio.gather(*crowd):
            generation.cancel()
        assert (threads, most) == ({"hamdam-encode"}, 1)
        assert not engine._encoding, "nothing is remembered of who encoded"
        engine.stop()

    asyncio.run(main())


@pytest.mark.parametrize("size", [5_400_000, 27_000_000])
def test_g20_a_text_that_cannot_fit_is_refused_by_its_length_before_anybody_reads_it(
    monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    read: list[Chat] = []
    monkeypatch.setattr(Codec, "encode_chat", lambda self, asked: read.append(asked) or [1])

    async def main() -> None:
        engine = scripted_engine(max_context=8192)
        engine.start()
        with pytest.raises(PromptTooLong):
            await engine.submit(chat("x" * size), SamplingParams(), owner=ANN)
        assert read == []
        assert not engine._in_flight
        engine.stop()

    asyncio.run(main())


def test_a_session_that_is_closed_is_not_opened_again_by_a_warming_on_its_way(monkeypatch: pytest.MonkeyPatch) -> None:
    begun, gate = threading.Event(), threading.Event()
    encode = Codec.encode_chat

    def slowly(self: Codec, asked: Chat) -> list[int]:
        begun.set()
        assert gate.wait(60)
        return encode(self, asked)

    monkeypatch.setattr(Codec, "encode_chat", slowly)

    async def main() -> None:
        engine = scripted_engine()
        engine.start()
        engine.warm("s", chat("a long talk"), owner=ANN)
        await until(begun.is_set)
        engine.close_session("s")
        gate.set()
        await until(lambda: not engine._warming)
        again = await engine.submit(chat("say on"), SamplingParams(), owner=ANN)
        again.start()
        assert [event async for event in again][-1].usage.cached_tokens == 0
        await until(lambda: engine.stats().state == "idle")
        assert engine.stats().sessions == 0
        assert engine.runner.steps == again.usage.output_tokens
        engine.stop()

    asyncio.run(main())
