"""Connections that are given so much time and room, and no more: who sends or reads too slowly is closed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Literal

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from polyhead.serve.http import HttpError, answer_of
from polyhead.serve.settings import ConnectionLimits

LOOKS = 4  # at the clock, for each of the times that are allowed
MOST = 1.0  # seconds between two


class Connection(HttpToolsProtocol):
    """A caller's connection. `limits` are those of the server's class."""

    limits: ConnectionLimits
    all_open: Callable[[], int]

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Takes it, or refuses it where too many are open."""
        super().connection_made(transport)
        self._awaits: Literal["header", "body", "nothing"] = "header"
        self._since, self._unread_since = self.loop.time(), float("inf")
        self._header_bytes = 0
        if type(self).all_open() > self.limits.open:
            self._refuse(HttpError(429, "too many connections are open", allowed=f"{self.limits.open:,}"))

    def data_received(self, data: bytes) -> None:
        """Reads on; refuses headers without end."""
        was_header = self._awaits == "header"
        super().data_received(data)
        if was_header and self._awaits == "header":
            self._header_bytes += len(data)
            if self._header_bytes > self.limits.header_bytes:
                most = f"{self.limits.header_bytes:,} bytes"
                self._refuse(HttpError(431, "the headers are too large", allowed=most))

    def on_message_begin(self) -> None:
        """A request begins, on a new connection or after another."""
        super().on_message_begin()
        self._awaits, self._since, self._header_bytes = "header", self.loop.time(), 0

    def on_headers_complete(self) -> None:
        """Its headers are there."""
        super().on_headers_complete()
        self._awaits, self._since = "body", self.loop.time()

    def on_message_complete(self) -> None:
        """All of it is there."""
        super().on_message_complete()
        self._awaits = "nothing"

    def pause_writing(self) -> None:
        """The caller reads more slowly than it is answered."""
        super().pause_writing()
        self._unread_since = self.loop.time()

    def resume_writing(self) -> None:
        """It has read."""
        super().resume_writing()
        self._unread_since = float("inf")

    def look(self, now: float) -> None:
        """Closes it where its caller takes too long."""
        if now - self._unread_since > self.limits.body_seconds:
            self.transport.abort()
        elif self._awaits == "header" and now - self._since > self.limits.header_seconds:
            self._refuse(HttpError(408, "the request took too long to come"))
        elif self._awaits == "body" and now - self._since > self.limits.body_seconds:
            if self.cycle is None or self.cycle.response_started:
                self.transport.abort()
            else:
                self._refuse(HttpError(408, "the request took too long to come"))

    def _refuse(self, error: HttpError) -> None:
        """Answers without a request, and closes."""
        if self.transport.is_closing():
            return
        answer = answer_of(error)
        headers = [*answer.raw_headers, (b"connection", b"close")]
        if error.status == 429:
            headers.append((b"retry-after", b"1"))
        lines = [f"HTTP/1.1 {error.status} Refused".encode(), *(name + b": " + value for name, value in headers)]
        self.transport.write(b"\r\n".join([*lines, b"", bytes(answer.body)]))
        self.transport.close()


def connections_of(limits: ConnectionLimits, all_open: Callable[[], int]) -> type[Connection]:
    """The class of connections of one server, of which `all_open` are open at any time."""

    class Limited(Connection):
        pass

    Limited.limits, Limited.all_open = limits, staticmethod(all_open)
    return Limited


async def look_on(connections: Callable[[], Iterable[object]], limits: ConnectionLimits) -> None:
    """Closes slow ones until it is cancelled."""
    loop = asyncio.get_running_loop()
    pause = min(MOST, limits.header_seconds / LOOKS, limits.body_seconds / LOOKS)
    while True:
        await asyncio.sleep(pause)
        now = loop.time()
        for connection in list(connections()):
            if isinstance(connection, Connection):
                connection.look(now)
