"""The description of HTTP: every route is in it and no other, its references lead somewhere, and answers fit it."""
import json
import re

import msgspec
from lobby import Lobby, in_lobby
from starlette.routing import Route

from hamdam.server.openapi import OPERATIONS, openapi_document


def references(node: object) -> list[str]:
    if isinstance(node, dict):
        return [node["$ref"]] if "$ref" in node else [r for value in node.values() for r in references(value)]
    return [r for value in node for r in references(value)] if isinstance(node, list) else []


@in_lobby()
async def test_every_route_for_programs_is_described_and_no_other(lobby: Lobby) -> None:
    routes = {
        (method, re.sub(r":\w+}", "}", route.path))
        for route in lobby.app.routes
        if isinstance(route, Route) and re.match(r"/(api|v1|healthz|readyz)\b", route.path)
        for method in (route.methods or set()) - {"HEAD"}
    }
    paths = openapi_document("hamdam")["paths"]
    assert {(method.upper(), path) for path, methods in paths.items() for method in methods} == routes


def test_every_reference_leads_somewhere_and_every_type_is_used() -> None:
    document = openapi_document("hamdam")
    found = set(references(document))
    for reference in found:
        node = document
        for step in reference.removeprefix("#/").split("/"):
            node = node[step]
        assert node["type"] == "object"
    assert found == {f"#/components/schemas/{name}" for name in document["components"]["schemas"]}


@in_lobby()
async def test_what_is_said_is_what_is_described(lobby: Lobby) -> None:
    await lobby.person("ana")
    for path in ("/healthz", "/readyz", "/api/me", "/api/logins", "/api/keys", "/api/conversations", "/v1/models"):
        kind = OPERATIONS["GET", path].answer
        async with lobby.browser("ana") as ana:
            said = (await ana.get(path)).json()
        assert msgspec.to_builtins(msgspec.convert(said, kind)) == said, path


@in_lobby()
async def test_the_description_is_served_to_anybody(lobby: Lobby) -> None:
    async with lobby.program() as program:
        said = (await program.get("/openapi.json")).json()
    assert said == json.loads(json.dumps(openapi_document("hamdam")))
    assert (said["openapi"], said["paths"]["/healthz"]["get"]["security"]) == ("3.1.0", [])
    assert said["components"]["schemas"]["KeyBody"]["additionalProperties"] is False
