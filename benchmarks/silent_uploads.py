"""Hostile uploads: how each is refused, and how soon a server that is told to stop under it has ended.

    python -m benchmarks.silent_uploads

Each upload is a task's tar whose sizes and digests are right, and one part of which is not. It is sent twice: once to a
server that lives, which tells its status and reason, and once to a server that gets SIGTERM as soon as the last byte is
sent. `tests/serve/test_hostile_uploads.py` checks the same uploads.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import httpx
import numpy as np
from safetensors.numpy import save

from polyhead.bundle import write
from polyhead.bundle.create import write_bundle
from polyhead.bundle.manifest import TaskRecord
from polyhead.bundle.read import Bundle
from polyhead.bundle.task_archive import BLOCK, NEEDED, tar_header
from polyhead.plan import Layers, Pool
from polyhead.plan import Path as TaskPath
from polyhead.tasks.task import Task
from polyhead.testing import tiny_part, tiny_path, tiny_trunk
from polyhead.testing.tiny import on_top_path
from studies.results import Claim
from studies.settings import answer_help, command, report, say

NAME, DRAIN, MARGIN = "silent_uploads", 3.0, 0.5  # seconds; the margin is for the system to end a process
Members = dict[str, bytes]
MANY, DEEP = 100_000, 100_000
NESTED = b"[" * DEEP + b"]" * DEEP
READY = re.compile(r"http://127\.0\.0\.1:(\d+) answers")


def bundle_of(root: Path, path: TaskPath | None = None) -> Path:
    """A bundle of one tiny task, `mood`, pooled by attention, or with this path."""
    trunk = tiny_trunk()
    task = Task(name="mood", kind="single_label", labels=("bad", "good"))
    path = path or tiny_path(task, trunk, pool=Pool(positions="attention", heads=2, part="task:mood"))
    record = TaskRecord(task=task, path=path, trunk=trunk.digest)
    arrays = tiny_part(path, trunk.architecture, "task:mood")
    probes = [{"text": ["the lamp is good"]}, {"text": ["anna was sad today"]}]
    draft = write.Draft(record=record, arrays=arrays, scores={"splits": {}}, probes=probes, card="# mood\n")
    write_bundle(root, trunk)
    write.add_tasks(root, [draft])
    return root


def members_of(root: Path) -> Members:
    """The files of the task's version."""
    bundle = Bundle.open(root)
    folder = root / "tasks" / "mood" / bundle.version("mood")
    return {name: (folder / name).read_bytes() for name in NEEDED}


def tar(members: Mapping[str, bytes]) -> bytes:
    """The upload of these files."""
    parts = []
    for name, content in members.items():
        parts += [tar_header(name, len(content)), content, b"\0" * (-len(content) % BLOCK)]
    return b"".join([*parts, b"\0" * (2 * BLOCK)])


def with_record(members: Members, *steps: str | int, value: object) -> Members:
    """The files with another value at a place in task.json."""
    record = json.loads(members["task.json"])
    at: Any = record
    for step in steps[:-1]:
        at = at[step]
    at[steps[-1]] = value
    return {**members, "task.json": json.dumps(record).encode()}


def with_file(members: Members, name: str, content: bytes) -> Members:
    """The files with another one, whose digest task.json names."""
    files = {**json.loads(members["task.json"])["files"], name: hashlib.sha256(content).hexdigest()}
    return {**with_record(members, "files", value=files), name: content}


def deep(members: Members) -> Members:
    """The files with a list of lists of lists in task.json."""
    record = members["task.json"].rstrip().removesuffix(b"}")
    return {**members, "task.json": record + b', "trained_with": ' + NESTED + b"}"}


def labels(count: int, length: int = 0) -> Callable[[Members], Members]:
    """The files with so many labels, each padded to a length."""
    values = [f"l{number}".ljust(length, "x") for number in range(count)]

    def changed(members: Members) -> Members:
        wide = with_record(members, "path", "nodes", -1, "width", value=count)
        return with_record(wide, "task", "labels", value=values)

    return changed


