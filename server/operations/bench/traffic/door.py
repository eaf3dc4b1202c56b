"""Door: an OpenAI-compatible server as a bench sees it: one streamed answer, timed piece by piece. It keeps nothing."""
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import httpx
import msgspec

from hamdam.engine import BenchError

TIMEOUT_S = 600.0  # a crowded server may take minutes to a first token; that is a result and no error


class Delta(msgspec.Struct):
    content: str | None = None


class Choice(msgspec.Struct):
    delta: Delta | None = None  # of a chat
    text: str | None = None  # of a completion


class Details(msgspec.Struct):
    cached_tokens: int | None = None


class Tokens(msgspec.Struct):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_tokens_details: Details | None = None


class Chunk(msgspec.Struct):
    """What a bench reads of an event; the rest is not even decoded."""

    choices: list[Choice] = []  # msgspec makes a new one each time
    usage: Tokens | None = None
    error: Any = None


class Listed(msgspec.Struct):
    id: str


class Models(msgspec.Struct):
    data: list[Listed]


_chunks, _models = msgspec.json.Decoder(Chunk), msgspec.json.Decoder(Models)


class DoorError(Exception):
    """A request failed; `str(error)` is one line."""


@dataclass(frozen=True, slots=True)
class Door:
    url: str  # without /v1
    model: str
    key: str = field(default="", repr=False)

    @property
    def name(self) -> str:
        return f"{self.model} at {self.url}"

    def client(self, connections: int) -> httpx.AsyncClient:
        """No connection is kept: a busy server may close an idle one at the moment it is used again."""
        return httpx.AsyncClient(
            base_url=self.url,
            headers={"Authorization": f"Bearer {self.key}"} if self.key else {},
            timeout=TIMEOUT_S,
            limits=httpx.Limits(max_connections=connections, max_keepalive_connections=0),
        )


@dataclass(slots=True)
class Streamed:
    """One answer: when it was asked for and when each piece of text came, by time.perf_counter."""

    asked: float
    pieces: list[float] = field(default_factory=list)
    text: str = ""
    prompt_tokens: int = 0
    cached_tokens: int = 0
    tokens: int = 0  # as the server counts; one a piece where it does not tell
    counted: bool = False  # whether it told


async def stream(client: httpx.AsyncClient, path: str, body: dict[str, Any]) -> Streamed:
    """Raises DoorError."""
    answer = Streamed(time.perf_counter())
    text: list[str] = []
    usage = Tokens()
    try:
        async for chunk in _events(client, path, body):
            if chunk.error:
                raise DoorError(f"the answer failed: {_short(chunk.error)}")
            usage = chunk.usage or usage
            for choice in chunk.choices:
                if piece := choice.text or (choice.delta and choice.delta.content):
                    answer.pieces.append(time.perf_counter())
                    text.append(piece)
    except httpx.HTTPError as error:
        raise DoorError(f"{type(error).__name__}: {_short(error)}") from error
    except msgspec.MsgspecError as error:
        raise DoorError(f"an event that is none: {_short(error)}") from error
    if not text:
        raise DoorError("an answer without text")
    answer.text = "".join(text)
    answer.counted = usage.completion_tokens is not None
    answer.tokens = usage.completion_tokens or len(text)
    answer.prompt_tokens = usage.prompt_tokens or 0
    answer.cached_tokens = (usage.prompt_tokens_details and usage.prompt_tokens_details.cached_tokens) or 0
    return answer


async def _events(client: httpx.AsyncClient, path: str, body: dict[str, Any]) -> AsyncIterator[Chunk]:
    asked = {**body, "stream": True, "stream_options": {"include_usage": True}}
    async with client.stream("POST", path, json=asked) as response:
        if response.status_code != httpx.codes.OK:
            said = (await response.aread()).decode(errors="replace")
            raise DoorError(f"status {response.status_code}: {_short(said)}")
        async for line in response.aiter_lines():
            if line.startswith("data:") and not line.endswith("[DONE]"):
                yield _chunks.decode(line[5:])


def open_door(url: str, *, model: str | None = None, key: str = "") -> Door:
    """Where no model is named, the first that the server lists. Raises BenchError where nobody answers."""
    try:
        where = httpx.URL(url.rstrip("/").removesuffix("/v1"))
        if where.scheme not in ("http", "https") or not where.host:
            raise BenchError(f"{url!r} is no address such as http://127.0.0.1:8000")
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        said = httpx.get(f"{where}/v1/models", headers=headers, timeout=30.0)
        said.raise_for_status()
        return Door(str(where), model or _models.decode(said.content).data[0].id, key)
    except httpx.HTTPStatusError as error:
        raise BenchError(f"{where}/v1/models answers with status {error.response.status_code}") from error
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise BenchError(f"{url} does not answer: {_short(error) or type(error).__name__}") from error
    except (msgspec.MsgspecError, IndexError) as error:
        raise BenchError(f"{url} lists no model; name one") from error


def _short(said: object) -> str:
    return " ".join(str(said).split())[:200]
