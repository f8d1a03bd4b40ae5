"""A server ends within its drain time, whatever still runs in it: threads, the event loop, a change."""

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import uvicorn

from polyhead.serve import run

SOURCE = Path(__file__).parents[2] / "src"
LONGEST = 60  # seconds: what hangs does so for ever

# A server of one small application, which works as the word says once it is asked, and never ends by itself.
SERVER = """
import asyncio, logging, sys, threading
logging.basicConfig()
logging.getLogger("polyhead.serve").setLevel(logging.INFO)
from functools import partial
from polyhead.serve.run import Listener, bound, end_in_time, serve

def hang(*_):
    event = threading.Event()
    while True:
        event.wait(1)

def spin(*_):
    while True:
        pass

async def answer(scope, receive, send):
    if scope["type"] == "lifespan":
        while True:
            message = await receive()
            if message["type"] == "lifespan.startup":
                await send({"type": "lifespan.startup.complete"})
            else:
                if WORK == "shutdown":
                    await asyncio.Event().wait()
                await send({"type": "lifespan.shutdown.complete"})
                return
    print("asked", flush=True)
    if WORK == "busy thread":
        await asyncio.to_thread(spin)
    if WORK == "own thread":
        threading.Thread(target=hang).start()
    if WORK == "event loop":
        spin()
    if WORK == "request":
        await asyncio.Event().wait()
    if WORK == "nothing":
        await asyncio.sleep(0.3)
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
    await send({"type": "http.response.body", "body": b"ok"})

WORK, listening = sys.argv[1], bound("127.0.0.1", 0)
# Time enough for an answer on a busy machine; little where nothing ever ends.
SECONDS = 120.0 if WORK == "nothing" else 1.0
end = partial(end_in_time, SECONDS)
ready = lambda: print(listening.getsockname()[1], flush=True)
asyncio.run(serve([Listener(app=answer, socket=listening)], drain_seconds=SECONDS, ready=ready, stopping=end))
"""


@contextlib.contextmanager
def serving(work, **options):
    """The process, and a connection on which it was asked to work."""
    words = [sys.executable, "-c", SERVER, work]
    environment = {**os.environ, "PYTHONPATH": str(SOURCE)}
    options.setdefault(
        "preexec_fn", lambda: signal.signal(signal.SIGHUP, signal.SIG_DFL)
    )  # `nohup make test` ignores it
    own = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment, **options)
    try:
        port = int(own.stdout.readline())
        with socket.create_connection(("127.0.0.1", port), LONGEST) as caller:
            caller.sendall(b"GET / HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n")
            assert own.stdout.readline() == "asked\n"
            yield own, caller
    finally:
        own.kill()
        own.communicate()


@pytest.mark.slow
def test_what_never_ends_does_not_hold_the_end():
    """Five servers at once: without an end that waits for nobody, each would wait for ever.

    Where a busy machine gives the first clock no turn, the second one ends the process, with 1.
    """
    works = ("busy thread", "own thread", "event loop", "request", "shutdown")
    with contextlib.ExitStack() as stack:
        servers = {work: stack.enter_context(serving(work))[0] for work in works}
        for own in servers.values():
            own.send_signal(signal.SIGTERM)
        assert {own.wait(LONGEST) for own in servers.values()} <= {0, 1}


@pytest.mark.parametrize(
    "number",
    [
        signal.SIGTERM,
        pytest.param(signal.SIGINT, marks=pytest.mark.slow),
        pytest.param(signal.SIGHUP, marks=pytest.mark.slow),
    ],
)
def test_each_signal_waits_for_the_answer_that_is_under_way(number):
    with serving("nothing") as (own, caller):
        own.send_signal(number)
        content = b"".join(iter(lambda: caller.recv(1000), b""))
        assert content.startswith(b"HTTP/1.1 200") and content.endswith(b"ok")
        assert own.wait(LONGEST) == 0
        told, ended = own.stderr.read().splitlines()
        assert f"told to stop by {number.name} with 1 connection open" in told and ended.endswith("stopped")


