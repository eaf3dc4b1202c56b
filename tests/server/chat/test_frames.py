"""Reading frames: what is no event is refused with a code and the name of the field, and never repeated back."""
import json
import math

import pytest

from hamdam.server.chat.client_events import CreateResponse, Ping, Subscribe
from hamdam.server.chat.frames import RefusedFrame, read_frame, write_frame
from hamdam.server.chat.protocol import Pong, TextDelta


def refusal(frame: str) -> RefusedFrame:
    with pytest.raises(RefusedFrame) as refused:
        read_frame(frame)
    return refused.value


@pytest.mark.parametrize(
    "frame",
    [
        "{not json",
        "",
        "[]",
        '"text"',
        '{"type": "ping"} trailing',
        '{"type": "ping", "t": NaN}',
        '{"type": "ping", "t": Infinity}',
        '{"type": "ping", "t": -Infinity}',
        '{"type": "ping", "t": 1e999}',
        '{"type": "ping", "t": "\\ud800"}',
        '{"type": "response.create", "client_id": "c", "sampling": {"seed": ' + "[" * 50_000 + "]" * 50_000 + "}}",
        '{"sampling": ' + '{"a":' * 50_000 + "1" + "}" * 50_000 + ', "type": "response.create"}',
    ],
)
def test_what_is_not_json_is_invalid_json(frame: str) -> None:
    assert refusal(frame).code == "invalid_json"


@pytest.mark.parametrize("frame", ["{}", '{"type": "no.such.type"}', '{"type": 5}', '{"type": null}'])
def test_an_unknown_type_is_named_as_that(frame: str) -> None:
    assert refusal(frame).code == "unknown_type"


@pytest.mark.parametrize(
    ("event", "param"),
    [
        ({"type": "conversation.subscribe"}, "conversation_id"),
        ({"type": "conversation.subscribe", "conversation_id": 5}, "conversation_id"),
        ({"type": "conversation.subscribe", "conversation_id": "c" * 65}, "conversation_id"),
        ({"type": "conversation.subscribe", "conversation_id": "c", "user_id": "u"}, "user_id"),
        ({"type": "conversation.subscribe", "conversation_id": "c", "after": {"response_id": "r"}},
         "after.sequence_number"),
        ({"type": "conversation.subscribe", "conversation_id": "c",
          "after": {"response_id": "r", "sequence_number": -1}}, "after.sequence_number"),
        ({"type": "session.update", "coalesce_ms": 14}, "coalesce_ms"),
        ({"type": "session.update", "coalesce_ms": 251}, "coalesce_ms"),
        ({"type": "session.update", "coalesce_ms": 33.5}, "coalesce_ms"),
        ({"type": "response.create", "client_id": "c", "cache_salt": "x"}, "cache_salt"),
        ({"type": "response.create", "client_id": "c", "conversation": {"owner": "x"}}, "conversation.owner"),
        ({"type": "response.create", "client_id": ""}, "client_id"),
        ({"type": "response.create", "client_id": "c", "input": []}, "input"),
        ({"type": "response.create", "client_id": "c",
          "input": [{"type": "message", "role": "system", "content": [{"type": "input_text", "text": "x"}]}]},
         "input[0].role"),
        ({"type": "response.create", "client_id": "c",
          "input": [{"type": "message", "role": "user", "content": [{"type": "input_image", "url": "x"}]}]},
         "input[0].content[0].type"),
        ({"type": "response.create", "client_id": "c", "input": [{}]}, "input[0].type"),
        ({"type": "response.create", "client_id": "c", "input": [{"role": "user"}]}, "input[0].type"),
        ({"type": "ping", "event_id": "e" * 65}, "event_id"),
    ],
)  # fmt: skip
def test_a_field_that_is_wrong_is_named(event: dict, param: str) -> None:
    refused = refusal(json.dumps(event))
    assert (refused.code, refused.param) == ("invalid_field", param)


def test_a_refusal_carries_the_event_id_where_one_can_be_read() -> None:
    assert refusal('{"type": "no.such.type", "event_id": "e1"}').event_id == "e1"
    assert refusal('{"type": "response.create", "event_id": "e2", "x": 1}').event_id == "e2"
    assert refusal('{"type": "ping", "event_id": 7, "x": 1}').event_id is None
    assert refusal('{"event_id": "e3"').event_id is None


def test_what_a_client_wrote_is_not_said_back_to_any_length() -> None:
    refused = refusal(json.dumps({"type": "ping", "x" * 10_000: 1}))
    assert len(json.dumps(refused.body())) < 500
    secret = refusal(json.dumps({"type": "response.create", "client_id": "c", "input": [
        {"type": "message", "role": "a secret", "content": [{"type": "input_text", "text": "x"}]}]}))
    assert "secret" not in json.dumps(secret.body())


def test_a_parent_can_be_missing_null_or_named() -> None:
    missing, null, named = (
        read_frame('{"type": "response.create", "client_id": "c"' + parent + "}")
        for parent in ("", ', "parent_id": null', ', "parent_id": "msg_1"')
    )
    assert isinstance(missing, CreateResponse)
    assert len({repr(missing.parent_id), repr(null.parent_id), repr(named.parent_id)}) == 3


def test_a08_zero_width_joiners_survive_both_ways() -> None:
    text = "می‌روم کتاب‌ها 👨‍👩‍👧"
    event = read_frame(json.dumps({"type": "response.create", "client_id": "c", "conversation": {}, "input": [
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": text}]}]}, ensure_ascii=False))
    assert event.input[0].content[0].text == text
    delta = TextDelta(response_id="r", conversation_id="c", sequence_number=3, item_id="m", delta=text)
    assert json.loads(write_frame(delta))["delta"] == text


def test_events_are_read_as_what_they_are() -> None:
    assert read_frame('{"type": "ping", "t": 1.5}') == Ping(t=1.5)
    assert read_frame('{"type": "conversation.subscribe", "conversation_id": "c"}') == Subscribe(conversation_id="c")
    assert json.loads(write_frame(Pong(t=0))) == {"type": "pong", "t": 0}
    assert math.isfinite(json.loads(write_frame(Pong(t=0.5)))["t"])
