"""How long any request, answered or refused, keeps a server's event loop from the others: every route's worst bodies.

    python -m benchmarks.silent_stalls

A server of its own process answers, with the event loop and the limits of `polyhead serve`. A callback is due in its
loop every millisecond; its longest delay while a request is under way is that request's. One that took over half of
what is allowed is sent again, and the least counts, since other processes of the machine only add to it. The tasks are
those of the tests, over their trunk of two layers: what is measured does not depend on the trunk.
"""

from __future__ import annotations

import argparse
import asyncio
import http.client
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter

import uvloop
from starlette.routing import Route

from benchmarks.stall_bodies import Sent, path_of, sent_to
from polyhead.engine.session import Session
from polyhead.plan import Pool
from polyhead.serve.app import application
from polyhead.serve.run import Listener, bound, serve
from polyhead.serve.service import Service
from polyhead.serve.settings import ServeSettings
from polyhead.testing import tiny_path, tiny_tasks, tiny_trunk
from polyhead.testing.strategies import tiny_bundle
from studies.results import Claim
from studies.settings import command, report, say

NAME, MOST, TICK = "silent_stalls", 50.0, 0.001  # milliseconds; seconds
SURE = 0.025  # seconds
SETTINGS = ServeSettings(admin=True, unknown="similarity", watch_seconds=0, timeout=500)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--serve", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve is not None:
        answer(options.serve)
        return
    with tempfile.TemporaryDirectory() as folder:
        root, trunk = Path(folder) / "bundle", tiny_trunk()
        tiny_bundle(root, trunk, {task.name: tiny_path(task, trunk, pool=Pool()) for task in tiny_tasks()})
        with running(root) as (port, server):
            rows = [
                row for method, path in routes(root) for row in measured(port, server, method, path, options.repeats)
            ]
    rows.sort(key=lambda row: -float(str(row["milliseconds"])))
    worst = rows[0]
    claim = Claim(
        id="silent.stalls",
        text="No request, answered or refused, keeps the event loop from the others for more than 50 milliseconds",
        target=MOST,
        value=float(str(worst["milliseconds"])),
        unit="ms",
        holds=float(str(worst["milliseconds"])) <= MOST,
        note=f"the longest: {worst['method']} {worst['route']}, {worst['body']}; {len(rows)} requests",
    )
    report(NAME, command=command(), rows=rows, claims=[claim], lacking=())


def routes(root: Path) -> list[tuple[str, str]]:
    """Methods and paths of the server's own table."""
    service = Service(Session(root, backend="reference"), SETTINGS)
    app = application(service)
    service.queue.close()
    listed = [route for route in app.routes if isinstance(route, Route)]
    assert len(listed) == len(app.routes)
    return [(method, route.path) for route in listed for method in sorted((route.methods or set()) - {"HEAD"})]


def measured(
    port: int, server: subprocess.Popen[str], method: str, path: str, repeats: int
) -> Iterator[dict[str, object]]:
    for sent in sent_to(method, path):
        stalls, status = list[float](), 0
        while len(stalls) < repeats and min(stalls, default=1.0) > SURE:
            longest(server)
            status = status_of(port, method, path, sent)
            stalls.append(longest(server))
        row = {
            "method": method,
            "route": path,
            "body": sent.name,
            "bytes": len(sent.content),
            "status": status,
            "milliseconds": round(1000 * min(stalls), 1),
            "each": [round(1000 * stall, 1) for stall in stalls],
        }
        say(f"{row['milliseconds']:>7} ms  {status}  {method} {path}: {sent.name}")
        yield row


def longest(server: subprocess.Popen[str]) -> float:
    """The longest delay since this was last asked, in seconds."""
    assert server.stdin is not None and server.stdout is not None
    server.stdin.write("\n")
    server.stdin.flush()
    return float(server.stdout.readline())


def status_of(port: int, method: str, path: str, sent: Sent) -> int:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=600)
    try:
        connection.request(method, sent.path or path_of(path), sent.content, dict(sent.headers))
        answer = connection.getresponse()
        answer.read()
        return answer.status
    except ConnectionError:  # it was refused before all of it was read
        return 413
    finally:
        connection.close()


@contextmanager
def running(root: Path) -> Iterator[tuple[int, subprocess.Popen[str]]]:
    """A server in a process of its own, and its port."""
    arguments = [sys.executable, "-m", "benchmarks.silent_stalls", "--serve", str(root)]
    server = subprocess.Popen(arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert server.stdin is not None and server.stdout is not None
    try:
        yield int(server.stdout.readline()), server
    finally:
        server.stdin.close()
        server.wait(60)


def answer(root: Path) -> None:
    """Serves; prints the port, and for each line that comes the longest delay since the line before."""
    own, delays = bound("127.0.0.1", 0), [0.0]

    async def watch() -> None:
        while True:
            began = perf_counter()
            await asyncio.sleep(TICK)
            delays[0] = max(delays[0], perf_counter() - began - TICK)

    async def run() -> None:
        loop, until = asyncio.get_running_loop(), asyncio.Event()

        def listen() -> None:
            for _ in sys.stdin:
                print(delays[0], flush=True)
                delays[0] = 0.0
            loop.call_soon_threadsafe(until.set)

        def ready() -> None:
            print(own.getsockname()[1], flush=True)
            threading.Thread(target=listen, daemon=True).start()

        watching = asyncio.create_task(watch())
        service = Service(Session(root, backend="reference"), SETTINGS)
        await serve([Listener(app=application(service), socket=own)], drain_seconds=5, ready=ready, until=until)
        watching.cancel()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(run())


if __name__ == "__main__":
    main()
