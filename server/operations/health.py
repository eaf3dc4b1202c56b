"""Health: is the process alive, does the engine make progress. It waits for neither; numbers for graphs it has not."""
from typing import Literal

import msgspec
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import BaseRoute, Route

from ..house import House

NOT_READY = frozenset({"stalled", "dead"})


class Alive(msgspec.Struct):
    status: Literal["ok"]


class Readiness(msgspec.Struct):
    """`engine`: idle, prefilling, decoding, stalled or dead."""

    status: Literal["ready", "not ready"]
    engine: str
    steps: int
    running: int
    queued: int
    last_step_age_s: float


def health_routes(house: House) -> list[BaseRoute]:
    async def alive(_: Request) -> JSONResponse:
        return _json(Alive("ok"))

    async def ready(_: Request) -> JSONResponse:
        """Ready: steps advance while there is work. A load balancer that sees 503 sends people elsewhere."""
        stats = house.engine.stats()
        ready = stats.state not in NOT_READY and not house.turns.draining
        readiness = Readiness(
            status="ready" if ready else "not ready",
            engine=stats.state,
            steps=stats.steps,
            running=stats.running,
            queued=stats.queued,
            last_step_age_s=round(stats.last_step_age, 3),
        )
        return _json(readiness, 200 if ready else 503)

    return [Route("/healthz", alive), Route("/readyz", ready)]


def _json(content: msgspec.Struct, status: int = 200) -> JSONResponse:
    return JSONResponse(msgspec.to_builtins(content), status, headers={"cache-control": "no-store"})
