"""ApiError: how the server says no, on HTTP and on the WebSocket alike. The engine's own refusals are hamdam.engine's.

`CODES` is the whole list, with the type and the HTTP status of each; no other code can be said.
"""
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from .storage.errors import StorageError, StorageFull

log = logging.getLogger("hamdam.server")

REQUEST, MISSING, LIMIT, SERVER = "invalid_request_error", "not_found_error", "rate_limit_error", "server_error"
CODES: Mapping[str, tuple[str, int]] = {
    "invalid_json": (REQUEST, 400),
    "unknown_type": (REQUEST, 400),
    "invalid_field": (REQUEST, 400),
    "parent_not_found": (REQUEST, 400),
    "context_length_exceeded": (REQUEST, 400),
    "unauthorized": ("authentication_error", 401),
    "forbidden": ("permission_error", 403),
    "not_found": (MISSING, 404),
    "conversation_not_found": (MISSING, 404),
    "response_not_found": (MISSING, 404),
    "model_not_found": (MISSING, 404),
    "method_not_allowed": (REQUEST, 405),
    "conversation_busy": (REQUEST, 409),
    "too_large": (REQUEST, 413),
    "rate_limit_exceeded": (LIMIT, 429),
    "quota_exceeded": (LIMIT, 429),
    "too_many_in_flight": (LIMIT, 429),
    "internal": (SERVER, 500),
    "queue_full": (SERVER, 503),
    "draining": (SERVER, 503),
    "engine_unavailable": (SERVER, 503),
}


class ApiError(Exception):
    def __init__(
        self,
        code: str,
        message: str,
        *,
        param: str | None = None,
        retry_after_ms: int | None = None,
        **extra: str,
    ) -> None:
        """`message` is for people and never repeats what they wrote.

        `extra` are fields of this code alone, such as the `response_id` that runs in a busy conversation.
        """
        super().__init__(message)
        self.code, self.message, self.extra = code, message, extra
        self.param, self.retry_after_ms = param, retry_after_ms
        self.type, self.status = CODES[code]

    def body(self, event_id: str | None = None) -> dict[str, Any]:
        """The `error` object; what is not known is left out."""
        error: dict[str, Any] = {"type": self.type, "code": self.code, "message": self.message, **self.extra}
        if self.param is not None:
            error["param"] = self.param
        if event_id is not None:
            error["event_id"] = event_id
        if self.retry_after_ms is not None:
            error["retry_after_ms"] = self.retry_after_ms
        return error

    def headers(self) -> dict[str, str]:
        headers = {"cache-control": "no-store"}
        if self.retry_after_ms is not None:
            headers["retry-after"] = str(-(-self.retry_after_ms // 1000))
        if self.code == "unauthorized":
            headers["www-authenticate"] = "Bearer"
        return headers

    def response(self) -> JSONResponse:
        return JSONResponse({"error": self.body()}, status_code=self.status, headers=self.headers())


Handler = Callable[[Request, Any], Awaitable[Response]]


def error_handlers() -> Mapping[Any, Handler]:
    """For the app: what is refused leaves as the error object, with its own status. Accidents are boundary.py's."""
    return {ApiError: _said, StorageError: _by_storage, HTTPException: _by_the_router}


async def _said(_: Request, error: ApiError) -> Response:
    return error.response()


async def _by_storage(_: Request, error: StorageError) -> Response:
    log.error("%s", error)
    full = isinstance(error, StorageFull)
    why = "The server's disk is full; nothing was saved." if full else "The server cannot use its data."
    return ApiError("internal", why).response()


async def _by_the_router(_: Request, error: HTTPException) -> Response:
    """404 and 405 are Starlette's own; a route that means something raises an ApiError."""
    if error.status_code == 405:
        response = ApiError("method_not_allowed", "This cannot be done here.").response()
    elif error.status_code == 404:
        response = ApiError("not_found", "There is nothing here.").response()
    else:
        response = ApiError("invalid_field", "This request cannot be understood.").response()
    response.headers.update(error.headers or {})  # Allow
    return response
