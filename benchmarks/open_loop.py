"""A load generator that avoids coordinated omission: requests begin at moments drawn beforehand, answered or not.

    python -m benchmarks.open_loop HOST PORT PATH BODIES --rate 500 --seconds 10

BODIES is a file of request bodies, one a line. Moments are those of a Poisson process. A latency counts from the moment
at which its request was to be sent, so that what waits behind a pause has waited too. `--callers N` asks as fast as N
callers can in place of `--rate`: for the rate at saturation, whose latencies mean nothing. Prints one JSON object.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from pathlib import Path
from time import perf_counter, process_time
from typing import Any

import uvloop

MOST = 2048  # connections at once
PATIENCE = 1.0  # seconds that a request waits for one of them; then it is not sent
GRACE = 30.0  # seconds that answers may take after the last request


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("host")
    parser.add_argument("port", type=int)
    parser.add_argument("path")
    parser.add_argument("bodies", type=Path)
    parser.add_argument("--rate", type=float, help="requests a second")
    parser.add_argument("--callers", type=int, help="in place of a rate")
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    bodies = options.bodies.read_bytes().splitlines()
    requests = [encoded(options.host, options.path, body) for body in bodies]
    if (options.rate is None) == (options.callers is None):
        parser.error("give either --rate or --callers")
    moments = None if options.rate is None else list(poisson(options.rate, options.seconds, seed=options.seed))
    load = Load(options.host, options.port, requests)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        if moments is None:
            runner.run(load.closed(options.callers, options.seconds))
        else:
            runner.run(load.open(moments))
    print(json.dumps(load.outcome()))


def encoded(host: str, path: str, body: bytes) -> bytes:
    """One request as it is sent."""
    head = f"POST {path} HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\nContent-Length: {len(body)}"
    return head.encode() + b"\r\n\r\n" + body


def poisson(rate: float, seconds: float, *, seed: int) -> Iterator[float]:
    """Moments of so many requests a second on average."""
    drawn, moment = random.Random(seed), 0.0
    while (moment := moment + drawn.expovariate(rate)) < seconds:
        yield moment


def quantiles(seconds: Sequence[float]) -> dict[str, float | None]:
    """Quantiles of these durations, in milliseconds; None where there are no durations."""
    ordered = sorted(seconds)
    return {
        f"p{name}": 1000 * ordered[min(len(ordered) - 1, int(len(ordered) * share))] if ordered else None
        for name, share in (("50", 0.5), ("90", 0.9), ("99", 0.99), ("99_9", 0.999), ("100", 1.0))
    }


class Load:
    """Requests to one server, and how long each took."""

    def __init__(self, host: str, port: int, requests: Sequence[bytes]) -> None:
        self._address, self._requests = (host, port), requests
        self.latencies: list[float] = []  # seconds, of requests that were answered with 200
        self.from_sending: list[float] = []  # of the same, from when this process came to send them
        self.statuses: Counter[int] = Counter()  # 0: no answer
        self.unsent = 0  # requests for which all connections were taken
        self._idle: deque[Connection] = deque()
        self._free = asyncio.Semaphore(MOST)
        self._opened = self._waiting = 0
        self.seconds = self.processor = 0.0  # that a run took, and that this process computed
        self._ended: asyncio.Event | None = None

    async def open(self, moments: Sequence[float]) -> None:
        """Sends a request at each of these moments, seconds from now."""
        loop, self._ended = asyncio.get_running_loop(), asyncio.Event()
        began, computed = perf_counter(), process_time()
        for number, moment in enumerate(moments):
            ahead = began + moment - perf_counter()
            if ahead > 0:
                await asyncio.sleep(ahead)
            elif number % 16 == 0:  # late already: answers that are there are read nevertheless
                await asyncio.sleep(0)
            self._waiting += 1
            loop.create_task(self._send(self._requests[number % len(self._requests)], began + moment))
        try:
            async with asyncio.timeout(GRACE):
                while self._waiting:
                    await asyncio.sleep(0.01)
        except TimeoutError:
            self.statuses[0] += self._waiting
        self.seconds, self.processor = perf_counter() - began, process_time() - computed

    async def closed(self, callers: int, seconds: float) -> None:
        """So many callers, each of which sends its next request when it has its answer."""
        began, computed = perf_counter(), process_time()

        async def call(number: int) -> None:
            while perf_counter() - began < seconds:
                self._waiting += 1
                await self._send(self._requests[number % len(self._requests)], perf_counter())
                number += callers

        await asyncio.gather(*(call(number) for number in range(callers)))
        self.seconds, self.processor = perf_counter() - began, process_time() - computed

    def outcome(self) -> dict[str, object]:
        """What was measured."""
        answered = len(self.latencies)
        return {
            "sent": sum(self.statuses.values()),
            "answered": answered,
            "a_second": answered / self.seconds if self.seconds else 0.0,
            "seconds": self.seconds,
            "processor": self.processor,
            "milliseconds": quantiles(self.latencies),
            "milliseconds_from_sending": quantiles(self.from_sending),
            "statuses": {str(status): count for status, count in sorted(self.statuses.items())},
            "unsent": self.unsent,
            "connections": self._opened,
        }

    async def _send(self, request: bytes, moment: float) -> None:
        try:
            async with asyncio.timeout(PATIENCE):
                await self._free.acquire()
        except TimeoutError:
            self._waiting -= 1
            self.unsent += 1
            return
        try:
            connection = self._idle_one() or await self._connected()
            sent = perf_counter()
            status = await connection.ask(request)
        except (OSError, ConnectionError):
            status, connection = 0, None
        self._free.release()
        taken = perf_counter() - moment
        self._waiting -= 1
        self.statuses[status] += 1
        if status == 200:
            self.latencies.append(taken)
            self.from_sending.append(perf_counter() - sent)
        if connection is not None and connection.is_open:
            self._idle.append(connection)

    def _idle_one(self) -> Connection | None:
        while self._idle:
            connection = self._idle.pop()
            if connection.is_open:
                return connection
        return None

    async def _connected(self) -> Connection:
        self._opened += 1
        _, connection = await asyncio.get_running_loop().create_connection(Connection, *self._address)
        return connection


class Connection(asyncio.Protocol):
    """One connection that is kept; one request at a time."""

    def __init__(self) -> None:
        self.is_open = False
        self._read = b""
        self._answer: asyncio.Future[int] | None = None

    def connection_made(self, transport: Any) -> None:
        """As `asyncio` calls it."""
        self._transport, self.is_open = transport, True

    def connection_lost(self, error: Exception | None) -> None:
        """As `asyncio` calls it."""
        self.is_open = False
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(ConnectionError("the server hung up"))

    def data_received(self, data: bytes) -> None:
        """As `asyncio` calls it: an answer is whole when it has as many bytes as its head says."""
        self._read += data
        head, split, body = self._read.partition(b"\r\n\r\n")
        if not split:
            return
        lengths = [line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")]
        if len(body) < int(lengths[0].partition(b":")[2]):
            return
        self._read = b""
        if b"connection: close" in head.lower():
            self.is_open = False
            self._transport.close()
        if self._answer is not None and not self._answer.done():
            self._answer.set_result(int(head[9:12]))

    async def ask(self, request: bytes) -> int:
        """The status of the answer."""
        self._answer = asyncio.get_running_loop().create_future()
        self._transport.write(request)
        return await self._answer


if __name__ == "__main__":
    main()
