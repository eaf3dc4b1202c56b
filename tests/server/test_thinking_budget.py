"""`thinking_budget` at both doors, over random logits and the real sampler."""
import asyncio
from functools import partial
from pathlib import Path

import pytest
from asked import ANYONE, CHAT, ids_of
from random_runner import random_engine
from scripted import CHATML
from world import World, running

from hamdam.engine import Reasoning, SamplingParams, Text
from hamdam.engine.policy.sequence import Sequence
from hamdam.engine.text.harmony import LETTERS

URL = "/v1/chat/completions"
LETTER, END = 65, 260  # "b", and </think> behind the bytes, three control tokens and <think>


def wish(sequence: Sequence) -> dict[int, float]:
    """To think for ever; and once that is over, to answer with three letters and end."""
    thinking = END not in sequence.ids[sequence.num_prompt :]
    answered = 0 if thinking else len(sequence.ids) - 1 - sequence.ids.index(END, sequence.num_prompt)
    return {LETTER: 200.0} if thinking or answered < 3 else {257: 200.0}


@pytest.mark.parametrize(("temperature", "budget"), [(0, 5), (1, 5), (2, 0)])
def test_a_thought_that_has_had_its_tokens_ends_and_the_answer_begins(tmp_path: Path, temperature, budget) -> None:
    template = CHATML + "<think>"

    async def main() -> None:
        make = partial(random_engine, wish, template=template, added=("<think>", "</think>"))
        async with running(tmp_path, make=make) as world:
            await scene(world)

    async def scene(world: World) -> None:
        key = await world.key("ana")
        asked = {"temperature": temperature, "thinking_budget": budget, "max_tokens": 40}
        async with world.http(key) as http, world.client(key) as ana:
            given = {"messages": [{"role": "user", "content": "x"}], **asked}
            answer = (await http.post(URL, json=given)).json()
            message = answer["choices"][0]["message"]
            assert (message.get("reasoning_content", ""), message["content"]) == ("b" * budget, "bbb")
            details = answer["usage"]["completion_tokens_details"]
            assert details == {"reasoning_tokens": budget + 1}, "the closing tag is one, too"
            run = await ana.ask("x", sampling=asked)
            assert run.text == "bbb"

    asyncio.run(main())


@pytest.mark.parametrize("budget", [0, 5])
def test_where_a_thought_is_a_message_of_its_own_that_message_ends(budget: int) -> None:
    opening = ["<|channel|>", *"analysis", "<|message|>"]
    rest = ["<|start|>", *"assistant", "<|channel|>", *"final", "<|message|>", *"bbb", "<|im_end|>"]

    async def main() -> None:
        def wish(own: Sequence) -> dict[int, float]:
            said = own.ids[own.num_prompt :]
            if end in said:
                return {after[len(said) - said.index(end) - 1]: 200.0}
            return {(before[len(said)] if len(said) < len(before) else LETTER): 200.0}

        engine = random_engine(wish, template=CHATML + "{# <|channel|> #}", added=tuple(LETTERS))
        before, after, [end] = ids_of(engine, opening), ids_of(engine, rest), ids_of(engine, ["<|end|>"])
        engine.start()
        params = SamplingParams(temperature=0, thinking_budget=budget, max_tokens=60)
        generation = await engine.submit(CHAT, params, owner=ANYONE)
        generation.start()
        events = [event async for event in generation]
        engine.stop()
        assert "".join(event.text for event in events if isinstance(event, Reasoning)) == "b" * budget
        assert "".join(event.text for event in events if isinstance(event, Text)) == "bbb"

    asyncio.run(main())


def test_a_model_that_does_not_think_has_no_budget_for_it(tmp_path: Path) -> None:
    async def main() -> None:
        async with running(tmp_path, make=random_engine) as world:
            key = await world.key("ana")
            async with world.http(key) as http, world.client(key) as ana:
                given = {"messages": [{"role": "user", "content": "x"}], "thinking_budget": 5}
                refused = await http.post(URL, json=given)
                assert (refused.status_code, refused.json()["error"]["param"]) == (400, "thinking_budget")
                message = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "x"}]}
                asked = {"type": "response.create", "client_id": "c", "conversation": {}, "input": [message]}
                error = await ana.refused(**asked, sampling={"thinking_budget": 5})
                assert error["param"] == "sampling.thinking_budget"
                assert not world.engine._open

    asyncio.run(main())
