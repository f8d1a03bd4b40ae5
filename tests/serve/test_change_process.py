"""The process that makes changes: one for several, which rests, ends and is begun again."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path

import msgspec
import pytest

from polyhead.certify import Prover, verify
from polyhead.certify.proof import locked
from polyhead.engine.backends.graph import GraphBackend
from polyhead.engine.compile.compiled import COMPILED
from polyhead.serve import change_process
from polyhead.serve.change_process import ChangeProcess
from polyhead.serve.http import HttpError
from polyhead.serve.make_changes import check_parent
from polyhead.serve.orders import Order, change_reply
from support.admin_server import add, lines, make, served, upload
from support.client_server import wait_until

SOURCE = Path(__file__).parents[2] / "src"

# A process that answers every order with its own number, and where it is told to, ends.
TELLING = """
import json, os, sys
assert "alive" in sys.stdin.readline()
for line in sys.stdin:
    name = json.loads(line)["name"]
    if name == "ends":
        print("why it ended", file=sys.stderr)
        sys.exit(3)
    if name == "talks":
        print("no JSON")
    else:
        print("x" * 100_000, file=sys.stderr)  # more than a pipe holds
        print(json.dumps({"outcome": {"task": str(os.getpid()), "before": None, "after": None, "is_changed": True}}))
    sys.stdout.flush()
"""


@pytest.fixture
def telling(monkeypatch):
    monkeypatch.setattr(change_process, "COMMAND", ("-c", TELLING))


def order(name="task"):
    return Order(operation="remove", root="somewhere", name=name)


async def number(process, name="task"):
    return int((await process.make(order(name))).task)


async def gone(pid):
    for _ in range(200):
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return True
        await asyncio.sleep(0.02)
    return False


def test_one_process_makes_several_changes(telling):
    async def scenario():
        process = ChangeProcess()
        numbers = [await number(process) for _ in range(3)]
        together = await asyncio.gather(number(process), number(process))
        assert len({*numbers, *together}) == 1
        await process.close()
        assert await gone(numbers[0])
        await process.close()

    asyncio.run(scenario())


def test_after_a_rest_it_ends_and_another_begins(telling):
    async def scenario():
        process = ChangeProcess(rest_seconds=0.05)
        first, rested = await number(process), process._running
        assert await gone(first)
        second = await number(process)
        assert second != first and rested._held < 0  # its pipe is closed
        await process.close()
        assert await gone(second)

    asyncio.run(scenario())


def test_a_server_that_ends_does_not_wait_until_a_resting_process_has_put_its_things_away(telling):
    async def scenario():
        process = ChangeProcess()
        await number(process)
        resting = process._running
        await process.close()
        assert resting.code == -signal.SIGKILL

    asyncio.run(scenario())


def test_a_process_that_was_killed_while_it_rested_is_replaced(telling):
    async def scenario():
        process = ChangeProcess()
        first = await number(process)
        os.kill(first, signal.SIGKILL)
        await process._running.ended()
        assert await number(process) != first
        await process.close()

    asyncio.run(scenario())


@pytest.mark.parametrize("name", ["ends", "talks"])
def test_a_process_that_fails_is_told_and_replaced(telling, caplog, name):
    async def scenario():
        process = ChangeProcess()
        first = await number(process)
        with pytest.raises(HttpError, match="stopped before its end") as caught:
            await process.make(order(name))
        assert caught.value.status == 500 and "ask for the same again" in caught.value.do
        assert await gone(first) and await number(process) != first
        await process.close()

    asyncio.run(scenario())
    if name == "ends":
        assert "ended with 3" in caplog.text and "why it ended" in caplog.text


def test_a_caller_that_is_cancelled_ends_it(telling, monkeypatch):
    monkeypatch.setattr(change_process, "COMMAND", ("-c", "import sys, time\nfor line in sys.stdin: time.sleep(60)"))

    async def scenario():
        process = ChangeProcess()
        asking = asyncio.ensure_future(process.make(order()))
        while process._running is None:
            await asyncio.sleep(0.01)
        pid = process._running._process.pid
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        assert await gone(pid)

    asyncio.run(scenario())


def test_the_command_makes_each_change_that_it_reads(tmp_path):
    """The true process: a task is replaced twice, then removed, and one order is refused between them."""
    root, sources = make(tmp_path / "b", "mood", "topics"), []
    for seed in (6, 7):
        upload(tmp_path, "mood", seed)
        sources += [str(path) for path in tmp_path.glob(f"mood-{seed}-*")]
    orders = [
        *(Order(operation="put", root=str(root), name="mood", source=source) for source in sources),
        Order(operation="rollback", root=str(root), name="mood", version="v0009"),
        Order(operation="remove", root=str(root), name="mood"),
    ]
    words = [sys.executable, "-m", "polyhead.serve.make_changes"]
    given = b"{}\n" + b"".join(msgspec.json.encode(each) + b"\n" for each in orders)
    done = subprocess.run(
        words, input=given, env={**os.environ, "PYTHONPATH": str(SOURCE)}, capture_output=True, check=True
    )
    told = [json.loads(line) for line in done.stdout.splitlines()]
    assert [each["outcome"] and each["outcome"]["after"] for each in told] == ["v0002", "v0003", None, None]
    assert told[2]["error"] and told[2]["status"] == 409 and told[3]["outcome"]["before"] == "v0003"
    assert set(lines(root)) == {"topics"} and verify(root) == []


# The true process, which also writes its number to a file once it finds a lock held.
WAITING = """
import fcntl, os, runpy
from pathlib import Path

