"""Connections: accepted many at once, with limits of time and size; slow clients are disconnected."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable, Iterable
from typing import Literal

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from polyhead.serve.exchange import ARRIVED
from polyhead.serve.http import HttpError, error_response
from polyhead.serve.settings import ConnectionLimits

LOOKS = 4  # at the clock, for each of the times that are allowed
MOST = 1.0  # seconds between two
RATE = 65_536  # bytes of a body that buy a second more
SURPLUS = 4  # times as many connections as are allowed may be open to be refused
Bytes = bytes | bytearray | memoryview
LINGER = 1.0  # seconds that a refused caller may take to send its request, and then to read the answer


class JoinedWrites(asyncio.Transport):
    """Where one answer is written: its head together with the start of its body, in one call of the system.

    A head that waits for its body is written in the next turn of the loop.
    """

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__()
        self._transport, self._loop = transport, loop
        self._head: Bytes = b""
        self._has_begun = False

    def write(self, data: Bytes) -> None:
        """Holds the head, and writes it with what comes next."""
        if self._has_begun:
            self._write_with_head(data)
        else:
            self._head, self._has_begun = data, True
            self._loop.call_soon(self._write_with_head, b"")

    def close(self) -> None:
        """Writes the head if it is held, and closes the connection."""
        self._write_with_head(b"")
        self._transport.close()

    def is_closing(self) -> bool:
        """True if the connection is closed or closing."""
        return self._transport.is_closing()

    def _write_with_head(self, data: Bytes) -> None:
        parts, self._head = [part for part in (self._head, data) if part], b""
        if parts and not self._transport.is_closing():
            self._transport.writelines(parts)


class Connection(HttpToolsProtocol):
    """A caller's connection. `limits` are those of the server's class.

    A refused caller gets an answer; further data is discarded until it closes or `LINGER` is over, since closing with
    unread bytes would make the caller's kernel drop the answer. A connection beyond the limit ("surplus") is refused
    when its request arrives; at most `SURPLUS` times the limit may be open, and further ones are closed at once.
    """

    limits: ConnectionLimits
    all_open: Callable[[], int]
    refused: Callable[[int], None]
    surplus: int = 0  # of the server's class: how many are open that are refused for their number

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Accepts the connection, or marks it as surplus."""
        super().connection_made(transport)
        self._awaits: Literal["header", "body", "nothing"] = "header"
        self._since, self._unread_since = self.loop.time(), float("inf")
        self._header_bytes = self._begun = self._arrived = 0
        self._has_body = False  # whether the data that came last held any of a body
        protocol, self._is_refused, self._are_too_large = type(self), False, False
        self._is_surplus = protocol.all_open() - protocol.surplus > self.limits.open
        if self._is_surplus:
            protocol.surplus += 1
            if protocol.surplus > SURPLUS * self.limits.open:
                protocol.refused(0)
                self.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """Called when either side has closed it."""
        super().connection_lost(exc)
        if self._is_surplus:
            type(self).surplus -= 1

    def data_received(self, data: bytes) -> None:
        """Reads more; refuses headers and trailers that are too large, and any request on a surplus connection."""
        if self._is_refused:
            return
        if self._is_surplus:
            self._refuse_surplus()
            return
        before, begun = self._awaits, self._begun
        is_idle = before == "nothing" or not begun
        self._arrived, self._has_body = len(data), False
        super().data_received(data)
        if self._begun - begun > is_idle:  # a request began behind another: its part of the data is not told apart
            return
        if self._awaits == "header":
            self._header_bytes += len(data)
        elif before == self._awaits == "body":
            self._header_bytes = 0 if self._has_body else self._header_bytes + len(data)  # trailers, or extensions
            if not self.cycle.response_complete:  # else nobody wants the rest
                self._since = min(self._since + len(data) / RATE, self.loop.time())
        if self._header_bytes > self.limits.header_bytes:
            self._refuse_headers()

    def on_message_begin(self) -> None:
        """Called when a request begins, on a new connection or after another request."""
        super().on_message_begin()
        self._awaits, self._since, self._header_bytes = "header", self.loop.time(), 0
        self._begun += 1

    def on_headers_complete(self) -> None:
        """Called when its headers are complete; raises ValueError, which becomes a refusal, if they are too large."""
        most = self.limits.header_bytes
        if self._header_bytes + self._arrived > most and self._size_of_headers() > most:
            self._are_too_large = True
            raise ValueError("the headers are too large")
        super().on_headers_complete()
        if self.scope["method"] != "HEAD":  # whose answer is a head alone
            self.cycle.transport = JoinedWrites(self.transport, self.loop)
        self._awaits, self._since, self._header_bytes = "body", self.loop.time(), 0

    def on_body(self, body: bytes) -> None:
        """Called with each part of a body."""
        super().on_body(body)
        self._has_body = True

    def on_message_complete(self) -> None:
        """Called when the request is complete; uvloop's time is the start of this turn of its loop."""
        self.scope[ARRIVED] = self.loop.time()  # type: ignore[literal-required]
        super().on_message_complete()
        self._awaits = "nothing"

    def send_400_response(self, msg: str) -> None:
        """Refuses a request that the parser rejected: headers that are too large, or invalid HTTP."""
        if self._are_too_large:
            self._refuse_headers()
        else:
            super().send_400_response(msg)

    def pause_writing(self) -> None:
        """Called when the caller reads more slowly than answers are written."""
        super().pause_writing()
        self._unread_since = self.loop.time()

    def resume_writing(self) -> None:
        """Called when the caller has read enough again."""
        super().resume_writing()
        self._unread_since = float("inf")

    def look(self, now: float) -> None:
        """Closes the connection if its caller takes too long."""
        if self._is_refused or self._is_surplus:
            if now - self._since > LINGER:
                if self._is_refused:
                    self.transport.abort()
                else:
                    self._refuse_surplus()
            return
        if self.flow.read_paused:  # it is the server that is slow
            self._since = now
        allowed = {"header": self.limits.header_seconds, "body": self.limits.body_seconds}.get(self._awaits)
        if now - self._unread_since > self.limits.body_seconds:
            type(self).refused(0)
            self.transport.abort()
        elif allowed is not None and now - self._since > allowed:
            self._refuse(HttpError(408, "the request took too long to come"))

    def _refuse(self, error: HttpError) -> None:
        """Answers without a route and closes; only closes if another answer is being written."""
        if self._is_refused or self.transport.is_closing():
            return
        type(self).refused(error.status)
        if self.pipeline or self._is_answering():
            self.transport.abort()
            return
        answer = error_response(error)
        headers = [*answer.raw_headers, (b"connection", b"close")]
        if error.status == 429:
            headers.append((b"retry-after", b"1"))
        lines = [f"HTTP/1.1 {error.status} Refused".encode(), *(name + b": " + value for name, value in headers)]
        self.transport.write(b"\r\n".join([*lines, b"", bytes(answer.body)]))
        self.transport.write_eof()
        self._is_refused, self._since = True, self.loop.time()

    def _refuse_headers(self) -> None:
        self._refuse(HttpError(431, "the headers are too large", allowed=f"{self.limits.header_bytes:,} bytes"))

    def _refuse_surplus(self) -> None:
        self._refuse(HttpError(429, "too many connections are open", allowed=f"{self.limits.open:,}"))

    def _size_of_headers(self) -> int:
        """Bytes of the address and of all headers, with their separators."""
        lines = (len(name) + len(value) + len(b": \r\n") for name, value in self.headers)
        return len(self.url) + sum(lines)

    def _is_answering(self) -> bool:
        """Whether an answer is being written, to an earlier request or to this one."""
        cycle: RequestResponseCycle | None = self.cycle
        if cycle is None:
            return False
        return not cycle.response_complete if self._awaits == "header" else cycle.response_started


