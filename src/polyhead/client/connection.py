"""HTTP calls with the standard library: reused connections, time limits, and abortable calls."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager, suppress
from socket import SHUT_RDWR
from time import monotonic
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from polyhead.client.answers import error_of_response, retry_after
from polyhead.errors import BackendError, ConfigError

if TYPE_CHECKING:
    import ssl
    from http.client import HTTPConnection, HTTPResponse

JSON = "application/json"


class Call:
    """One call; `abort` ends it from any thread, and its own thread gets a BackendError."""

    def __init__(self) -> None:
        self.is_aborted = threading.Event()
        self._connection: HTTPConnection | None = None
        self._lock = threading.Lock()

    def over(self, connection: HTTPConnection | None) -> None:
        """Sets the connection of the call; None: no connection any more."""
        with self._lock:
            self._connection = connection
        if connection is not None and self.is_aborted.is_set():
            self.abort()

    def abort(self) -> None:
        """Aborts the call by closing its connection, so that the server drops work that has not begun."""
        self.is_aborted.set()
        with self._lock:  # so that the connection cannot belong to another call by now
            if self._connection is not None and self._connection.sock is not None:
                with suppress(OSError):  # already closed
                    self._connection.sock.shutdown(SHUT_RDWR)


class Connections:
    """Connections to one server, each used by one call at a time and then kept. Thread-safe."""

    def __init__(
        self, url: str, *, key: str | None, timeout: float, retries: int, context: ssl.SSLContext | None
    ) -> None:
        parts = urlsplit(url if "//" in url else f"http://{url}")
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ConfigError("this is no address of a server", got=url, allowed="http://HOST:PORT or https://HOST")
        if not timeout > 0 or retries < 0:
            raise ConfigError(
                "a client's limits are too small",
                got=f"timeout {timeout}, retries {retries}",
                allowed="a timeout over 0 seconds, retries from 0",
            )
        self.url, self._timeout, self._retries, self._context = url.rstrip("/"), timeout, retries, context
        self._host, self._port, self._is_safe = parts.hostname, parts.port, parts.scheme == "https"
        self._path = parts.path.rstrip("/")
        self._headers = {"User-Agent": "polyhead"}
        if key is not None:
            self._headers["Authorization"] = f"Bearer {key}"
        self._idle: list[HTTPConnection] = []
        self._lock = threading.Lock()

    def close(self) -> None:
        """Closes idle connections."""
        with self._lock:
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()

    def ask(self, method: str, path: str, body: bytes | None, call: Call) -> bytes:
        """The body of the answer; the request is repeated while the server is overloaded, within the time limit.

        Raises the server's error, or BackendError without an answer.
        """
        response, connection = self._answered(method, path, body, JSON, call)
        return self._read(response, connection, call)

    def lines(self, path: str, body: bytes, call: Call) -> Generator[bytes]:
        """The answer line by line as it arrives; the time limit applies to each line."""
        response, connection = self._answered("POST", path, body, "application/x-ndjson", call)
        with self._left_after(response, connection, call):
            while line := self._got(response.readline, call):
                yield line
            self._got(response.read, call)  # reads nothing, but tells http.client that the answer is over

    def _answered(
        self, method: str, path: str, body: bytes | None, accept: str, call: Call
    ) -> tuple[HTTPResponse, HTTPConnection]:
        """The beginning of an answer that is not an error."""
        end, tries, headers = monotonic() + self._timeout, 0, {**self._headers, "Accept": accept}
        if body is not None:
            headers["Content-Type"] = JSON

        def send(connection: HTTPConnection) -> None:
            connection.timeout = max(0.001, end - monotonic())
            if connection.sock is None:
                connection.connect()
            connection.sock.settimeout(connection.timeout)
            call.over(connection)
            connection.request(method, self._path + path, body=body, headers=headers)

        while True:
            response, connection = self._opened(send, call)
            if response.status < 400:
                return response, connection
            content = self._read(response, connection, call)
            response_headers = {name.lower(): value for name, value in response.getheaders()}
            wait, tries = retry_after(response_headers), tries + 1
            is_last = response.status != 429 or tries > self._retries or monotonic() + wait >= end
            if is_last or call.is_aborted.wait(wait):
                raise error_of_response(response.status, response_headers, content)

    def _read(self, response: HTTPResponse, connection: HTTPConnection, call: Call) -> bytes:
        with self._left_after(response, connection, call):
            return self._got(response.read, call)

    @contextmanager
    def _left_after(self, response: HTTPResponse, connection: HTTPConnection, call: Call) -> Iterator[None]:
        """Around reading all of an answer, after which its connection may be used again."""
        is_whole = False
        try:
            yield
            is_whole = True
        finally:
            self._leave(connection, call, reuse=is_whole and not response.will_close)

    def _opened(self, send: Callable[[HTTPConnection], None], call: Call) -> tuple[HTTPResponse, HTTPConnection]:
        """The beginning of an answer. A kept connection that the server has closed is replaced once."""
        while True:
            with self._lock:
                connection = self._idle.pop() if self._idle else None
            is_kept = connection is not None
            if connection is None:
                connection = self._new()
            try:
                send(connection)
                return connection.getresponse(), connection
            except Exception as error:
                self._leave(connection, call, reuse=False)
                if not (is_kept and isinstance(error, ConnectionError)) or call.is_aborted.is_set():
                    raise self._failed(error, call) from None

    def _got(self, read: Callable[[], bytes], call: Call) -> bytes:
        try:
            return read()
        except Exception as error:
            raise self._failed(error, call) from None

    def _new(self) -> HTTPConnection:
        # a third of a client's import time, so not before a call
        from http.client import HTTPConnection, HTTPSConnection

        if self._is_safe:
            return HTTPSConnection(self._host, self._port, context=self._context)
        return HTTPConnection(self._host, self._port)

    def _leave(self, connection: HTTPConnection, call: Call, *, reuse: bool) -> None:
        call.over(None)
        if reuse and not call.is_aborted.is_set():
            with self._lock:
                self._idle.append(connection)
        else:
            connection.close()

    def _failed(self, error: Exception, call: Call) -> Exception:
        """The error to raise for an error of the connection; any other error unchanged."""
        from http.client import HTTPException

        if call.is_aborted.is_set():
            return BackendError("the call was given up", do="ask again")
        if isinstance(error, TimeoutError):
            return BackendError(
                f"{self.url} gave no answer in {self._timeout:g} seconds", do="allow more time, or ask for less at once"
            )
        if isinstance(error, OSError | HTTPException):
            got = getattr(error, "strerror", None) or str(error) or type(error).__name__
            return BackendError(
                f"no server answers at {self.url}", got=got, do="start one with `polyhead serve`, or check the address"
            )
        return error
