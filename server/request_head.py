"""BoundedHead: uvicorn's HTTP protocol with bounds, in bytes and seconds, on the head of a request. Not on bodies.

Nobody can refuse a head before it is whole, and the parser waits for that however long it takes or large it grows.
"""
import asyncio

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

MAX_BYTES = 64 << 10  # and what came in the same chunk as its first byte
WITHIN_S = 20.0
TOO_LARGE = b"HTTP/1.1 431 Request Header Fields Too Large\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"


class BoundedHead(HttpToolsProtocol):
    _deadline: asyncio.TimerHandle | None = None  # while a head is waited for
    _begun = False  # some of it is here
    _size = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._wait()

    def connection_lost(self, exc: Exception | None) -> None:
        self._wait_no_more()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._deadline is None and (self.cycle is None or self.cycle.response_complete):
            self._wait()  # uvicorn stops its own clock at the first byte
        self._size += len(data)
        super().data_received(data)
        if self._begun and self._size > MAX_BYTES and not self.transport.is_closing():
            self.transport.write(TOO_LARGE)
            self.transport.close()

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._begun, self._size = True, 0

    def on_headers_complete(self) -> None:
        self._begun = False
        self._wait_no_more()
        super().on_headers_complete()

    def _wait(self) -> None:
        self._deadline = asyncio.get_running_loop().call_later(WITHIN_S, self.transport.close)

    def _wait_no_more(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
