"""The routes of the chat: the socket, and conversations over HTTP. Which paths there are; not what they do."""
from starlette.routing import BaseRoute, Route, WebSocketRoute

from ..house import House
from .conversations import Conversations
from .gateway import Gateway


def chat_routes(house: House) -> list[BaseRoute]:
    gateway = Gateway(house.turns, house.authenticator, house.settings.limits, house.boot_id)
    conversations = Conversations(house.turns, house.authenticator)
    return [
        WebSocketRoute("/ws", gateway.__call__, name="gateway"),
        Route("/api/conversations", conversations.list, methods=["GET"]),
        Route("/api/conversations/{id}", conversations.read, methods=["GET"]),
        Route("/api/conversations/{id}", conversations.edit, methods=["PATCH"]),
        Route("/api/conversations/{id}", conversations.delete, methods=["DELETE"]),
    ]
