"""A model that thinks before it answers: its thoughts apart from its answer, at both doors and in what is kept."""
import json

import pytest
from scripted import CHATML
from sqlalchemy import select
from world import World, in_world

from hamdam.server.storage.tables import Message

URL = "/v1/chat/completions"
THINKS = "{# <think> </think> #}" + CHATML
THOUGHT = "{% if m.reasoning_content %}<think>{{ m.reasoning_content }}</think>{% endif %}"
KEEPS = CHATML.replace("{{ m['content'] }}", THOUGHT + "{{ m.content }}")


def reply(question: str) -> str:
    return f"<think>\nA question: {question}\n</think>\n\nسلام، {question}"


def thinks(world: World, template: str = THINKS) -> list[str]:
    """From now on the model thinks; every prompt it sees goes into the list."""
    world.speaks(template)
    return world.prompts()


def body(text: str, **fields: object) -> dict:
    return {"messages": [{"role": "user", "content": text}], "temperature": 0} | fields


@in_world(reply)
async def test_v1_gives_reasoning_apart_whole_and_streamed(world: World) -> None:
    thinks(world)
    async with world.http(await world.key("ana")) as http:
        whole = (await http.post(URL, json=body("why?"))).json()
        message = whole["choices"][0]["message"]
        assert (message["content"], message["reasoning_content"]) == ("سلام، why?", "A question: why?")
        thought = whole["usage"]["completion_tokens_details"]["reasoning_tokens"]
        assert len("A question: why?") < thought < whole["usage"]["completion_tokens"]
        said = {"content": "", "reasoning_content": ""}
        async with http.stream("POST", URL, json=body("why?", stream=True)) as response:
            async for line in response.aiter_lines():
                if line.startswith("data: {"):
                    for name, text in json.loads(line[6:])["choices"][0]["delta"].items():
                        said |= {name: said[name] + text} if name in said else {}
        assert said == {"content": "سلام، why?", "reasoning_content": "A question: why?"}


@pytest.mark.parametrize(("template", "kept"), [(THINKS, 0), (KEEPS, 1)])
def test_v1_takes_reasoning_back_and_the_template_decides_what_the_model_sees(tmp_path, template, kept) -> None:
    @in_world(reply)
    async def scene(world: World) -> None:
        prompts = thinks(world, template)
        async with world.http(await world.key("ana")) as http:
            answer = {"role": "assistant", "content": "Yes", "reasoning_content": "Hm, well."}
            asked = {"messages": [*body("a")["messages"], answer, *body("b")["messages"]]}
            assert (await http.post(URL, json=asked)).status_code == 200
            assert (prompts[-1].count("Hm, well."), prompts[-1].count("Yes")) == (kept, 1)
            for role, wrong in (("assistant", 5), ("user", "x")):
                message = answer | {"role": role, "reasoning_content": wrong}
                refused = await http.post(URL, json=body("x", messages=[message]))
                assert (refused.status_code, refused.json()["error"]["param"]) == (400, "messages[0].reasoning_content")

    scene(tmp_path)


@in_world(reply)
async def test_the_socket_tells_reasoning_before_the_answer_and_both_are_kept(world: World) -> None:
    prompts = thinks(world)
    key = await world.key("ana")
    async with world.client(key) as ana, world.http(key) as http:
        run = await ana.ask("why?")
        kinds = [event["type"].removeprefix("response.") for event in run.events]
        assert run.text == "سلام، why?"
        order = [kinds.index(kind) for kind in ("reasoning_text.delta", "reasoning_text.done", "output_text.delta")]
        assert order == sorted(order)
        thought = "".join(e["delta"] for e in run.events if e["type"] == "response.reasoning_text.delta")
        done = next(e for e in run.events if e["type"] == "response.reasoning_text.done")
        assert thought == done["text"] == "A question: why?"
        assert run.end["usage"]["output_tokens_details"]["reasoning_tokens"] > len(thought)
        read = (await http.get(f"/api/conversations/{run.conversation}")).json()["items"]
        assert (read[1]["text"], read[1]["reasoning_text"]) == ("سلام، why?", thought)
        assert "reasoning_text" not in read[0]
        async with world.database.read() as sql:
            row = await sql.scalar(select(Message).where(Message.id == run.item))
        assert row.parts == [{"type": "reasoning", "text": thought}]
        await ana.ask("and?", conversation_id=run.conversation)
        assert "A question" not in prompts[-1]
        assert prompts[-1].count("سلام، why?<|im_end|>") == 1


@in_world(reply, gate=True)
async def test_a_snapshot_has_what_was_thought_so_far_and_a_cut_thought_goes_on(world: World) -> None:
    prompts = thinks(world)
    key = await world.key("ana")
    async with world.client(key) as ana, world.client(key) as other:
        run = await ana.start("why?")
        world.pass_steps(16)
        await world.until(lambda: any(g.usage.output_tokens == 16 for g in world.engine._open.values()))
        thought = "A questi"
        await other.send(type="conversation.subscribe", conversation_id=run.conversation)
        snapshot = await other.until("response.snapshot")
        assert (snapshot["text"], snapshot["reasoning_text"]) == ("", thought)
        await ana.send(type="response.cancel", response_id=run.id)
        await run.finish()
        world.open_gate()
        world.runner.script = lambda question: f"<think>\n{thought} on.</think>Yes"
        more = await ana.ask(**{"continue": run.item})
        assert prompts[-1].endswith(f"assistant\n<think>\n{thought}")
        assert [e["text"] for e in more.events if e["type"] == "response.reasoning_text.done"] == [f"{thought} on."]
        assert more.text == "Yes"


@in_world(reply, gate=True)
async def test_a_slow_follower_gets_thoughts_and_answer_in_one_delta_each(world: World) -> None:
    thinks(world)
    async with world.client(await world.key("ana")) as ana:
        await ana.send(type="session.update", coalesce_ms=250)
        run = await ana.start("why?")
        world.open_gate()
        await run.finish()
        deltas = [e["type"] for e in run.events if e["type"].endswith(".delta")]
        assert deltas == sorted(deltas, key=lambda kind: kind == "response.output_text.delta")
        assert len(deltas) < len("A question: why?")
        assert run.text == "سلام، why?"
