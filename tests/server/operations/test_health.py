"""Health: alive is one thing, progress another, and neither waits."""
from dataclasses import replace

from lobby import Lobby, in_lobby
from world import World, in_world

from hamdam.engine import EngineStats


@in_lobby()
async def test_ready_means_that_steps_advance_while_there_is_work(lobby: Lobby) -> None:
    stats = EngineStats()
    lobby.house.engine.stats = lambda: stats
    async with lobby.program() as probe:
        for state, status in (("idle", 200), ("prefilling", 200), ("decoding", 200), ("stalled", 503), ("dead", 503)):
            stats = replace(stats, state=state)
            said = await probe.get("/readyz")
            assert (said.status_code, said.json()["engine"]) == (status, state)
            assert said.headers["cache-control"] == "no-store"
            assert (await probe.get("/healthz")).status_code == 200


@in_lobby()
async def test_a_server_that_stops_is_alive_and_not_ready(lobby: Lobby) -> None:
    async with lobby.program() as probe:
        assert (await probe.get("/readyz")).status_code == 200
        await lobby.house.turns.close()
        assert (await probe.get("/readyz")).status_code == 503
        assert (await probe.get("/healthz")).status_code == 200


@in_world(gate=True)
async def test_readiness_is_told_in_the_middle_of_a_step(world: World) -> None:
    async with world.client(await world.key("ana")) as ana, world.http() as probe:
        await ana.start("say a b c")
        await world.until(lambda: world.engine.stats().queued + world.engine.stats().running >= 0)
        assert (await probe.get("/readyz")).status_code == 200


@in_world()
async def test_an_engine_that_died_turns_readiness_red(world: World) -> None:
    def dies(batch: object) -> None:
        raise RuntimeError("the device is gone")

    world.runner.run = dies
    async with world.client(await world.key("ana")) as ana, world.http() as probe:
        run = await ana.ask("say a b c")
        assert run.end["type"] == "response.failed"
        assert (await probe.get("/readyz")).status_code == 503
        assert (await probe.get("/healthz")).status_code == 200
