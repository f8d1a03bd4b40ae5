"""A tiny bundle, a service over it, and a server of it on loopback in a thread, for tests of the server's operation."""

import asyncio
import json
import socket
import threading
from contextlib import contextmanager, suppress

from polyhead.engine.session import Session
from polyhead.engine.tickets import SharedBatch
from polyhead.plan import Pool
from polyhead.project.strategies import Pooled
from polyhead.serve.app import application
from polyhead.serve.run import Listener, bound, serve
from polyhead.serve.service import Service
from polyhead.serve.settings import ConnectionLimits, ServeSettings
from polyhead.testing import tiny_path, tiny_tasks, tiny_trunk
from polyhead.testing.strategies import add_tiny, tiny_bundle, tiny_paths

TASKS = ("mood", "topics", "urgency", "names", "same", "alike", "reply", "where", "who")
TEXT_TASKS = ("mood", "topics", "urgency", "names")
LONG = "good lamp is late " * 60  # more tokens than the tiny trunk reads


def tiny_root(root):
    """The tiny tasks, pooled, in a bundle."""
    trunk = tiny_trunk()
    bundle = tiny_bundle(root, trunk, tiny_paths(Pooled(), trunk))
    assert set(bundle.tasks) == set(TASKS)
    return root


def replace_task(root, name, *, seed):
    """Another version of one of the tiny tasks, with arrays of this seed, in the bundle."""
    trunk = tiny_trunk()
    task = next(task for task in tiny_tasks() if task.name == name)
    add_tiny(root, trunk, task, tiny_path(task, trunk, pool=Pool()), seed=seed, replace=True)


def service_of(root, settings=None, *, deterministic=False):
    """A service that is not started: its application starts it."""
    return Service(Session(root, backend="reference", deterministic=deterministic), settings or ServeSettings())


class Clock:
    """The time of a server's event loop, which a test moves on: no limit is met or missed for a slow machine."""

    def __init__(self):
        self._ahead, self._loop = 0.0, None

    def loop(self):
        """A new event loop of this time."""
        ahead = lambda: self._ahead  # noqa: E731

        class Loop(asyncio.SelectorEventLoop):
            def time(self):
                return super().time() + ahead()

        self._loop = Loop()
        return self._loop

    def advance(self, seconds):
        """By so much, once the server has read what was sent, and until it has acted on the new time."""
        self._turn()
        self._ahead += seconds
        self._turn()

    def _turn(self, times=10):
        for _ in range(times):
            turned = threading.Event()
            self._loop.call_soon_threadsafe(turned.set)
            assert turned.wait(60)


@contextmanager
def listening(service, *, limits=None, wrap=None, clock=None, **more):
    """The port of a server of this service, with real sockets; `more` is of the application, which `wrap` changes."""
    started, ports, loops = threading.Event(), [], []
    app = application(service, **more)
    app = app if wrap is None else wrap(app)

    async def run():
        own, until = bound("127.0.0.1", 0), asyncio.Event()
        ports.append(own.getsockname()[1])
        loops.append((asyncio.get_running_loop(), until))
        own_limits = limits or ConnectionLimits()
        await serve(
            [Listener(app=app, socket=own)],
            drain_seconds=10,
            ready=started.set,
            limits=own_limits,
            refused=service.metrics.refuse,
            until=until,
        )

    def serve_until_stopped():
        with asyncio.Runner(loop_factory=clock and clock.loop) as runner:
            runner.run(run())

    thread = threading.Thread(target=serve_until_stopped, daemon=True)
    thread.start()
    try:
        assert started.wait(60), "the server did not start"
        yield ports[0]
    finally:
        with suppress(RuntimeError):  # it has ended already
            loops[0][0].call_soon_threadsafe(loops[0][1].set)
        thread.join(60)
    assert not thread.is_alive()


def connected(port, *, timeout=20):
    """A socket to the server."""
    return socket.create_connection(("127.0.0.1", port), timeout=timeout)


def request_bytes(body, *, path="/v1/predict", close=False):
    """A POST as it goes over the wire."""
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    end = "Connection: close\r\n" if close else ""
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(content)}\r\n{end}\r\n"
    return head.encode() + content


def read_answer(own):
    """One answer that says its size; the connection stays."""
    content = b""
    while b"\r\n\r\n" not in content:
        content += _part(own)
    size = int(content.lower().partition(b"content-length:")[2].split(b"\r\n")[0])
    while len(content.partition(b"\r\n\r\n")[2]) < size:
        content += _part(own)
    return content


def _part(own):
    part = own.recv(65536)
    assert part, "the connection was closed"
    return part


def read_all(own):
    """What comes until the other side closes."""
    content = b""
    with suppress(ConnectionResetError):
        while part := own.recv(65536):
            content += part
    return content


@contextmanager
def held(monkeypatch):
    """Batches that wait until they are let go; `begun` is set when one is."""
    begun, go, run = threading.Event(), threading.Event(), SharedBatch.run
    sizes = []

    def waits(self, deliver):
        sizes.append(len(self.inputs))
        begun.set()
        assert go.wait(30)
        return run(self, deliver)

    with monkeypatch.context() as patch:
        patch.setattr(SharedBatch, "run", waits)
        yield begun, go, sizes


def until(holds, *, seconds=30):
    """Waits for something to be so."""
    waiting = threading.Event()
    for _ in range(int(seconds / 0.01)):
        if holds():
            return
        waiting.wait(0.01)
    raise AssertionError("it never came to that")