def node(kind: str, key: str, value: int) -> Callable[[Members], Members]:
    """The files with another number in the node of a kind."""

    def changed(members: Members) -> Members:
        nodes = json.loads(members["task.json"])["path"]["nodes"]
        place = max(number for number, each in enumerate(nodes) if each["type"] == kind)
        return with_record(members, "path", "nodes", place, key, value=value)

    return changed


def repeated_nodes(members: Members) -> Members:
    """The files with a path of very many nodes."""
    nodes = json.loads(members["task.json"])["path"]["nodes"]
    many = [{**nodes[1], "start": number, "stop": number + 1} for number in range(MANY)]
    return with_record(members, "path", "nodes", value=[nodes[0], *many, *nodes[2:]])


def header(count: int) -> bytes:
    """A safetensors file of so many arrays of one number."""
    entries = {f"a{n}": {"dtype": "F32", "shape": [1], "data_offsets": [4 * n, 4 * n + 4]} for n in range(count)}
    raw = json.dumps(entries).encode()
    return len(raw).to_bytes(8, "little") + raw + bytes(4 * count)


def seen(rows: int, width: int = 16) -> bytes:
    """A summary of so many rows."""
    arrays = {"vectors": (rows, width), "scores": (rows, 2), "lengths": (rows,)}
    return save({name: np.zeros(shape, np.float32) for name, shape in arrays.items()})


def probe(**fields: object) -> bytes:
    return json.dumps(fields).encode() + b"\n"


SHARES = {"thresholds": [0.5] * MANY}
UPLOADS: Mapping[str, Callable[[Members], Members]] = {
    "100,000 labels": labels(MANY),
    "9,000 labels where the head has two": lambda own: with_record(own, "task", "labels", value=["a", "b"] * 4500),
    "a label of a million characters": labels(2, 1_000_000),
    "100,000 thresholds": lambda own: with_record(own, "calibration", value=SHARES),
    "100,000 needs": lambda own: with_record(own, "needs", value={f"family:f{n}": "0" * 64 for n in range(MANY)}),
    "100,000 nodes": repeated_nodes,
    "lists 100,000 deep": deep,
    "two million values": lambda own: with_record(own, "trained_with", value={"x": [0] * 2_000_000}),
    "0 heads": node("pool", "heads", 0),
    "5 heads": node("pool", "heads", 5),
    "-6 heads": node("pool", "heads", -6),
    "a head of 2^60 hidden units": node("head", "hidden", 2**60),
    "100,000 arrays": lambda own: with_file(own, "part.safetensors", header(MANY)),
    "100,000 probes": lambda own: with_file(own, "probes.jsonl", probe(text=["good"]) * MANY),
    "a probe 100,000 deep": lambda own: with_file(
        own, "probes.jsonl", b'{"text": ' + b"[" * DEEP + b"]" * DEEP + b"}\n"
    ),
    "a probe that is none": lambda own: with_file(own, "probes.jsonl", probe(text="good")),
    "a probe of a pair": lambda own: with_file(own, "probes.jsonl", probe(text=["good", "bad"])),
    "a probe with words that go back": lambda own: with_file(
        own, "probes.jsonl", probe(text=["good"], words=[[2, 1], [0, 900]])
    ),
    "scores 100,000 deep": lambda own: with_file(own, "scores.json", b'{"a": ' + NESTED + b"}"),
    "scores that are none": lambda own: with_file(own, "scores.json", b'{"splits": {"test": {"accuracy": "high"}}}'),
    "a summary that is junk": lambda own: with_file(own, "seen.safetensors", b"\xff" * 1000),
    "a summary of 5,000 rows": lambda own: with_file(own, "seen.safetensors", seen(5000)),
    "a summary of another width": lambda own: with_file(own, "seen.safetensors", seen(5, 3)),
    "a card that is junk": lambda own: {**own, "README.md": b"\x7fELF\0\xff" * 100},
}
"""By what is wrong with it: from the files of a task to those of the upload."""


