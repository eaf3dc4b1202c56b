"""Door: what a server of any make may send, and what is said where nobody answers as one should."""
import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import httpx
import pytest

from hamdam.engine import BenchError
from hamdam.server.operations.bench.traffic import door
from hamdam.server.operations.bench.traffic.door import DoorError, Streamed, open_door, stream

USAGE = '{"choices":[],"usage":{"prompt_tokens":9,"completion_tokens":2,"prompt_tokens_details":{"cached_tokens":4}}}'


def answer(*events: str, status: int = 200) -> Streamed:
    async def body() -> AsyncIterator[bytes]:
        for event in events:
            yield event.encode()

    async def ask() -> Streamed:
        transport = httpx.MockTransport(lambda request: httpx.Response(status, content=body()))
        async with httpx.AsyncClient(transport=transport, base_url="http://peer") as client:
            return await stream(client, "/v1/chat/completions", {})

    return asyncio.run(ask())


def piece(text: str) -> str:
    return f'data: {{"choices":[{{"delta":{{"content":"{text}"}}}}]}}\n\n'


def test_text_is_joined_and_every_piece_has_its_time() -> None:
    found = answer('data: {"choices":[{"delta":{"role":"assistant","content":""}}]}\n\n', piece("Pa"), piece("ris"),
                   f"data: {USAGE}\n\n", "data: [DONE]\n\n")
    assert (found.text, len(found.pieces)) == ("Paris", 2)
    assert (found.prompt_tokens, found.cached_tokens, found.tokens, found.counted) == (9, 4, 2, True)
    assert found.asked <= found.pieces[0] <= found.pieces[1]


def test_events_may_be_cut_anywhere_and_comments_stand_between() -> None:
    whole = f": keep-alive\n\n{piece('سلام')}\r\n{piece('!')}data: [DONE]\n\n".encode()

    async def ask(cut: int) -> str:
        async def body() -> AsyncIterator[bytes]:
            yield whole[:cut]
            yield whole[cut:]

        transport = httpx.MockTransport(lambda request: httpx.Response(200, content=body()))
        async with httpx.AsyncClient(transport=transport, base_url="http://peer") as client:
            return (await stream(client, "/", {})).text

    assert {asyncio.run(ask(cut)) for cut in range(len(whole))} == {"سلام!"}


def test_a_server_that_does_not_count_is_counted_by_pieces() -> None:
    found = answer(piece("a"), piece("b"), piece("c"), "data: [DONE]\n\n")
    assert (found.tokens, found.counted, found.prompt_tokens, found.cached_tokens) == (3, False, 0, 0)
    found = answer(piece("a"), 'data: {"choices":[],"usage":{"completion_tokens":5,"prompt_tokens_details":null}}\n\n')
    assert (found.tokens, found.counted, found.cached_tokens) == (5, True, 0)


def test_a_completions_text_is_read_as_well() -> None:
    assert answer('data: {"choices":[{"text":"Par"}]}\n\n', 'data: {"choices":[{"text":"is"}]}\n\n').text == "Paris"


@pytest.mark.parametrize(
    ("events", "status", "said"),
    [
        (("{}",), 503, "status 503: {}"),
        (('data: {"error":{"message":"out of\\nmemory"}}\n\n',), 200, "the answer failed: {'message': 'out of"),
        (("data: nonsense\n\n",), 200, "an event that is none"),
        (('data: {"choices":7}\n\n',), 200, "an event that is none"),
        (("data: [DONE]\n\n",), 200, "an answer without text"),
        ((), 200, "an answer without text"),
    ],
)
def test_what_is_no_answer_is_one_line(events: tuple[str, ...], status: int, said: str) -> None:
    with pytest.raises(DoorError) as failed:
        answer(*events, status=status)
    assert said in str(failed.value)
    assert "\n" not in str(failed.value)


def test_a_connection_that_breaks_is_an_error_too() -> None:
    def breaks(request: httpx.Request) -> httpx.Response:
        raise httpx.ReadError("gone")

    async def ask() -> None:
        async with httpx.AsyncClient(transport=httpx.MockTransport(breaks), base_url="http://peer") as client:
            await stream(client, "/", {})

    with pytest.raises(DoorError, match="ReadError: gone"):
        asyncio.run(ask())


def listing(monkeypatch: pytest.MonkeyPatch, reply: Callable[..., httpx.Response]) -> None:
    def get(url: str, **said: Any) -> httpx.Response:
        response = reply(url)
        response.request = httpx.Request("GET", url)
        return response

    monkeypatch.setattr(door.httpx, "get", get)


@pytest.mark.parametrize(
    ("reply", "said"),
    [
        (lambda url: httpx.Response(401), "http://peer/v1/models answers with status 401"),
        (lambda url: httpx.Response(200, text="<html>"), "lists no model; name one"),
        (lambda url: httpx.Response(200, json={"data": []}), "lists no model; name one"),
    ],
)
def test_a_url_without_a_server_behind_it_is_one_line(monkeypatch: pytest.MonkeyPatch, reply: Any, said: str) -> None:
    listing(monkeypatch, reply)
    with pytest.raises(BenchError, match=said):
        open_door("http://peer/v1/")


@pytest.mark.parametrize("url", ["http://", "https://[", "http://:80"])
def test_a_url_that_is_none_is_one_line(url: str) -> None:
    with pytest.raises(BenchError) as refused:
        open_door(url)
    assert "\n" not in str(refused.value)
