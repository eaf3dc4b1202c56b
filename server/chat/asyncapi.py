"""The protocol described for machines: AsyncAPI 3, of client_events.py and protocol.py. Nothing is described twice."""
import typing
from typing import Any

import msgspec

from .client_events import AnyClientEvent
from .protocol import PROTOCOL, AnyServerEvent

SCHEMAS = "#/components/schemas/"


def asyncapi_document() -> dict[str, Any]:
    received, sent = typing.get_args(AnyClientEvent), typing.get_args(AnyServerEvent)
    _, schemas = msgspec.json.schema_components((*received, *sent), ref_template=SCHEMAS + "{name}")
    messages = {_tag(event): {"payload": {"$ref": SCHEMAS + event.__name__}} for event in (*received, *sent)}
    return {
        "asyncapi": "3.0.0",
        "info": {"title": "Hamdam", "version": PROTOCOL.removeprefix("hamdam.")},
        "defaultContentType": "application/json",
        "channels": {
            "socket": {
                "address": "/ws",
                "description": f"One JSON object a text frame; the subprotocol {PROTOCOL} must be offered.",
                "messages": {tag: {"$ref": f"#/components/messages/{tag}"} for tag in messages},
            }
        },
        "operations": {"receive": _operation("receive", received), "send": _operation("send", sent)},
        "components": {"messages": messages, "schemas": schemas},
    }


def _operation(action: str, events: tuple[type[msgspec.Struct], ...]) -> dict[str, Any]:
    """From the server's point of view: it receives what clients send."""
    messages = [{"$ref": f"#/channels/socket/messages/{_tag(event)}"} for event in events]
    return {"action": action, "channel": {"$ref": "#/channels/socket"}, "messages": messages}


def _tag(event: type[msgspec.Struct]) -> str:
    return str(event.__struct_config__.tag)
