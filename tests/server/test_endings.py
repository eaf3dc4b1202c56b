"""Whatever ends an answer ends its sequence by the next step, in whatever phase it is, and gives its blocks back."""
import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable

import httpx
import pytest
from sqlalchemy import delete, update
from world import Client, Run, World, in_world, small_engine

from hamdam.engine import Chat, ChatMessage, Generation, Owner, SamplingParams
from hamdam.server.storage.tables import ApiKey, User

URL = "/v1/chat/completions"
PROMPT = 200  # tokens and more: a token is a byte here
PHASES = ["queued", "prefill", "decode"]


class Scene:
    """One answer of Ana's in one phase, each step of the engine let through by hand."""

    def __init__(self, world: World, phase: str) -> None:
        self.world, self.phase, self.key = world, phase, ""
        self.blocker: Generation | None = None
        self.victim: Generation | None = None

    async def step(self, count: int = 1) -> None:
        """Exactly so many steps; afterwards the next one is scheduled and waits."""
        steps = self.world.runner.steps + count
        self.world.pass_steps(count)
        await self.world.until(lambda: self.world.runner.steps == steps)

    async def occupy(self) -> None:
        """For `queued`: the only place is somebody else's."""
        self.key = await self.world.key("ana")
        if self.phase == "queued":
            chat = Chat((ChatMessage("user", "x"),))
            params = SamplingParams(ignore_eos=True)
            self.blocker = await self.world.engine.submit(chat, params, owner=Owner("other", "other"))
            self.blocker.start()
            await self.step(4)

    async def reach(self) -> None:
        """Ana has asked: on to the phase."""
        engine = self.world.engine
        others = {self.blocker}
        await self.world.until(lambda: set(engine._open.values()) - others)
        (self.victim,) = set(engine._open.values()) - others
        await self.world.until(lambda: self.victim.begun)
        for _ in range(50):
            if self.is_there():
                return
            await self.step()
            await asyncio.sleep(0.01)  # the loop hears of the step
        raise AssertionError(f"{self.phase} was never reached")

    def is_there(self) -> bool:
        stats, sequence = self.world.engine.stats(), self.victim.sequence
        if self.phase == "queued":
            return stats.queued == 1 and not self.victim.scheduled
        if self.phase == "prefill":
            return 0 < sequence.num_computed < sequence.num_prompt and stats.blocks_running > 0
        return self.victim.usage.output_tokens > 2 and stats.state == "decoding"

    async def check(self) -> None:
        """It was ended: at most the step that was in flight has it, and nothing holds a block of it."""
        world, engine = self.world, self.world.engine
        await world.until(lambda: self.victim.finished)
        assert self.victim.finished.reason == "cancelled"
        before = len(world.runner.batches)
        await self.step(2 if self.blocker else 1)
        await world.until(lambda: engine.stats().queued == 0)
        rows = [row for batch in world.runner.batches[before:] for row in batch if row[0] == self.victim.sequence.id]
        assert len(rows) == (0 if self.blocker else 1)
        if self.blocker:
            assert engine.stats().blocks_running == len(self.blocker.sequence.block_table)
            self.blocker.cancel()
            await self.step()
        await world.until(lambda: engine.stats().state == "idle")
        stats = engine.stats()
        assert (stats.running, stats.queued, stats.blocks_running) == (0, 0, 0)
        assert stats.blocks_free + stats.blocks_cached + stats.blocks_pinned == stats.blocks_total
        assert not self.victim.sequence.block_table
        engine.scheduler.check_integrity()
        assert not engine._open
        assert not engine._in_flight


def in_every_phase(test: Callable) -> Callable:
    """Runs `test(scene)` with the engine held at every step and one place to run in."""

    @pytest.mark.parametrize("phase", PHASES)
    def run(tmp_path, phase: str) -> None:
        @in_world(gate=True, config=small_engine(max_batch_tokens=32, max_running=1))
        async def scene(world: World) -> None:
            made = Scene(world, phase)
            await made.occupy()
            await test(made)

        scene(tmp_path)

    run.__name__ = test.__name__
    return run


