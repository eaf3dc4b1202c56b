"""The gateway over a real socket: who may come in, and what the first events are."""
from world import World, in_world


@in_world()
async def test_a_question_is_answered_over_the_socket(world: World) -> None:
    async with world.client(await world.key("ana")) as ana:
        assert ana.hello["type"] == "session.created"
        assert ana.hello["limits"]["frame_bytes"] == 1 << 20
        run = await ana.ask("say Paris")
    assert run.text == "Paris"
    assert run.end["type"] == "response.completed"
    assert [e["type"] for e in run.before] == ["conversation.created", "conversation.item.added", "conversation.item.added", "response.created"]
