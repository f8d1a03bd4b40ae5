"""The access log: one JSON line a request, written by a thread of its own; neither texts nor keys stand in it."""

from __future__ import annotations

import logging
import threading
from collections import deque
from datetime import UTC, datetime
from typing import BinaryIO

import msgspec

from polyhead.serve.exchange import Exchange
from polyhead.values import Value

log = logging.getLogger(__name__)
WAITING = 100_000  # lines that may wait to be written; beyond, lines are dropped and counted
PAUSE = 0.2  # seconds between two looks at what waits


class Line(Value, omit_defaults=True):
    """A request that was answered."""

    time: str  # when it began, in UTC
    route: str  # as the server has it, "/v1/tasks/{name}"; "unmatched" for any other path
    method: str
    status: int
    milliseconds: float
    inputs: int = 0
    tokens: int = 0  # of all inputs, special tokens included
    passes: int = 0  # of the encoder
    cut: int = 0  # tokens that were not read
    cached: int = 0  # inputs that were answered from the cache
    waited: float | None = None  # milliseconds until the encoder began
    key: str = ""  # the name of the caller's key
    trace: str = ""  # the id of its trace
    dropped: int = 0  # lines before this one that could not be written in time


class AccessLog:
    """Writes a line for every request to an open binary file; `close` writes what waits."""

    def __init__(self, file: BinaryIO) -> None:
        self._file, self._waiting, self._dropped = file, deque[Line](), 0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._work, name="polyhead-access-log", daemon=True)
        self._thread.start()

    def exchange(self, exchange: Exchange) -> None:
        """Notes a request that was answered."""
        if len(self._waiting) >= WAITING:
            self._dropped += 1
            return
        dropped, self._dropped = self._dropped, 0
        line = Line(
            time=datetime.fromtimestamp(exchange.time, UTC).isoformat(timespec="milliseconds"),
            route=exchange.route,
            method=exchange.method,
            status=exchange.status,
            milliseconds=round(exchange.seconds * 1000, 3),
            inputs=exchange.inputs,
            tokens=exchange.tokens,
            passes=exchange.passes,
            cut=exchange.cut,
            cached=exchange.cached,
            waited=round(exchange.waited * 1000, 3) or None,
            key=exchange.key,
            trace=exchange.trace,
            dropped=dropped,
        )
        self._waiting.append(line)

    def close(self) -> None:
        """Writes what waits, and ends; the file stays open."""
        self._ended.set()
        self._thread.join()

    def _work(self) -> None:
        encoder = msgspec.json.Encoder()
        while True:
            is_last = self._ended.wait(PAUSE)
            lines = [self._waiting.popleft() for _ in range(len(self._waiting))]
            try:
                if lines:
                    self._file.write(b"".join(encoder.encode(line) + b"\n" for line in lines))
                    self._file.flush()
            except (OSError, ValueError) as error:  # a full disk, a closed pipe: requests go on
                log.warning("%d lines of the access log could not be written: %s", len(lines), error)
            if is_last:
                return