def flock(handle, operation, lock=fcntl.flock):
    try:
        lock(handle, operation)
    except BlockingIOError:
        Path(os.environ["WAITS"]).write_text(str(os.getpid()))
        raise

fcntl.flock = flock
runpy.run_module("polyhead.serve.make_changes", run_name="__main__")
"""

ORDERING = """
import asyncio, sys
import msgspec
from polyhead.serve import change_process
from polyhead.serve.orders import Order

change_process.COMMAND = ("-c", sys.argv[2])
asyncio.run(change_process.ChangeProcess().make(msgspec.json.decode(sys.argv[1], type=Order)))
"""


def test_it_ends_with_a_server_that_is_killed_and_changes_nothing_after(tmp_path):
    """The true process waits for the bundle's lock, which this test holds until the server is gone."""
    root = make(tmp_path / "b", "mood", "topics").resolve()
    removal = msgspec.json.encode(Order(operation="remove", root=str(root), name="mood")).decode()
    before = {path: path.read_bytes() for path in root.rglob("*") if path.is_file()}
    waits = tmp_path / "waits"
    with locked(root, "test"):
        server = subprocess.Popen(
            [sys.executable, "-c", ORDERING, removal, WAITING],
            env={**os.environ, "PYTHONPATH": str(SOURCE), "WAITS": str(waits)},
        )
        try:
            wait_until(lambda: waits.exists() and waits.read_text())
        finally:
            server.kill()
            server.wait()
        assert asyncio.run(gone(int(waits.read_text())))
    for path, content in before.items():
        assert path.read_bytes() == content, path
    assert lines(root) == {"mood": "v0001", "topics": "v0001"} and verify(root) == []


def test_where_the_kernel_does_not_end_it_the_end_of_a_pipe_does():
    code = "import sys, threading; from polyhead.serve import make_changes; make_changes.SET_DEATH_SIGNAL = -1\n"
    code += "make_changes.end_with_parent(int(sys.argv[1])); print('ready', flush=True); threading.Event().wait()"
    alive, held = os.pipe()
    words, environment = [sys.executable, "-c", code, str(alive)], {**os.environ, "PYTHONPATH": str(SOURCE)}
    process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True, pass_fds=(alive,), env=environment)
    try:
        assert process.stdout.readline() == "ready\n" and process.poll() is None
        os.close(held)
        assert process.wait(60) == 1
    finally:
        process.kill()
        process.communicate()
        os.close(alive)


def test_nothing_is_changed_once_the_server_is_gone(tmp_path):
    """Each operation looks once more just before it changes anything."""
    root = make(tmp_path / "b", "mood", "topics")
    add(root, "mood", 5, replace=True)
    upload(tmp_path, "mood", 6)
    (source,) = tmp_path.glob("mood-6-*")
    before, (alive, held) = (root / "bundle.json").read_bytes(), os.pipe()
    check = partial(check_parent, alive)
    check()  # it lives
    os.close(held)
    for change in (
        Order(operation="put", root=str(root), name="mood", source=str(source)),
        Order(operation="put", root=str(root), name="mood", source=str(source)),
        Order(operation="rollback", root=str(root), name="mood"),
        Order(operation="remove", root=str(root), name="mood"),
    ):
        answer = json.loads(change_reply(msgspec.json.encode(change), Prover(), check))
        assert "has ended" in answer["error"]["message"] and answer["outcome"] is None
        assert (root / "bundle.json").read_bytes() == before
    os.close(alive)
    assert lines(root)["mood"] == "v0002" and verify(root) == []


def test_a_prepared_process_asks_no_layer_again_for_its_first_change(tmp_path, monkeypatch):
    """What it asked before its first order is what the order needs, and the reply to it changes nothing."""
    root, prover, layers = make(tmp_path / "bundle", "mood", "topics"), Prover(), []
    ready = json.loads(change_reply(msgspec.json.encode(Order(operation="prepare", root=str(root), name="")), prover))
    assert ready["outcome"]["is_changed"] is False and not list(root.rglob("certificates/*.json"))
    original = GraphBackend._stages

    def stages(self, *arguments, **named):
        before = self.layers_run
        yield from original(self, *arguments, **named)
        layers.append(self.layers_run - before)

    monkeypatch.setattr(GraphBackend, "_stages", stages)
    removal = msgspec.json.encode(Order(operation="remove", root=str(root), name="topics"))
    assert json.loads(change_reply(removal, prover))["outcome"]["is_changed"]
    assert layers and not any(layers) and verify(root) == []


@pytest.mark.parametrize("keeps", [True, False], ids=["a folder", "no folder"])
def test_a_server_that_keeps_compiled_graphs_prepares_the_first_change_and_ends_at_once(tmp_path, monkeypatch, keeps):
    root, orders, cancelled = make(tmp_path / "bundle", "mood"), [], []
    monkeypatch.setattr(COMPILED, "path", tmp_path / "compiled" if keeps else None)

    async def never(order):
        orders.append(order.operation)
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.append(order.operation)
            raise

    async def scenario():
        async with served(root, make=never) as (_, service):
            await asyncio.sleep(0)
            assert service.is_ready

    asyncio.run(scenario())
    assert orders == cancelled == (["prepare"] if keeps else [])