@pytest.mark.slow
def test_a_hang_up_that_its_parent_ignores_stops_nothing():
    """As `nohup` starts it: the server goes on, until another signal comes."""

    def ignored():
        signal.signal(signal.SIGHUP, signal.SIG_IGN)

    with serving("nothing", preexec_fn=ignored) as (own, caller):
        own.send_signal(signal.SIGHUP)
        assert b"ok" in b"".join(iter(lambda: caller.recv(1000), b""))
        assert own.poll() is None
        own.send_signal(signal.SIGTERM)
        assert own.wait(LONGEST) == 0


def test_signals_are_handled_as_before_when_the_server_has_ended():
    before, hangup = signal.getsignal(signal.SIGTERM), signal.signal(signal.SIGHUP, signal.SIG_DFL)  # nohup ignores it
    handled = run._handled(lambda *_: None)
    try:
        assert signal.getsignal(signal.SIGTERM) is not before and handled[signal.SIGTERM] is before
        assert set(handled) == {signal.SIGTERM, signal.SIGINT, signal.SIGHUP}
    finally:
        for number, handler in [*handled.items(), (signal.SIGHUP, hangup)]:
            signal.signal(number, handler)


def test_a_server_that_is_stopped_while_it_starts_never_says_that_it_answers():
    """It said so of sockets that were closed already, which failed with "Bad file descriptor" and a traceback."""
    events, until = [], asyncio.Event()

    async def application(scope, receive, send):
        for part in ("startup", "shutdown"):
            await receive()
            until.set()
            await asyncio.sleep(0.01)  # as a task that waits for `until` has its turn
            events.append(part)
            await send({"type": f"lifespan.{part}.complete"})

    with run.bound("127.0.0.1", 0) as first, run.bound("127.0.0.1", 0) as second:
        listeners = [run.Listener(app=application, socket=each) for each in (first, second)]
        serving = run.serve(listeners, drain_seconds=LONGEST, ready=lambda: events.append("ready"), until=until)
        asyncio.run(serving)
    assert events == ["startup", "shutdown"]


def test_the_application_is_stopped_when_all_ports_have_ended(monkeypatch):
    """A body on the second port is complete only once the first one has nothing to wait for."""
    events, asked, first_ended, wait = [], asyncio.Event(), asyncio.Event(), uvicorn.Server._wait_tasks_to_complete

    async def waits(server):
        await wait(server)
        first_ended.set()

    async def answer(scope, receive, send):
        if scope["type"] == "lifespan":
            for part in ("startup", "shutdown"):
                await receive()
                events.append(part)
                await send({"type": f"lifespan.{part}.complete"})
            return
        asked.set()
        while (await receive())["more_body"]:
            pass
        events.append("answer")
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
        await send({"type": "http.response.body", "body": b"ok"})

    async def scenario(listening):
        ready, until = asyncio.Event(), asyncio.Event()
        listeners = [run.Listener(app=answer, socket=each) for each in listening]
        serving = asyncio.create_task(run.serve(listeners, drain_seconds=LONGEST, ready=ready.set, until=until))
        await ready.wait()
        reader, writer = await asyncio.open_connection(*listening[1].getsockname())
        writer.write(b"POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 1\r\n\r\n")
        await asked.wait()
        until.set()
        await first_ended.wait()
        writer.write(b"x")
        assert (await reader.read()).endswith(b"ok")
        writer.close()
        await writer.wait_closed()
        await serving

    monkeypatch.setattr(uvicorn.Server, "_wait_tasks_to_complete", waits)
    with run.bound("127.0.0.1", 0) as first, run.bound("127.0.0.1", 0) as second:
        asyncio.run(scenario([first, second]))
    assert events == ["startup", "answer", "shutdown"]
