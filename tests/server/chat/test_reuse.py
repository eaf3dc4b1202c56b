"""How much of a conversation is computed again after an answer with thoughts or calls: exactly what differs."""
from typing import Any

import pytest
from scripted import CHATML
from tool_templates import QWEN_3
from weather import CALL, TOOL, calls_of, output
from world import World, in_world

COMPACT = '<tool_call>\n{"name":"get_weather","arguments":{"place":"x"}}\n</tool_call>'
THOUGHT = "<think>\nThey ask about it.\n</think>\n\n"
PLAIN = "It is warm, and it stays so."
TEMPLATES = {"words": CHATML + "{# <think> </think> #}", "own": QWEN_3 + "{# </think> #}"}
ANSWERS = {  # what a model writes, and how much of it the next prompt has just so; None: all of it
    "text": (PLAIN, None),
    "call": (CALL, None),
    "text and call": (f"Let me see.\n{CALL}", None),
    "call written otherwise": (COMPACT, '<tool_call>\n{"name":'),
    "thought and text": (THOUGHT + PLAIN, ""),
    "thought and call": (THOUGHT + CALL, None),
}
LEFT_OUT = ("words", "thought and call"), "<t"
"""A template without tools has no thoughts; a call begins with the same two letters as a thought."""


def counts(run: Any) -> tuple[int, int, int]:
    usage = run.end["usage"]
    return usage["input_tokens"], usage["input_tokens_details"]["cached_tokens"], usage["output_tokens"]


@pytest.mark.parametrize("kind", ANSWERS)
@pytest.mark.parametrize("template", TEMPLATES)
def test_the_turn_after_computes_only_what_is_new_or_differs(tmp_path, template: str, kind: str) -> None:
    said, again = ANSWERS[kind]
    if (template, kind) == LEFT_OUT[0]:
        again = LEFT_OUT[1]

    @in_world(lambda question: PLAIN if "more" in question or "31" in question else said)
    async def scene(world: World) -> None:
        world.speaks(TEMPLATES[template])
        async with world.client(await world.key("ana")) as ana:
            run = await ana.ask("Is it warm?", tools=[TOOL])
            prompt, _, written = counts(run)
            assert written == len(said.encode()) + 1
            results = [output(call, "31 °C") for call in calls_of(run)]
            asked: dict[str, Any] = {"conversation_id": run.conversation, "tools": [TOOL]}
            more = await (ana.ask(**asked, input=results) if results else ana.ask("And more?", **asked))
            longer, cached, _ = counts(more)
            assert cached == prompt + len((said if again is None else again).encode())
            _, cached, _ = counts(await ana.ask("Some more?", **asked))
            thought_too = kind == "thought and call" and template == "own"
            before = prompt + len("<t") if thought_too else longer + len(PLAIN)
            assert cached == before, "a new question: the thoughts before it are left out, and all else is known"

    scene(tmp_path)


@in_world(lambda question: PLAIN)
async def test_a_hint_to_warm_a_conversation_has_its_tools(world: World) -> None:
    async with world.client(await world.key("ana")) as ana:
        run = await ana.ask("Is it warm?", tools=[TOOL])
        prompt, _, _ = counts(run)
        hint: dict[str, Any] = {"type": "response.create", "conversation_id": run.conversation, "generate": False}
        computed = world.runner.computed
        await ana.send(**hint, client_id="w1", tools=[TOOL])
        await world.until(lambda: world.runner.computed > computed and not world.engine._open)
        assert world.runner.computed - computed < prompt // 4
        refused = await ana.refused(**hint, client_id="w2", tools=[5])
        assert refused["param"] == "tools[0]"


@in_world(lambda question: PLAIN)
async def test_tools_are_those_of_one_response(world: World) -> None:
    prompts = world.prompts()
    async with world.client(await world.key("ana")) as ana:
        run = await ana.ask("Is it warm?", tools=[TOOL])
        for tools, times in (([], 0), ([TOOL], 1)):
            await ana.ask(conversation_id=run.conversation, tools=tools)
            assert prompts[-1].count('"get_weather"') == times, "answered again with the tools that are given then"
