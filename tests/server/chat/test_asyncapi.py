"""The description of the protocol: complete, and every reference leads somewhere."""
import json
import typing

from world import World, in_world

from hamdam.server.chat.asyncapi import asyncapi_document
from hamdam.server.chat.client_events import AnyClientEvent
from hamdam.server.chat.protocol import AnyServerEvent


def references(node: object) -> list[str]:
    if isinstance(node, dict):
        return [node["$ref"]] if "$ref" in node else [r for value in node.values() for r in references(value)]
    return [r for value in node for r in references(value)] if isinstance(node, list) else []


def test_every_event_of_the_protocol_is_described() -> None:
    document = asyncapi_document()
    events = (*typing.get_args(AnyClientEvent), *typing.get_args(AnyServerEvent))
    assert set(document["components"]["messages"]) == {event.__struct_config__.tag for event in events}
    operations = document["operations"]
    assert len(operations["receive"]["messages"]) + len(operations["send"]["messages"]) == len(events)
    create = document["components"]["schemas"]["CreateResponse"]
    assert create["properties"]["type"] == {"enum": ["response.create"]}
    assert create["additionalProperties"] is False
    assert set(create["required"]) == {"type", "client_id"}


def test_every_reference_leads_somewhere() -> None:
    document = asyncapi_document()
    found = references(document)
    assert len(found) > 60
    for reference in found:
        node = document
        for step in reference.removeprefix("#/").split("/"):
            node = node[step]
        assert node


@in_world()
async def test_the_description_is_served_to_anybody(world: World) -> None:
    async with world.http() as http:
        assert (await http.get("/asyncapi.json")).json() == json.loads(json.dumps(asyncapi_document()))