def hostile(folder: Path) -> dict[str, Members]:
    """Every upload by its name; those about layers are of a task that has layers of its own."""
    own = members_of(bundle_of(folder / "own"))
    above = Layers(start=2, stop=3, feed_forward=12, heads=2)
    stacked = members_of(bundle_of(folder / "stacked", on_top_path(tiny_trunk(), "mood", above)))
    named = {name: change(own) for name, change in UPLOADS.items()}
    for heads in (0, 5, -6):
        named[f"layers with {heads} heads"] = node("layers", "heads", heads)(stacked)
    named["layers with a billion hidden layers"] = node("layers", "hidden_layers", 10**9)(stacked)
    return named


@contextlib.contextmanager
def server(root: Path) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """A process that serves the bundle and lets this machine change it, and its port."""
    words = [
        sys.executable,
        "-m",
        "polyhead",
        "serve",
        str(root),
        "--port",
        "0",
        "--backend",
        "reference",
        "--admin",
        "--no-keys",
    ]
    own = subprocess.Popen([*words, "--drain-seconds", str(DRAIN)], stderr=subprocess.PIPE, text=True)
    try:
        assert own.stderr is not None
        line = own.stderr.readline()
        match = READY.search(line)
        assert match, line
        yield own, int(match[1])
    finally:
        own.kill()
        own.communicate()


def put(port: int, content: bytes, sent: Callable[[], None] = lambda: None) -> httpx.Response | None:
    """The answer to an upload, None where the server ended before it; `sent` is called when all of it is sent."""

    def body() -> Iterator[bytes]:
        yield content
        sent()

    with contextlib.suppress(httpx.TransportError):
        return httpx.put(f"http://127.0.0.1:{port}/v1/tasks/mood", content=body(), timeout=600)
    return None


def main() -> None:
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        root = bundle_of(Path(folder, "served"))
        before = (root / "bundle.json").read_bytes()
        uploads = {name: tar(members) for name, members in hostile(Path(folder)).items()}
        with server(root) as (_, port):
            for name, content in uploads.items():
                began = time.monotonic()
                answer = put(port, content)
                seconds = time.monotonic() - began
                assert answer is not None
                told = answer.json()["error"]
                refusal = f"{told['message']}. Got: {told['got']}"[:200]
                rows.append({"upload": name, "bytes": len(content), "status": answer.status_code, "refusal": refusal})
                rows[-1]["seconds_to_answer"] = round(seconds, 3)
                say(f"{name}: {answer.status_code} {refusal}")
        for row, content in zip(rows, uploads.values(), strict=True):
            with server(root) as (own, port):
                is_sent = threading.Event()
                caller = threading.Thread(target=put, args=(port, content, is_sent.set))
                caller.start()
                is_sent.wait(60)
                began = time.monotonic()
                own.send_signal(signal.SIGTERM)
                row["exit_code"] = own.wait(600)
                row["seconds_to_exit"] = round(time.monotonic() - began, 3)
                row["drain_seconds"] = DRAIN
                caller.join()
            say(f"{row['upload']}: ended after {row['seconds_to_exit']} s")
        assert (root / "bundle.json").read_bytes() == before
    report(NAME, command=command(), rows=rows, claims=claims(rows), lacking=[])


def claims(rows: list[dict[str, Any]]) -> list[Claim]:
    late = sum(row["seconds_to_exit"] > DRAIN + MARGIN for row in rows)
    taken = sum(not 400 <= row["status"] < 500 for row in rows)
    texts = {
        "silent.sigterm": f"of {len(rows)} hostile uploads those under which a server had not ended within its drain "
        f"time of {DRAIN:g} s after SIGTERM",
        "silent.uploads": f"of {len(rows)} hostile uploads those that were not refused with a reason",
    }
    values = {"silent.sigterm": late, "silent.uploads": taken}
    return [
        Claim(id=name, text=text, target=0, value=values[name], unit="uploads", holds=values[name] == 0)
        for name, text in texts.items()
    ]


if __name__ == "__main__":
    answer_help(__doc__)
    main()
