"""Refusals: what the engine, the storage or a route could not do, as an ApiError, and the handlers of HTTP for it."""
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from hamdam.engine import EngineError, EngineStopped, InvalidField, PromptTooLong, QueueFull, TooManyInFlight
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from .errors import ApiError
from .storage.errors import StorageError, StorageFull

log = logging.getLogger("hamdam.server")
CODE_OF_STATUS = {400: "invalid_field", 404: "not_found", 405: "method_not_allowed"}


def refusal_of(error: EngineError | StorageError) -> ApiError:
    """The same in the protocol's words."""
    match error:
        case InvalidField(name=name, why=why):
            return ApiError("invalid_field", f"{name}: {why}", param=name)
        case PromptTooLong():
            return ApiError("context_length_exceeded", _sentence(error))
        case QueueFull():
            return ApiError("queue_full", _sentence(error), retry_after_ms=_ms(error.retry_after))
        case TooManyInFlight():
            return ApiError("too_many_in_flight", _sentence(error), retry_after_ms=_ms(error.retry_after))
        case EngineStopped():
            return ApiError("engine_unavailable", "The model is not running.", retry_after_ms=5000)
        case StorageFull():
            return ApiError("internal", "The server's disk is full; nothing was saved.")
        case _:
            return ApiError("internal", "Something went wrong on the server.")


Handler = Callable[[Request, Any], Awaitable[Response]]


def refusal_handlers() -> Mapping[Any, Handler]:
    """For the app: every failure leaves as the error object, with a status that is its own and not a guess."""

    async def said(_: Request, error: ApiError) -> Response:
        return error.response()

    async def by_a_room(_: Request, error: EngineError | StorageError) -> Response:
        log.warning("refused: %s", error)
        return refusal_of(error).response()

    async def by_the_router(_: Request, error: HTTPException) -> Response:
        code = CODE_OF_STATUS.get(error.status_code, "internal")
        message = {"not_found": "There is nothing here.", "method_not_allowed": "This cannot be done here."}
        response = ApiError(code, message.get(code, "This request cannot be answered.")).response()
        response.headers.update(error.headers or {})  # Allow
        return response

    async def by_accident(request: Request, error: Exception) -> Response:
        log.error("%s %s failed", request.method, request.url.path, exc_info=error)
        return ApiError("internal", "Something went wrong on the server.").response()

    return {
        ApiError: said,
        EngineError: by_a_room,
        StorageError: by_a_room,
        HTTPException: by_the_router,
        Exception: by_accident,
    }


def _sentence(error: Exception) -> str:
    text = str(error)
    return text[:1].upper() + text[1:] + "."


def _ms(seconds: float | None) -> int | None:
    return None if seconds is None else int(seconds * 1000)
