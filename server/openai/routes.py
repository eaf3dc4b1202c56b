"""The routes under /v1, for programs that speak OpenAI's API. Thin adapters over the engine, with no conversation."""
from starlette.routing import BaseRoute, Route

from ..house import House
from .chat_completions import ChatCompletions
from .models import Models


def openai_routes(house: House) -> list[BaseRoute]:
    completions = ChatCompletions(house.engine, house.owners, house.authenticator, house.settings.limits)
    models = Models(house.engine, house.authenticator)
    return [
        Route("/v1/chat/completions", completions.create, methods=["POST"]),
        Route("/v1/models", models.list, methods=["GET"]),
        Route("/v1/models/{id:path}", models.read, methods=["GET"]),
    ]
