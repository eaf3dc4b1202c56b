"""An OpenAI-compatible server that is only a door: it streams as many one-letter tokens as it is asked for."""
import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import httpx

from hamdam.server.operations.bench.traffic.door import Door


class FakePeer(Door):
    """`asked` holds the bodies. With `per_piece` a piece has that many tokens; `says` is what usage says instead."""

    def __init__(self, *, per_piece: int = 1, says: int | None = None, status: int = 200) -> None:
        super().__init__("http://peer", "theirs", "secret")
        for name, value in {"asked": [], "per_piece": per_piece, "says": says, "status": status}.items():
            object.__setattr__(self, name, value)

    def client(self, connections: int) -> httpx.AsyncClient:
        return httpx.AsyncClient(transport=httpx.MockTransport(self._answer), base_url=self.url)

    async def _answer(self, request: httpx.Request) -> httpx.Response:
        body = json.loads(request.content)
        self.asked.append(body)
        return httpx.Response(self.status, content=self._stream(body))

    async def _stream(self, body: dict[str, Any]) -> AsyncIterator[bytes]:
        count = body["max_tokens"]
        for _ in range(0, count, self.per_piece):
            choice = {"text": "x"} if "prompt" in body else {"delta": {"content": "x"}}
            yield f"data: {json.dumps({'choices': [choice]})}\n\n".encode()
            await asyncio.sleep(0)  # to the others, so that answers come side by side
        prompt = len(body["prompt"]) if "prompt" in body else 100
        usage = {"completion_tokens": self.says or count, "prompt_tokens": prompt}
        yield f"data: {json.dumps({'choices': [], 'usage': usage})}\n\ndata: [DONE]\n\n".encode()
