"""What the server's guard, keys, counts, log, traces and cache add to a request, in microseconds of its one event loop.

    python -m benchmarks.server_overhead

Each is measured around an application that answers at once, or for a call of one text and 21 tasks that was answered;
processor time of the thread, medians over the repeats. A server that answers 1,000 requests a second has 1,000
microseconds for each. The tasks are those of the tests, over their trunk of two layers: what is measured does not
depend on the trunk.
"""

from __future__ import annotations

import argparse
import asyncio
import io
import statistics
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from time import thread_time
from typing import Any

import msgspec
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from polyhead.bundle.create import write_bundle
from polyhead.engine.session import Session
from polyhead.engine.tickets import Ticket
from polyhead.plan import Pool
from polyhead.serve.exchange import AccessLog, Exchange, Tracing
from polyhead.serve.exposition import exposition_text, families_of
from polyhead.serve.formats import FORMATS
from polyhead.serve.guard import Guard, Paths
from polyhead.serve.keys import AccessKeys, keys_in
from polyhead.serve.metrics import Metrics
from polyhead.serve.service import Service
from polyhead.serve.settings import ServeSettings
from polyhead.testing import tiny_path, tiny_tasks, tiny_trunk
from polyhead.testing.strategies import add_tiny
from studies.results import Claim
from studies.settings import command, report, say

NAME, TASKS, KEYS, AIM = "server_overhead", 21, 10, 50.0
Row = dict[str, object]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--calls", type=int, default=2000, help="in one repeat")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        rows = asyncio.run(measured(Path(folder) / "bundle", options.repeats, options.calls))
    for row in rows:
        say(f"{row['what']}: {row['microseconds']} us")
    by_name = {str(row["id"]): row for row in rows}
    added = sum(float(str(by_name[name]["microseconds"])) for name in ("guard", "keys", "counts", "call", "log"))
    claim = Claim(
        id="server.overhead_us",
        text="Guard, keys, counts and access log add at most 50 microseconds to a request of one text and 21 tasks",
        target=AIM,
        value=round(added, 1),
        unit="us",
        holds=added <= AIM,
    )
    report(NAME, command=command(), rows=rows, claims=[claim], lacking=())


async def measured(root: Path, repeats: int, calls: int) -> list[Row]:
    trunk = tiny_trunk()
    write_bundle(root, trunk)
    task = next(task for task in tiny_tasks() if task.name == "mood")
    for number in range(TASKS):
        named = msgspec.structs.replace(task, name=f"task{number}")
        add_tiny(root, trunk, named, tiny_path(named, trunk, pool=Pool()), seed=number)
    session = Session(root, backend="reference")
    service = Service(session, ServeSettings(cache_bytes=2**24))
    await service.start()
    try:
        return [row async for row in _rows(service, repeats, calls)]
    finally:
        await service.stop()


async def _rows(service: Service, repeats: int, calls: int) -> AsyncIterator[Row]:
    names = tuple(service.tasks)
    ticket = await service.ask([("good lamp",)], names)

    async def timed(call: Callable[[], Awaitable[object]]) -> float:
        times = []
        for _ in range(repeats):
            began = thread_time()
            for _ in range(calls):
                await call()
            times.append((thread_time() - began) / calls * 1e6)
        return statistics.median(times)

    def row(name: str, what: str, microseconds: float) -> Row:
        return {"id": name, "what": what, "microseconds": round(microseconds, 1), "tasks": TASKS}

    bare = await timed(lambda: _asked(_answer))
    yield row("bare", "an application that answers at once", bare)
    file = AccessLog(io.BytesIO())
    keys = AccessKeys(keys_in("\n".join(f"key-number-{number}" for number in range(KEYS)), source="keys"))
    paths = Paths([(each, each.routes(service)) for each in FORMATS.values()])
    guard = await timed(_guarded(paths))
    yield row("guard", "guard: path, body limit, error answers", guard - bare)
    for name, what, more in (
        ("keys", f"a key, of {KEYS}", {"keys": keys}),
        ("counts", "counts of the request", {"observers": [service.metrics.exchange]}),
        ("log", "a line of the access log", {"observers": [file.exchange]}),
        ("traces", "traces without an SDK", {"observers": [Tracing().exchange]}),
    ):
        yield row(name, what, await timed(_guarded(paths, **more)) - guard)
    file.close()
    empty = await timed(_nothing)
    yield row("call", "counts of a call and its tasks", await timed(_counted(ticket)) - empty)
    hit = await timed(lambda: service.ask([("good lamp",)], names))
    assert service.cache is not None and service.cache.hits >= calls
    yield row("hit", "a whole call that the cache answers", hit)
    yield row("collect", "/metrics, in the event loop", await timed(_collected(service)))
    families = families_of(service)
    began = thread_time()
    for _ in range(20):
        exposition_text(families, "")
    yield row("write", "/metrics, in a thread beside it", (thread_time() - began) / 20 * 1e6)


def _guarded(paths: Paths, **more: Any) -> Callable[[], Awaitable[object]]:
    guard = Guard(_answer, paths=paths, body_bytes=2**23, **more)
    return lambda: _asked(guard)


def _counted(ticket: Ticket) -> Callable[[], Awaitable[object]]:
    metrics, exchange = Metrics(batch_tokens=2048), Exchange({"method": "POST"})

    async def call() -> None:
        metrics.ticket(ticket)
        exchange.add(ticket)
        exchange.timings.clear()

    return call


def _collected(service: Service) -> Callable[[], Awaitable[object]]:
    async def call() -> None:
        families_of(service)

    return call


async def _nothing() -> None:
    return None


BODY = {"type": "http.request", "body": b'{"inputs": "good lamp"}', "more_body": False}
HEADERS = [(b"host", b"x"), (b"content-type", b"application/json"), (b"authorization", b"Bearer key-number-9")]


async def _answer(scope: Scope, receive: Receive, send: Send) -> None:
    await receive()
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"{}"})


async def _asked(app: ASGIApp) -> None:
    async def receive() -> Message:
        return BODY

    async def send(message: Message) -> None:
        return None

    await app({"type": "http", "method": "POST", "path": "/v1/predict", "headers": HEADERS}, receive, send)


if __name__ == "__main__":
    main()
