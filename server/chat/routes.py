"""The routes of the chat: the socket, and conversations over HTTP. Which paths there are; not what they do."""
from functools import cache

from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import BaseRoute, Route, WebSocketRoute

from ..house import House
from .asyncapi import asyncapi_document
from .conversations import Conversations
from .gateway import Gateway


def chat_routes(house: House) -> list[BaseRoute]:
    gateway = Gateway(house.turns, house.owners, house.authenticator, house.settings.limits, house.boot_id)
    conversations = Conversations(house.turns, house.authenticator)
    document = cache(asyncapi_document)

    async def describe(_: Request) -> JSONResponse:
        return JSONResponse(document())

    return [
        WebSocketRoute("/ws", gateway.__call__, name="gateway"),
        Route("/asyncapi.json", describe, methods=["GET"]),
        Route("/api/conversations", conversations.list, methods=["GET"]),
        Route("/api/conversations/{id}", conversations.read, methods=["GET"]),
        Route("/api/conversations/{id}", conversations.edit, methods=["PATCH"]),
        Route("/api/conversations/{id}", conversations.delete, methods=["DELETE"]),
    ]
