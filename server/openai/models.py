"""GET /v1/models: the one model that is loaded, in OpenAI's shape. Nothing is loaded or chosen here."""
import time
from typing import Literal

import msgspec
from starlette.requests import Request
from starlette.responses import JSONResponse

from hamdam.engine import Engine

from ..errors import ApiError
from ..people.authenticator import Authenticator


class ModelInfo(msgspec.Struct):
    id: str
    created: int  # seconds since 1970
    max_context: int  # tokens
    object: Literal["model"] = "model"
    owned_by: str = "hamdam"


class ModelList(msgspec.Struct):
    data: list[ModelInfo]
    object: Literal["list"] = "list"


class Models:
    def __init__(self, engine: Engine, authenticator: Authenticator) -> None:
        self.engine, self.authenticator = engine, authenticator
        self.since = int(time.time())

    async def list(self, request: Request) -> JSONResponse:
        await self.authenticator.identify(request)
        return JSONResponse(msgspec.to_builtins(ModelList([self._model()])))

    async def read(self, request: Request) -> JSONResponse:
        await self.authenticator.identify(request)
        if request.path_params["id"] not in ("default", self.engine.model_name):
            raise ApiError("model_not_found", "This server has no such model.")
        return JSONResponse(msgspec.to_builtins(self._model()))

    def _model(self) -> ModelInfo:
        return ModelInfo(self.engine.model_name, self.since, self.engine.max_context)
