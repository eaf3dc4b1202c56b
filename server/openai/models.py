"""GET /v1/models: the one model that is loaded, in OpenAI's shape. Nothing is loaded or chosen here."""
import time
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse

from hamdam.engine import Engine

from ..errors import ApiError
from ..people.authenticator import Authenticator


class Models:
    def __init__(self, engine: Engine, authenticator: Authenticator) -> None:
        self.engine, self.authenticator = engine, authenticator
        self.since = int(time.time())

    async def list(self, request: Request) -> JSONResponse:
        await self.authenticator.identify(request)
        return JSONResponse({"object": "list", "data": [self._model()]})

    async def read(self, request: Request) -> JSONResponse:
        await self.authenticator.identify(request)
        if request.path_params["id"] not in ("default", self.engine.model_name):
            raise ApiError("model_not_found", "This server has no such model.")
        return JSONResponse(self._model())

    def _model(self) -> dict[str, Any]:
        return {
            "id": self.engine.model_name,
            "object": "model",
            "created": self.since,
            "owned_by": "hamdam",
            "max_context": self.engine.max_context,
        }
