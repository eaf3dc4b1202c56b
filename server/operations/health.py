"""Health: is the process alive, does the engine make progress. It waits for neither; numbers for graphs it has not."""
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import BaseRoute, Route

from ..house import House

NOT_READY = frozenset({"stalled", "dead"})


def health_routes(house: House) -> list[BaseRoute]:
    async def alive(_: Request) -> JSONResponse:
        return JSONResponse({"status": "ok"}, headers={"cache-control": "no-store"})

    async def ready(_: Request) -> JSONResponse:
        """Ready: steps advance while there is work. A load balancer that sees 503 sends people elsewhere."""
        stats = house.engine.stats()
        ready = stats.state not in NOT_READY and not house.turns.draining
        body = {
            "status": "ready" if ready else "not ready",
            "engine": stats.state,
            "steps": stats.steps,
            "running": stats.running,
            "queued": stats.queued,
            "last_step_age_s": round(stats.last_step_age, 3),
        }
        return JSONResponse(body, 200 if ready else 503, headers={"cache-control": "no-store"})

    return [Route("/healthz", alive), Route("/readyz", ready)]
