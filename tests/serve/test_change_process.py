"""The process that makes changes: one for several, which rests, ends and is begun again."""

import asyncio
import json
import os
import signal

import msgspec
import pytest

from changing import lines, make, upload
from cli.commands import run
from polyhead.certify import verify
from polyhead.serve import change_process
from polyhead.serve.change_process import ChangeProcess
from polyhead.serve.http import HttpError
from polyhead.serve.orders import Order

# A process that answers every order with its own number, and where it is told to, ends.
TELLING = """
import json, os, sys
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
        process = ChangeProcess(rest=0.05)
        first = await number(process)
        assert await gone(first)
        second = await number(process)
        assert second != first
        await process.close()
        assert await gone(second)

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
    """The true command: a task is replaced twice, then removed, and one order is refused between them."""
    root, sources = make(tmp_path / "b", "mood", "topics"), []
    for seed in (6, 7):
        upload(tmp_path, "mood", seed)
        sources += [str(path) for path in tmp_path.glob(f"mood-{seed}-*")]
    orders = [
        *(Order(operation="put", root=str(root), name="mood", source=source) for source in sources),
        Order(operation="rollback", root=str(root), name="mood", version="v0009"),
        Order(operation="remove", root=str(root), name="mood"),
    ]
    done = run("tasks", "apply", stdin=b"".join(msgspec.json.encode(each) + b"\n" for each in orders))
    told = [json.loads(line) for line in done.out.splitlines()]
    assert [each["outcome"] and each["outcome"]["after"] for each in told] == ["v0002", "v0003", None, None]
    assert told[2]["error"] and told[2]["status"] == 409 and told[3]["outcome"]["before"] == "v0003"
    assert set(lines(root)) == {"topics"} and verify(root) == []