@contextlib.asynccontextmanager
async def asked_on_a_socket(scene: Scene) -> AsyncIterator[tuple[Client, Run]]:
    async with scene.world.client(scene.key) as ana:
        run = await ana.start("say " + "x" * PROMPT)
        await scene.reach()
        yield ana, run


@contextlib.asynccontextmanager
async def asked_over_http(scene: Scene, key: str, **fields: object) -> AsyncIterator[asyncio.Task]:
    body = {"model": "default", "messages": [{"role": "user", "content": "say " + "x" * PROMPT}]}
    async with scene.world.http(key) as http:
        asking = asyncio.create_task(http.post(URL, json=body | fields))
        try:
            await scene.reach()
            yield asking
        finally:
            asking.cancel()
            await asyncio.gather(asking, return_exceptions=True)


async def disable(world: World) -> None:
    async with world.database.write() as sql:
        await sql.execute(update(User).values(state="disabled"))


@in_every_phase
async def test_g01_d11_stop_ends_the_sequence_by_the_next_step(scene: Scene) -> None:
    async with asked_on_a_socket(scene) as (ana, run):
        await ana.send(type="response.cancel", response_id=run.id)
        await scene.check()
        assert (await run.finish()).end["type"] == "response.cancelled"


@in_every_phase
async def test_g01_d11_a_dropped_stream_ends_the_sequence_by_the_next_step(scene: Scene) -> None:
    body = {"model": "default", "messages": [{"role": "user", "content": "say " + "x" * PROMPT}], "stream": True}
    async with scene.world.http(scene.key) as http:
        async with http.stream("POST", URL, json=body) as response:
            lines = response.aiter_lines()  # kept: the end of an iterator is the end of its stream
            await anext(lines)
            await scene.reach()
        await scene.check()


@in_every_phase
async def test_g01_d11_a_dropped_whole_request_ends_the_sequence_by_the_next_step(scene: Scene) -> None:
    async with asked_over_http(scene, scene.key):
        pass
    await scene.check()


@in_every_phase
async def test_d10_deleting_the_conversation_ends_the_sequence_by_the_next_step(scene: Scene) -> None:
    world = scene.world
    async with asked_on_a_socket(scene) as (_, run), world.http(scene.key) as http:
        assert (await http.delete(f"/api/conversations/{run.conversation}")).status_code == 204
        await scene.check()
        assert (await run.finish()).end["type"] == "response.cancelled"
        await world.until(lambda: world.engine.stats().sessions == 0)
        assert world.engine.stats().blocks_pinned == 0


@in_every_phase
async def test_g18_disabling_the_account_ends_what_it_asked_on_a_socket_by_the_next_step(scene: Scene) -> None:
    async with asked_on_a_socket(scene) as (ana, _):
        await disable(scene.world)
        await scene.check()
        assert await ana.closed() == 4403


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("phase", PHASES)
def test_g18_disabling_the_account_ends_what_it_asked_over_http_by_the_next_step(tmp_path, phase, stream) -> None:
    @in_world(gate=True, config=small_engine(max_batch_tokens=32, max_running=1))
    async def run(world: World) -> None:
        scene = Scene(world, phase)
        await scene.occupy()
        async with asked_over_http(scene, scene.key, stream=stream) as asking:
            await disable(world)
            await scene.check()
            answer: httpx.Response = await asking
        if stream:
            assert '"code":"unauthorized"' in answer.text
            assert "[DONE]" not in answer.text
        else:
            assert (answer.status_code, answer.json()["error"]["code"]) == (401, "unauthorized")

    run(tmp_path)


@in_world(gate=True)
async def test_g18_disabling_ends_also_what_outlived_its_sign_in(world: World) -> None:
    """First the sign-in goes, and the answer stays; then the account, and the answer goes."""
    async with world.client(await world.key("ana")) as ana:
        run = await ana.start("say one two three")
        async with world.database.write() as sql:
            await sql.execute(delete(ApiKey))
        assert await ana.closed() == 4401
    turn = world.turns.find(world.users["ana"], response_id=run.id)
    assert turn.end is None
    await disable(world)
    await world.until(lambda: turn.generation.finished)
    await turn.ended.wait()
    assert turn.status == "cancelled"
