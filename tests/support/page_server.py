"""A server over a bundle of tiny tasks, on loopback, for tests of its page."""

import gc
import sys
import threading
from contextlib import contextmanager

import uvicorn
from starlette.responses import JSONResponse

import polyhead.testing as tiny
from polyhead.bundle.manifest import TaskRecord
from polyhead.bundle.read import Bundle
from polyhead.engine.backends.reference import ReferenceBackend
from polyhead.engine.session import Session
from polyhead.plan import Pool
from polyhead.project.strategies import Pooled
from polyhead.serve.app import application
from polyhead.serve.formats.asking import for_task
from polyhead.serve.run import bound
from polyhead.serve.service import Service
from polyhead.serve.settings import RequestLimits, ServeSettings
from polyhead.tasks.task import Task
from polyhead.testing.strategies import tiny_bundle, tiny_paths

SECONDS = 30
LONGEST = 400  # characters of a text
HOSTILE = "<img src=x onerror=\"document.title='owned'\">"
CARD = f"""# hostile

Labels of **one** bad mind: {HOSTILE}

| split | `f1` |
|---|---|
| test | 0.5 |

- first
- [a link](javascript:alert(1))
"""
EARLY = Task(name="early", kind="single_label", labels=("no", "yes"))  # done after the first of two layers
BAD = Task(name="hostile", kind="single_label", labels=(HOSTILE, f"</script>{HOSTILE}", "plain"))
MANY = Task(name="many", kind="single_label", labels=tuple(f"label {number}" for number in range(12)))


def page_bundle(root):
    """The tiny tasks, one that is done early, one with hostile labels, one with many."""
    trunk = tiny.tiny_trunk()
    tiny_bundle(root, trunk, tiny_paths(Pooled(), trunk))
    bundle = Bundle.open(root)
    for seed, (task, stop) in enumerate(((EARLY, 1), (BAD, None), (MANY, None))):
        path = tiny.tiny_path(task, trunk, pool=Pool(positions="mean"), stop=stop)
        arrays = tiny.tiny_part(path, trunk.architecture, path.head.part, seed=seed)
        scores = {"splits": {"test": {"accuracy": 0.75}}, "baselines": {"constant": {"test": {"accuracy": 0.5}}}}
        record = TaskRecord(task=task, path=path, trunk=trunk.digest)
        bundle.add_task(record, arrays, scores=scores, probes=[], card=CARD)
    return root


class PageServer:
    """A server that can be stopped and started again at the same address.

    With a `key` it refuses whoever has none; with a `task` its port is that task's own.
    """

    def __init__(self, root, *, key=None, task=None):
        self.root, self.key, self.task, self.port = root, key, task, 0
        self.start()

    @property
    def url(self):
        """Its address, with a slash at the end."""
        return f"http://127.0.0.1:{self.port}/"

    def start(self):
        """Listens and is ready at the end."""
        self.session = Session(self.root, backend="reference")
        settings = ServeSettings(limits=RequestLimits(characters=LONGEST), drain_seconds=1)
        app = application(Service(self.session, settings))
        if self.key is not None:
            app = _keyed(app, self.key)
        if self.task is not None:
            app = for_task(app, self.task)
        listening = bound("127.0.0.1", self.port)
        self.port = listening.getsockname()[1]
        config = uvicorn.Config(
            app, lifespan="on", log_config=None, access_log=False, loop="asyncio", timeout_graceful_shutdown=1
        )
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._server.run, args=([listening],), name="page-server", daemon=True)
        self._thread.start()
        for _ in range(SECONDS * 200):
            if self._server.started or not self._thread.is_alive():
                break
            threading.Event().wait(0.005)
        assert self._server.started, "the server did not start"

    def stop(self):
        """Cuts connections, and waits for the end."""
        self._server.should_exit = True
        self._thread.join(SECONDS)
        assert not self._thread.is_alive(), "the server did not stop"


@contextmanager
def page_server(root, *, key=None, task=None):
    """A server until the end of the block; what it sets for its process is set back."""
    before = gc.get_threshold(), sys.getswitchinterval()
    server = PageServer(root, key=key, task=task)
    try:
        yield server
    finally:
        server.stop()
        gc.set_threshold(*before[0])
        sys.setswitchinterval(before[1])


@contextmanager
def held_stages():
    """The encoder waits after the first stage of a pass, until the event that is given is set."""
    going, stages = threading.Event(), ReferenceBackend.stages

    def held(self, plan, batch):
        for number, stage in enumerate(stages(self, plan, batch)):
            if number:
                going.wait(SECONDS)
            yield stage

    ReferenceBackend.stages = held
    try:
        yield going
    finally:
        ReferenceBackend.stages = stages
        going.set()


def _keyed(app, key):
    async def guarded(scope, receive, send):
        if scope["type"] == "http" and scope["path"].startswith("/v1/"):
            given = dict(scope["headers"]).get(b"authorization", b"").decode()
            if given != f"Bearer {key}":
                error = {"type": "HttpError", "message": "this needs a key", "do": "send it"}
                await JSONResponse({"error": error}, 401)(scope, receive, send)
                return
        await app(scope, receive, send)

    return guarded
