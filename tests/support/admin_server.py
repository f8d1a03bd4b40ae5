"""A tiny bundle whose tasks have probes, a server of it in this process, and uploads for it."""

import asyncio
import contextlib
import hashlib
import json
from pathlib import Path

import httpx
import msgspec

from polyhead.bundle import write
from polyhead.bundle.create import write_bundle
from polyhead.bundle.manifest import TaskRecord
from polyhead.bundle.read import Bundle
from polyhead.bundle.task_archive import upload_bytes
from polyhead.certify import Prover
from polyhead.engine.session import Session
from polyhead.plan import Pool
from polyhead.serve import orders
from polyhead.serve.app import application
from polyhead.serve.formats import admin as admin_format
from polyhead.serve.service import Service
from polyhead.serve.settings import ServeSettings
from polyhead.tasks.task import Task
from polyhead.testing import tiny_part, tiny_path, tiny_tasks, tiny_trunk

TRUNK = tiny_trunk()
TASKS = {task.name: task for task in tiny_tasks()}
TEXTS = ["where is my order?", "the lamp is broken and late", "good", "anna was sad today"]
PAIRS = [("is the lamp good?", "the lamp is broken and late"), ("when was it late?", "it was late on monday")]
ADMIN = ServeSettings(admin=True, watch_seconds=0.0)


def probes(task):
    inputs = [(text,) for text in TEXTS] if task.pair == "none" else PAIRS
    return [{"text": list(texts)} for texts in inputs]


def draft(name, seed, *, arrays=None, trunk=TRUNK, positions="mean", task=None):
    task = task or TASKS[name]
    path = tiny_path(task, trunk, pool=Pool(positions=positions))
    own = arrays or tiny_part(path, trunk.architecture, path.head.part, seed=seed)
    record = TaskRecord(task=task, path=path, trunk=trunk.digest, trained_with={"seed": seed})
    scores = {"splits": {"test": {"accuracy": 0.5}}}
    return write.Draft(record=record, arrays=own, scores=scores, probes=probes(task), card=f"# {name}\n")


def add(root, name, seed, *, replace=False, **changes):
    write.add_tasks(Path(root), [draft(name, seed, **changes)], replace=replace)


def make(root, *names, trunk=TRUNK):
    """A bundle of these tiny tasks."""
    write_bundle(root, trunk)
    for seed, name in enumerate(names):
        add(root, name, seed, trunk=trunk)
    return root


def upload(folder, name, seed, *, trunk=TRUNK, **changes):
    """The upload of a task, from a bundle made for it."""
    root = folder / f"{name}-{seed}-{trunk.digest[:8]}"
    if not root.exists():
        write_bundle(root, trunk)
        add(root, name, seed, trunk=trunk, **changes)
    return b"".join(upload_bytes(Bundle.open(root), name))


def labelled(name, *labels):
    return Task(name=name, kind="single_label", labels=labels)


async def in_a_thread(order):
    """The change that a process of its own makes, in a thread of this one."""
    answer = await asyncio.to_thread(orders.change_reply, msgspec.json.encode(order), Prover())
    told = msgspec.json.decode(answer, type=orders.ChangeReply)
    if told.outcome is None:
        raise orders.as_http(told.error, told.status)
    return told.outcome


@contextlib.asynccontextmanager
async def served(root, settings=ADMIN, *, make=in_a_thread, deterministic=True, backend="reference", scope=None):
    """A client of a server in this process, and its service."""
    session = Session(root, backend=backend, precision="float32", deterministic=deterministic)
    service = Service(session, settings)
    original, admin_format.Admin = admin_format.Admin, lambda service: original(service, make=make)
    try:
        app = application(service, formats=["polyhead", "admin"])
    finally:
        admin_format.Admin = original

    async def called(own, receive, send):
        await app({**own, **(scope or {})}, receive, send)

    await service.start()
    try:
        transport = httpx.ASGITransport(called, raise_app_exceptions=False, client=("127.0.0.1", 1))
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1", timeout=60) as client:
            yield client, service
    finally:
        await service.stop()


async def asked(client, *texts, tasks=None):
    """Answers to texts, and the versions that gave them."""
    response = await client.post("/v1/predict", json={"inputs": list(texts or TEXTS), "tasks": tasks})
    assert response.status_code == 200, response.text
    body = response.json()
    return [result["answers"] for result in body["results"]], body["versions"]


def lines(root):
    return {
        name: line["version"] for name, line in json.loads((Path(root) / "bundle.json").read_text())["tasks"].items()
    }


def beside(root):
    """What lies beside a bundle, but the folders of `upload`."""
    return sorted(path.name for path in Path(root).parent.iterdir() if path.name.startswith("."))


def sha(content):
    return hashlib.sha256(content).hexdigest()
