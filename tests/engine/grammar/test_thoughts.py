"""A model that thinks before it answers: the thought is free, and the form is the answer's."""
import asyncio
import json

import pytest
from asked import ANYONE, CHAT, answer, ids_of, structured
from random_runner import random_engine
from scripted import CHATML

from hamdam.engine import Chat, ChatMessage, SamplingParams, Text
from hamdam.engine.events import Reasoning
from hamdam.engine.execution.masks import ALL_BANNED
from hamdam.engine.policy.sequence import Sequence
from hamdam.engine.text.harmony import LETTERS

OPENS = CHATML.replace("assistant\n{%", "assistant\n<think>\n{%") + "{# </think> #}"
THOUGHT = "Hm. {x"
ASKED = structured(json={"const": {"a": [1]}}) | {"max_tokens": 80, "seed": 1}


@pytest.mark.parametrize("added", [(), ("<think>", "</think>")])
def test_the_form_holds_from_the_end_of_a_thought_on_that_the_prompt_opened(added: tuple[str, ...]) -> None:
    """Its closing tag is text of several tokens, or one token."""
    said = [*THOUGHT, *(["</think>"] if added else "</think>")]

    async def scene() -> None:
        def wish(own: Sequence) -> dict[int, float]:
            done = own.num_generated
            return {ids[done]: 1e4} if done < len(said) else {}

        engine = random_engine(wish, template=OPENS, added=added)
        ids = ids_of(engine, said)
        engine.start()
        generation = await engine.submit(CHAT, SamplingParams.from_dict(ASKED), owner=ANYONE)
        generation.start()
        events = [event async for event in generation]
        engine.stop()
        assert json.loads("".join(event.text for event in events if isinstance(event, Text))) == {"a": [1]}
        assert "".join(event.text for event in events if isinstance(event, Reasoning)) == THOUGHT
        assert generation.finished is not None and generation.finished.reason == "stop"

    asyncio.run(scene())


def test_the_form_holds_in_the_message_on_the_final_channel() -> None:
    """Of a model that thinks and answers in messages, as gpt-oss does."""
    thought = ["<|channel|>", *"analysis", "<|message|>", *THOUGHT, "<|end|>", "<|start|>", *"assistant"]
    said = [*thought, "<|channel|>", *"final", "<|message|>"]

    async def scene() -> None:
        def wish(own: Sequence) -> dict[int, float]:
            done = own.num_generated
            return {ids[done]: 1e4} if done < len(said) else {}

        engine = random_engine(wish, template=CHATML + "{# <|channel|> #}", added=tuple(LETTERS))
        ids = ids_of(engine, said)
        engine.start()
        found = await answer(engine, **ASKED)
        engine.stop()
        assert (json.loads(found.text), found.end.reason) == ({"a": [1]}, "stop")

    asyncio.run(scene())


def test_a_thought_cannot_end_the_answer_before_it_began() -> None:
    async def scene() -> None:
        engine = random_engine(lambda own: dict.fromkeys(own.held_back_ids, 1e4), template=OPENS)
        engine.start()
        found = await answer(engine, **structured(choice=["ok"]), max_tokens=20)
        engine.stop()
        assert found.end.reason == "length"

    asyncio.run(scene())


def test_a_thought_that_bans_leave_nothing_but_ends_for_fails_by_name() -> None:
    async def scene() -> None:
        engine = random_engine(template=OPENS)
        engine.start()
        found = await answer(engine, **structured(choice=["ok"]), allowed_token_ids=[*engine.runner.eos_ids])
        engine.stop()
        assert (found.end.reason, found.end.error) == ("failed", ALL_BANNED)

    asyncio.run(scene())


def test_a_model_whose_prompt_opened_no_thought_answers_at_once() -> None:
    async def scene() -> None:
        engine = random_engine(template=CHATML + "{# <think></think> #}")
        engine.start()
        assert (await answer(engine, **structured(choice=["ok"]))).text == "ok"
        begun = Chat((ChatMessage("user", "x"), ChatMessage("assistant", "o")), continue_last=True)
        assert (await answer(engine, begun, **structured(choice=["ok"]))).text == "k"
        engine.stop()

    asyncio.run(scene())
