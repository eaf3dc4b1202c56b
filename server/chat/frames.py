"""Frames: text becomes an event, or a refusal that names the field; an event becomes text. It knows no socket."""
import re
from typing import Any

import msgspec

from ..errors import ApiError
from .client_events import AnyClientEvent
from .protocol import ServerEvent

_decoder: msgspec.json.Decoder[AnyClientEvent] = msgspec.json.Decoder(AnyClientEvent)
_encoder = msgspec.json.Encoder()
_WHERE = re.compile(r" - at `\$\.?(?P<path>[^`]{0,200})`\Z")
_FIELD = re.compile(r"field `(?P<field>.{0,200}?)`")
MAX_PARAM = 128  # characters of a field's name that are said back


class RefusedFrame(ApiError):
    """A frame that is no event. `event_id` is the client's, where one could be read out of it."""

    event_id: str | None = None


class _Envelope(msgspec.Struct):
    type: Any = None
    event_id: Any = None


_envelope = msgspec.json.Decoder(_Envelope)


def read_frame(text: str) -> AnyClientEvent:
    """Raises RefusedFrame: invalid_json, unknown_type, or invalid_field with the field's name."""
    try:
        return _decoder.decode(text)
    except (msgspec.DecodeError, RecursionError) as error:
        raise _refusal(text, error) from error


def write_frame(event: ServerEvent) -> str:
    return _encoder.encode(event).decode()


def invalid_field(error: msgspec.ValidationError, prefix: str = "") -> ApiError:
    """The refusal of a typed decoding, with the path of the field as `param`. What stood in it is not said back."""
    return ApiError("invalid_field", _why(str(error)), param=(prefix + _param(str(error)))[:MAX_PARAM] or None)


def _refusal(text: str, error: Exception) -> RefusedFrame:
    if not isinstance(error, msgspec.ValidationError) or "out of range" in str(error):
        return RefusedFrame("invalid_json", "This is not JSON, or it is nested too deeply.")
    try:
        envelope = _envelope.decode(text)
    except (msgspec.DecodeError, RecursionError):
        return RefusedFrame("invalid_json", "An event is a JSON object.")
    if str(error).endswith("`$.type`") or str(error).endswith("required field `type`"):  # the event's own
        refused = RefusedFrame("unknown_type", "There is no event of this type.", param="type")
    else:
        known = invalid_field(error)
        refused = RefusedFrame(known.code, known.message, param=known.param)
    if isinstance(envelope.event_id, str) and len(envelope.event_id) <= 64:
        refused.event_id = envelope.event_id
    return refused


def _param(message: str) -> str:
    where, named = _WHERE.search(message), _FIELD.search(message)
    parts = [where["path"] if where else "", named["field"] if named else ""]
    return ".".join(part for part in parts if part)


def _why(message: str) -> str:
    message = _WHERE.sub("", message)
    if "unknown field" in message:
        return "There is no such field."
    if "missing required field" in message:
        return "This field is missing."
    if message.startswith("Invalid"):  # would repeat the value
        return "This value is not allowed."
    return message[:200] + "."