def connections_of(
    limits: ConnectionLimits, all_open: Callable[[], int], refused: Callable[[int], None]
) -> type[Connection]:
    """The connection class of one server; `all_open` returns the number of open connections.

    `refused` receives the status of each closed connection, 0 if it was closed without an answer.
    """

    class Limited(Connection):
        pass

    Limited.limits, Limited.all_open, Limited.refused = limits, staticmethod(all_open), staticmethod(refused)
    return Limited


async def look_on(connections: Callable[[], Iterable[object]], limits: ConnectionLimits) -> None:
    """Closes slow connections until it is cancelled."""
    loop = asyncio.get_running_loop()
    pause = min(MOST, limits.header_seconds / LOOKS, limits.body_seconds / LOOKS)
    while True:
        await asyncio.sleep(pause)
        now = loop.time()
        for connection in list(connections()):
            if isinstance(connection, Connection):
                connection.look(now)


AT_ONCE = 128  # connections accepted in one turn of the loop at most
PAUSE = 0.5  # seconds until the next try where the system refuses, such as without a free file descriptor
log = logging.getLogger(__name__)


class Acceptor:
    """Accepts a listening socket's connections, as the server of `loop.create_server` does.

    libuv accepts one in each turn of its loop. Turns of an overloaded server are long, so callers would wait for many
    seconds.
    """

    def __init__(self, listening: socket.socket, protocol: Callable[[], asyncio.Protocol]) -> None:
        """Begins at once. Raises NotImplementedError if the event loop has no `add_reader` (on Windows)."""
        self._loop, self._listening, self._protocol = asyncio.get_running_loop(), listening, protocol
        self._connecting = set[asyncio.Task[None]]()
        self._pause: asyncio.TimerHandle | None = None
        listening.setblocking(False)
        self._go_on()

    def close(self) -> None:
        """Stops accepting. The socket stays open."""
        if self._pause is not None:
            self._pause.cancel()
        self._loop.remove_reader(self._listening.fileno())

    async def wait_closed(self) -> None:
        """Waits until each accepted connection has its protocol."""
        await asyncio.gather(*self._connecting, return_exceptions=True)

    def _go_on(self) -> None:
        self._pause = None
        self._loop.add_reader(self._listening.fileno(), self._accept)

    def _accept(self) -> None:
        for _ in range(AT_ONCE):
            try:
                connection, _ = self._listening.accept()
            except (BlockingIOError, InterruptedError):
                return
            except ConnectionError:  # the caller is gone already
                continue
            except OSError as error:
                log.warning("connections wait: %s", error)
                self._loop.remove_reader(self._listening.fileno())
                self._pause = self._loop.call_later(PAUSE, self._go_on)
                return
            task = self._loop.create_task(self._connected(connection))
            self._connecting.add(task)
            task.add_done_callback(self._connecting.discard)

    async def _connected(self, connection: socket.socket) -> None:
        try:
            connection.setblocking(False)
            await self._loop.connect_accepted_socket(self._protocol, connection)
        except OSError:  # gone meanwhile
            connection.close()
