"""OpenAPI: what programs can ask over HTTP, described from the types that read and answer it. It answers nothing else.

The pages are for people and are not here; the WebSocket is chat/asyncapi.py's.
"""
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import BaseRoute, Route

from hamdam.engine import SAMPLING_SCHEMA

from .chat.conversations import ConversationPage, Edit, ItemPage, OneConversation
from .errors import CODES
from .house import House
from .openai.body import SAMPLING
from .openai.models import ModelInfo, ModelList
from .operations.health import Alive, Readiness
from .people.routes import KeyBody, Keys, Logins, Me, NewKey, Nothing, SetUpBody, SignInBody
from .tools import MAX_TOOLS

SCHEMAS = "#/components/schemas/"
Schema = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Operation:
    """`body` and `answer` are types of ours, or a schema where OpenAI's own documentation is the description."""

    summary: str
    answer: type[msgspec.Struct] | Schema | None = None  # None: 204
    body: type[msgspec.Struct] | Schema | None = None
    query: Mapping[str, str] = field(default_factory=dict)  # name -> JSON type
    status: int = 200
    open_to_all: bool = False


PAGED = {"limit": "integer"}
CHAT_BODY: Schema = {
    "type": "object",
    "description": "As OpenAI's, and with the fields of `sampling`; a field that this server does not know is refused.",
    "required": ["messages"],
    "properties": {
        "model": {"type": "string"},
        "messages": {"type": "array", "items": {"type": "object"}},
        "stream": {"type": "boolean"},
        "tools": {"type": "array", "items": {"type": "object"}, "maxItems": MAX_TOOLS},
        "tool_choice": {"anyOf": [{"enum": ["none", "auto", "required"]}, {"type": "object"}]},
        "parallel_tool_calls": {"type": "boolean"},
        **{name: {} for name in ("stream_options", "user", "max_completion_tokens", "response_format")},
        **{name: SAMPLING_SCHEMA.get(name, {}) for name in sorted(SAMPLING)},
    },
}
CHAT_ANSWER: Schema = {
    "type": "object",
    "description": "A chat completion as OpenAI's, what the model thought as `reasoning_content`; with `stream` "
    "server-sent events of its chunks.",
}
OPERATIONS: Mapping[tuple[str, str], Operation] = {
    ("GET", "/healthz"): Operation("The process lives", Alive, open_to_all=True),
    ("GET", "/readyz"): Operation("The engine makes progress (else 503)", Readiness, open_to_all=True),
    ("POST", "/api/setup"): Operation(
        "Make the first admin with the one-time link", Nothing, SetUpBody, status=201, open_to_all=True
    ),
    ("POST", "/api/sign-in"): Operation("Sign in; the answer sets the cookie", Nothing, SignInBody, open_to_all=True),
    ("POST", "/api/sign-out"): Operation("Sign out here", open_to_all=True),
    ("GET", "/api/me"): Operation("Who asks", Me),
    ("GET", "/api/logins"): Operation("One's sign-ins", Logins),
    ("DELETE", "/api/logins"): Operation("Sign out everywhere"),
    ("DELETE", "/api/logins/{id}"): Operation("End one sign-in"),
    ("GET", "/api/keys"): Operation("One's API keys", Keys),
    ("POST", "/api/keys"): Operation("A new key, shown once", NewKey, KeyBody, status=201),
    ("DELETE", "/api/keys/{id}"): Operation("Revoke a key"),
    ("GET", "/api/conversations"): Operation(
        "One's conversations, pinned ones first, then by last change",
        ConversationPage,
        query=PAGED | {"cursor": "string", "archived": "boolean"},
    ),
    ("GET", "/api/conversations/{id}"): Operation(
        "A conversation and its last messages in creation order", ItemPage, query=PAGED | {"before": "string"}
    ),
    ("PATCH", "/api/conversations/{id}"): Operation("Rename, pin, archive, choose a branch", OneConversation, Edit),
    ("DELETE", "/api/conversations/{id}"): Operation("Delete for good"),
    ("POST", "/v1/chat/completions"): Operation("An answer, kept nowhere", CHAT_ANSWER, CHAT_BODY),
    ("GET", "/v1/models"): Operation("The models", ModelList),
    ("GET", "/v1/models/{id}"): Operation("One model", ModelInfo),
}


def openapi_routes(house: House) -> list[BaseRoute]:
    document = cache(openapi_document)

    async def describe(_: Request) -> JSONResponse:
        return JSONResponse(document(house.cookie.name))

    return [Route("/openapi.json", describe, methods=["GET"])]


def openapi_document(cookie: str) -> dict[str, Any]:
    types = {t for op in OPERATIONS.values() for t in (op.answer, op.body) if isinstance(t, type)}
    ordered = sorted(types, key=lambda kind: kind.__name__)
    _, schemas = msgspec.json.schema_components(ordered, ref_template=SCHEMAS + "{name}")
    paths: dict[str, dict[str, Any]] = {}
    for (method, path), operation in OPERATIONS.items():
        paths.setdefault(path, {})[method.lower()] = _operation(path, operation)
    return {
        "openapi": "3.1.0",
        "info": {"title": "Hamdam", "version": "1"},
        "security": [{"key": []}, {"cookie": []}],
        "paths": paths,
        "components": {
            "securitySchemes": {
                "key": {"type": "http", "scheme": "bearer"},
                "cookie": {"type": "apiKey", "in": "cookie", "name": cookie},
            },
            "schemas": schemas | {"Error": _error()},
        },
    }


def _operation(path: str, operation: Operation) -> dict[str, Any]:
    named = re.findall(r"{(\w+)}", path)
    parameters = [{"name": n, "in": "path", "required": True, "schema": {"type": "string"}} for n in named]
    parameters += [{"name": n, "in": "query", "schema": {"type": kind}} for n, kind in operation.query.items()]
    said: dict[str, Any] = {"204": {"description": "Done."}}
    if operation.answer is not None:
        said = {str(operation.status): {"description": operation.summary, "content": _content(operation.answer)}}
    said["default"] = {"description": "Refused", "content": _content({"$ref": f"{SCHEMAS}Error"})}
    described: dict[str, Any] = {"summary": operation.summary, "parameters": parameters, "responses": said}
    if operation.body is not None:
        described["requestBody"] = {"required": True, "content": _content(operation.body)}
    if operation.open_to_all:
        described["security"] = []
    return described


def _content(kind: type[msgspec.Struct] | Schema) -> dict[str, Any]:
    schema = {"$ref": SCHEMAS + kind.__name__} if isinstance(kind, type) else kind
    return {"application/json": {"schema": schema}}


def _error() -> dict[str, Any]:
    """The `error` object of errors.py; its statuses are those of the codes."""
    text = {"type": "string"}
    kinds = sorted({kind for kind, _ in CODES.values()})
    fields: dict[str, Schema] = {"code": {"enum": list(CODES)}, "type": {"enum": kinds}}
    fields |= {"message": text, "param": text, "event_id": text, "retry_after_ms": {"type": "integer"}}
    error = {"type": "object", "required": ["type", "code", "message"], "properties": fields}
    return {"type": "object", "required": ["error"], "properties": {"error": error}}
