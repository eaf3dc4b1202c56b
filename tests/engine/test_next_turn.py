"""A conversation's next turn over a real (tiny, random) model: what is reused changes no answer."""
import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
import torch
from tiny_models import CHATML, CONFIG, write_folder

from hamdam.engine import Chat, ChatMessage, Engine, EngineConfig, Finished, Owner, SamplingParams, Text, open_engine

ANYONE = Owner("anyone", "anyone")
LONG = CONFIG | {"max_position_embeddings": 1024}
EMPTY_THOUGHT = CHATML.replace("assistant\\\\n' }}{% endif", "assistant\\\\n<think>\\n\\n</think>\\n\\n' }}{% endif")
Ask = Callable[..., Awaitable[tuple[ChatMessage, Finished]]]


def user(text: str) -> ChatMessage:
    return ChatMessage("user", text)


def with_engines(folder: Path, template: str, scene: Callable[[Engine, Ask, Ask], Awaitable[None]]) -> None:
    """`scene` gets an engine, a way to ask it within one session, and a way to ask an engine that knows nothing yet."""
    (write_folder(folder, LONG) / "chat_template.jinja").write_text(template)
    config = EngineConfig(model=folder, device="cpu", dtype="float32", kv_memory=1 << 20, threads=1)

    async def answer(engine: Engine, messages: tuple[ChatMessage, ...], session: str | None):
        params = SamplingParams(temperature=0, max_tokens=20, ignore_eos=True)
        generation = await engine.submit(Chat(messages), params, owner=ANYONE, session_id=session)
        generation.start()
        events = [event async for event in generation]
        text = "".join(event.text for event in events if isinstance(event, Text))
        return ChatMessage("assistant", text, events[-1].token_ids, engine.ids_fingerprint), events[-1]

    async def main() -> None:
        engine = open_engine(config)
        engine.start()

        async def warm(*messages: ChatMessage):
            return await answer(engine, messages, "s")

        async def cold(*messages: ChatMessage):
            fresh = open_engine(config)
            fresh.start()
            try:
                return await answer(fresh, messages, None)
            finally:
                fresh.stop()

        try:
            await scene(engine, warm, cold)
        finally:
            engine.stop()

    threads = torch.get_num_threads()
    try:
        asyncio.run(main())
    finally:
        torch.set_num_threads(threads)


def common_prefix(one: list[int], other: list[int]) -> int:
    return next((n for n, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))


@pytest.mark.parametrize("template", [CHATML, EMPTY_THOUGHT], ids=["chatml", "empty-thought"])
def test_b09_every_turn_says_the_same_from_a_warm_cache_as_from_an_empty_one(tmp_path: Path, template: str) -> None:
    async def scene(engine: Engine, warm: Ask, cold: Ask) -> None:
        talk: tuple[ChatMessage, ...] = (ChatMessage("system", "Be brief, and kind to everybody."),)
        known: list[int] = []
        for turn in range(4):
            talk = (*talk, user(f"Question {turn}, with some words to it"))
            prompt = engine.codec.encode_chat(Chat(talk))
            said, end = await warm(*talk)
            _, fresh = await cold(*talk)
            assert fresh.usage.cached_tokens == 0
            assert end.token_ids == fresh.token_ids
            assert end.usage.input_tokens == fresh.usage.input_tokens == len(prompt)
            shared = common_prefix(known, prompt)
            assert end.usage.cached_tokens <= shared
            assert end.usage.cached_tokens >= min(shared, len(known) - 1) // 16 * 16
            assert (shared == len(known)) == (template == CHATML or turn == 0)
            known = [*prompt, *end.token_ids]
            talk = (*talk, said)

    with_engines(tmp_path, template, scene)


def test_b09_reuse_stops_before_what_was_edited(tmp_path: Path) -> None:
    async def scene(engine: Engine, warm: Ask, cold: Ask) -> None:
        first = user("The first question of all, which is long enough to fill a block or two")
        one, _ = await warm(first)
        two, _ = await warm(first, one, user("The second"))
        whole = (first, one, user("The second"), two, user("The third"))
        before = engine.codec.encode_chat(Chat(whole))
        await warm(*whole)
        edited = "The first question of all, which is l0ng enough to fill a block or two"
        for changed in (
            (user(edited), *whole[1:]),
            (first, ChatMessage("assistant", "Something else"), *whole[2:]),
            (first, one, user("The 2nd"), *whole[3:]),
            whole[:3],  # written again
        ):
            shared = common_prefix(before, engine.codec.encode_chat(Chat(changed)))
            _, end = await warm(*changed)
            _, fresh = await cold(*changed)
            assert end.token_ids == fresh.token_ids
            assert end.usage.cached_tokens <= shared

    with_engines(tmp_path, CHATML, scene)
