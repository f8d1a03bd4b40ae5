"""A server over a tiny bundle, on loopback, for tests of clients; and what it did."""

import asyncio
import json
import threading
from contextlib import contextmanager
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import msgspec
import uvicorn

from polyhead.engine.queue import QueueLimits
from polyhead.engine.session import Session
from polyhead.project.strategies import Pooled
from polyhead.serve.app import application
from polyhead.serve.formats.asking import for_task
from polyhead.serve.run import bound
from polyhead.serve.service import Service
from polyhead.serve.settings import ServeSettings
from polyhead.testing import tiny_tasks, tiny_trunk
from polyhead.testing.strategies import tiny_bundle, tiny_paths
from polyhead.values import few_digits

STRATEGY = Pooled(layers="mean", of=2, positions="attention", heads=2, hidden=8)
TASKS = {task.name: task for task in tiny_tasks()}
TEXTS = ["where is my order?", "the lamp is broken and late", "good", "anna is happy, ben is not"]
LONG = "my bill is late and the phone is bad . " * 12  # of more tokens than the tiny trunk reads
SECONDS = 60  # that a test waits before it fails
WHOLE = QueueLimits()


def tiny_server_bundle(root, *names):
    """A bundle with these of the tiny tasks, by default all."""
    trunk = tiny_trunk()
    paths = tiny_paths(STRATEGY, trunk)
    tiny_bundle(root, trunk, {name: paths[name] for name in names or TASKS})
    return root


class Running:
    """A server that answers: `url` for all tasks, `urls` by the task of a port of its own."""

    def __init__(self, service, urls):
        self.service, self.session, self.url, self.urls = service, service.session, urls[""], urls
        self.batches = []  # what is told of each
        service.observers.append(self.batches.append)

    @property
    def place(self):
        """Host and port."""
        return self.url.removeprefix("http://")

    def answers(self, task, inputs):
        """What the session answers by itself."""
        return [result.answers[task] for result in self.session.predict(inputs, tasks=[task])]

    def replies(self, task, inputs):
        """The same as replies write it, with few digits."""
        return few_digits(as_json(self.answers(task, inputs)))

    def batches_of(self, ask):
        """What `ask` returns, and the batches that answered it."""
        wait_until(lambda: self.service.queue.is_idle)  # and with it what is told of the last batch
        self.batches.clear()
        answer = ask()
        wait_until(lambda: self.service.queue.is_idle)
        return answer, list(self.batches)

    def waiting(self):
        """The calls that wait."""
        return [piece.tickets[0] for lane in self.service.queue._lanes.values() for *_, piece in lane]

    @contextmanager
    def stalled(self):
        """Nothing that is asked inside is answered before its end."""
        going, is_stalled, queue = threading.Event(), threading.Event(), self.service.queue

        def wait(pieces, answer=queue._answer):
            answer(pieces)
            wait_until(lambda: not queue._under_way)
            is_stalled.set()
            going.wait(SECONDS)

        wait_until(lambda: queue.is_idle)
        queue._answer = wait  # of the queue's own thread, which runs the encoder
        try:
            queue.submit(["good"], lambda _: None)
            assert is_stalled.wait(SECONDS)
            self.batches.clear()
            yield
        finally:
            del queue._answer
            going.set()


@contextmanager
def running(root, *, ports=(), settings=None):
    """The server of a bundle on a free port, and on one for each of the tasks `ports`."""
    service = Service(
        Session(root, backend="reference", precision="float32", deterministic=True),
        settings or ServeSettings(queue=WHOLE),
    )
    app = application(service)
    sockets = {name: bound("127.0.0.1", 0) for name in ("", *ports)}
    servers = [
        uvicorn.Server(
            uvicorn.Config(
                for_task(app, name) if name else app,
                lifespan="off" if name else "on",
                log_config=None,
                access_log=False,
            )
        )
        for name in sockets
    ]
    for server in servers[1:]:
        server.install_signal_handlers = lambda: None

    async def answer():
        await asyncio.gather(
            *(server._serve(sockets=[own]) for server, own in zip(servers, sockets.values(), strict=True))
        )

    thread = threading.Thread(target=lambda: asyncio.run(answer()), name="test-server")
    thread.start()
    try:
        wait_until(lambda: all(server.started for server in servers) or not thread.is_alive())
        assert thread.is_alive()
        yield Running(service, {name: f"http://127.0.0.1:{own.getsockname()[1]}" for name, own in sockets.items()})
    finally:
        for server in servers:
            server.should_exit = True
        thread.join(SECONDS)
        assert not thread.is_alive()


def wait_until(is_so):
    """Returns as soon as it is so; fails after a minute."""
    for _ in range(SECONDS * 200):
        if is_so():
            return
        threading.Event().wait(0.005)
    raise AssertionError("it did not come to be so")


def as_json(value):
    """A value as it looks after it went through JSON."""
    return msgspec.json.decode(msgspec.json.encode(value))


def posted(url, body, headers=None):
    """Status, headers and body of a plain request; bytes are sent as they are."""
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    request = Request(url, content, {"Content-Type": "application/json", **(headers or {})})
    return _opened(request)


def got(url):
    """The same of a request that sends nothing."""
    return _opened(Request(url))


def _opened(request):
    try:
        with urlopen(request, timeout=SECONDS) as answer:
            return answer.status, answer.headers, json.loads(answer.read() or b"null")
    except HTTPError as error:
        with error:
            return error.code, error.headers, json.loads(error.read() or b"null")
