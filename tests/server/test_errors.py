"""Errors: one object for every failure, with its code's own type and status, and nothing of the inside in it."""
import logging

import pytest
from lobby import Lobby, in_lobby
from starlette.routing import Route

from hamdam.server.errors import CODES, ApiError
from hamdam.server.storage.errors import StorageError, StorageFull

TYPES = {
    "invalid_request_error",
    "authentication_error",
    "permission_error",
    "not_found_error",
    "rate_limit_error",
    "server_error",
}


def test_every_code_has_a_type_of_openai_s_and_a_status() -> None:
    assert {kind for kind, _ in CODES.values()} == TYPES
    statuses = {code: status for code, (_, status) in CODES.items()}
    assert {statuses[code] for code in statuses if code.startswith("invalid_")} == {400}
    assert statuses["queue_full"] == statuses["draining"] == statuses["engine_unavailable"] == 503
    assert statuses["rate_limit_exceeded"] == statuses["quota_exceeded"] == statuses["too_many_in_flight"] == 429
    with pytest.raises(KeyError):
        ApiError("no_such_code", "")


def test_what_is_not_known_is_left_out() -> None:
    assert ApiError("forbidden", "No.").body() == {"type": "permission_error", "code": "forbidden", "message": "No."}
    full = ApiError("conversation_busy", "Busy.", param="p", retry_after_ms=1500, response_id="resp_1").body("e1")
    assert full["param"] == "p"
    assert (full["event_id"], full["retry_after_ms"], full["response_id"]) == ("e1", 1500, "resp_1")


def test_the_time_to_wait_is_rounded_up_to_seconds_for_http() -> None:
    assert ApiError("queue_full", "", retry_after_ms=1001).response().headers["retry-after"] == "2"
    assert ApiError("unauthorized", "").response().headers["www-authenticate"] == "Bearer"


@pytest.mark.parametrize(
    ("error", "status", "said"),
    [
        (ApiError("conversation_busy", "Busy."), 409, "Busy."),
        (StorageFull("/data/hamdam.db: the disk is full"), 500, "The server's disk is full; nothing was saved."),
        (StorageError("/data/hamdam.db: broken"), 500, "The server cannot use its data."),
        (ZeroDivisionError("secret text"), 500, "Something went wrong on the server."),
    ],
)
def test_whatever_a_route_raises_leaves_as_the_error_object(tmp_path, caplog, error, status: int, said: str) -> None:
    @in_lobby()
    async def scene(lobby: Lobby) -> None:
        async def broken(_: object) -> None:
            raise error

        lobby.app.router.routes.insert(0, Route("/api/broken", broken))
        async with lobby.browser() as somebody:
            answer = await somebody.get("/api/broken")
        assert (answer.status_code, answer.json()["error"]["message"]) == (status, said)
        assert answer.headers["content-security-policy"]
        assert "secret" not in answer.text and "/data" not in answer.text

    with caplog.at_level(logging.CRITICAL + 1):
        scene(tmp_path=tmp_path)
