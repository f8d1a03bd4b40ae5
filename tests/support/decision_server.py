"""A tiny bundle whose tasks answer the questions of decisions APIs, and a server over it on loopback."""

import contextlib
import threading

import uvicorn

from polyhead.bundle import write
from polyhead.bundle.create import write_bundle
from polyhead.bundle.manifest import TaskRecord
from polyhead.engine.session import Session
from polyhead.plan import Pool
from polyhead.serve.app import application
from polyhead.serve.run import bound
from polyhead.serve.service import Service
from polyhead.serve.settings import ServeSettings
from polyhead.tasks.task import Task
from polyhead.testing import tiny_part, tiny_path, tiny_trunk

TEXT = "my lamp is broken and the refund is late, please help me today"
TASKS = (
    Task(name="mood", kind="single_label", labels=("bad", "good")),
    Task(name="broken", kind="single_label", labels=("no", "yes")),
    Task(name="topics", kind="multi_label", labels=("order", "bill", "person")),
    Task(name="urgency", kind="regression", range=(0.0, 1.0)),
    Task(name="stars", kind="regression", range=(1.0, 5.0)),
    Task(name="anger", kind="single_label", labels=("calm", "cross", "furious")),
    Task(name="names", kind="tagging", labels=("O", "B-product")),
    Task(name="same", kind="single_label", labels=("no", "yes"), pair="joined"),
)
PROBES = [{"text": [text]} for text in ("my order is late", "good lamp", "where is the bill", "anna is happy and you")]


def write_asked(root):
    """The bundle; its tasks have probes, but for `names` and `same`."""
    trunk = tiny_trunk(max_tokens=64)
    write_bundle(root, trunk)
    drafts = []
    for seed, task in enumerate(TASKS):
        path = tiny_path(task, trunk, pool=Pool(positions="mean"))
        record = TaskRecord(task=task, path=path, trunk=trunk.digest)
        arrays = tiny_part(path, trunk.architecture, path.head.part, seed=seed)
        probes = PROBES if task.name not in ("names", "same") else []
        drafts.append(write.Draft(record=record, arrays=arrays, scores={}, probes=probes, card=""))
    write.add_tasks(root, drafts)
    return root


def service_of(root, *, backend="reference", **settings):
    """A service over the bundle, in deterministic mode."""
    return Service(Session(root, backend=backend, deterministic=True), ServeSettings(**settings))


@contextlib.contextmanager
def listening(app):
    """The address of a server that answers with this application, on a free port of this machine."""
    socket = bound("127.0.0.1", 0)
    server = uvicorn.Server(uvicorn.Config(app, log_config=None, lifespan="on"))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [socket]})
    thread.start()
    try:
        while not server.started:
            assert thread.is_alive(), "the server did not start"
            thread.join(0.01)
        yield f"http://127.0.0.1:{socket.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join()
        socket.close()


def asked_app(root, **settings):
    """The whole application over the bundle."""
    return application(service_of(root, **settings))
