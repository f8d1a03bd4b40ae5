"""Several processes at one address: one that dies is started again, all end together, and counts are of all."""

import asyncio
import contextlib
import errno
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from functools import partial
from pathlib import Path

import httpx
import pytest
import uvicorn
from prometheus_client.parser import text_string_to_metric_families
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from polyhead.serve.exposition import joined_counts
from polyhead.serve.run import bound
from polyhead.serve.workers import VARIABLE, CountsOfAll, Supervisor, WorkerPlace
from support.admin_server import add, make

SOURCE = Path(__file__).parents[2] / "src"
LONGEST = 120.0  # seconds that a test waits for processes before it fails
# A worker without a bundle: it answers its own process id, and does as a file tells it.
WORKER = """
import asyncio, os, signal, socket, sys
from polyhead.serve.workers import WorkerPlace

place = WorkerPlace.found(os.environ)
(listening,) = place.take()

async def answer(reader, writer):
    line = await reader.readline()
    if line == b"die\\n":
        os.kill(os.getpid(), signal.SIGKILL)
    writer.write(f"{place.number} {os.getpid()} {len(os.sched_getaffinity(0))}\\n".encode())
    await writer.drain()
    writer.close()

async def main():
    if len(sys.argv) > 1:
        sys.exit(int(sys.argv[1]))
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    server = await asyncio.start_server(answer, sock=listening)
    place.begin()
    await stop.wait()

asyncio.run(main())
"""


def place(number=1, of=2, processors=(0, 1, 2), folder="/nowhere"):
    return WorkerPlace(number=number, of=of, sockets=(), ready=0, alive=0, folder=folder, processors=processors)


def test_processors_are_divided_and_shared_where_there_are_too_few():
    shares = [place(number, 2).share() for number in (1, 2)]
    assert shares == [[0, 2], [1]]
    assert [place(number, 4, (5, 7)).share() for number in (1, 2, 3, 4)] == [[5], [7], [5], [7]]
    assert place(2, 3).others() == [1, 3]


def test_a_place_travels_in_the_environment():
    assert WorkerPlace.found({}) is None
    own = place(2, folder="/tmp/ä b")
    assert WorkerPlace.found({VARIABLE: json.dumps(json.loads(_json(own)))}) == own


def _json(value):
    import msgspec

    return msgspec.json.encode(value)


async def told(port, line=b"who\n"):
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(line)
    answer = await reader.read()
    writer.close()
    return tuple(map(int, answer.split()))


async def until(holds, what):
    end = time.monotonic() + LONGEST
    while not await holds():
        assert time.monotonic() < end, what
        await asyncio.sleep(0.02)


def supervisor(listening, *arguments, workers=2, ready=lambda: None, drain_seconds=10.0):
    return Supervisor(
        [sys.executable, "-c", WORKER, *arguments],
        [listening],
        workers=workers,
        environment=os.environ | {"PYTHONPATH": str(SOURCE)},
        drain_seconds=drain_seconds,
        ready=ready,
    )


@pytest.mark.slow
def test_a_worker_that_died_is_started_again_and_all_end_on_a_signal():
    async def scenario():
        listening, ready = bound("127.0.0.1", 0), asyncio.Event()
        port = listening.getsockname()[1]
        running = asyncio.create_task(supervisor(listening, ready=ready.set).run())
        await asyncio.wait_for(ready.wait(), LONGEST)
        seen = {}

        async def both():
            number, process, cores = await told(port)
            seen[number] = process
            assert cores == max(1, len(os.sched_getaffinity(0)) // 2) or len(os.sched_getaffinity(0)) % 2
            return set(seen) == {1, 2}

        await until(both, "one answers all")
        before = dict(seen)
        with contextlib.suppress(ConnectionError):
            await told(port, b"die\n")

        async def again():
            with contextlib.suppress(ValueError, ConnectionError):
                number, process, _ = await told(port)
                seen[number] = process
            return sum(seen[n] != before[n] for n in seen) == 1

        await until(again, "it is not started again")
        os.kill(os.getpid(), signal.SIGTERM)  # to this process, which supervises
        assert await asyncio.wait_for(running, LONGEST) == 0
        for process in seen.values():
            with pytest.raises(ProcessLookupError):
                os.kill(process, 0)
        listening.close()

    asyncio.run(scenario())


@pytest.mark.slow
def test_a_worker_that_the_system_has_no_room_for_leaves_the_others_answering(monkeypatch):
    """The parent ended with the error, and all workers with it."""
    start, refused = asyncio.create_subprocess_exec, []

    async def scenario():
        listening, ready = bound("127.0.0.1", 0), asyncio.Event()
        port = listening.getsockname()[1]
        running = asyncio.create_task(supervisor(listening, ready=ready.set).run())
        await asyncio.wait_for(ready.wait(), LONGEST)

        async def started(*arguments, **options):
            if not refused:
                refused.append(OSError(errno.ENOMEM, os.strerror(errno.ENOMEM)))
                raise refused[0]
            return await start(*arguments, **options)

        monkeypatch.setattr(asyncio, "create_subprocess_exec", started)
        with contextlib.suppress(ConnectionError):
            await told(port, b"die\n")
        seen = set()

        async def both():
            with contextlib.suppress(ValueError, ConnectionError):
                seen.add((await told(port))[0])
            assert not running.done(), running.exception()
            return seen == {1, 2}

        await until(both, "it is not started again")
        os.kill(os.getpid(), signal.SIGTERM)
        assert await asyncio.wait_for(running, LONGEST) == 0
        listening.close()

    asyncio.run(scenario())
    assert refused


SUPERVISING = """
import asyncio, os, sys
from polyhead.serve.run import bound
from polyhead.serve.workers import Supervisor

ready = lambda: print("ready", flush=True)
command = [sys.executable, "-c", sys.argv[1]]
listening = [bound("127.0.0.1", 0)]
own = lambda: Supervisor(command, listening, workers=2, environment=os.environ, drain_seconds=10.0, ready=ready).run()
sys.exit(asyncio.run(own()))
"""


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_each_signal_lets_workers_end_and_leaves_no_folder(tmp_path, number):
    words = [sys.executable, "-c", SUPERVISING, WORKER]
    environment = os.environ | {"PYTHONPATH": str(SOURCE), "TMPDIR": str(tmp_path)}
    # Under `nohup` tests would hand down that SIGHUP is ignored.
    usual = partial(signal.signal, number, signal.SIG_DFL)
    process = subprocess.Popen(
        words, stdout=subprocess.PIPE, text=True, env=environment, start_new_session=True, preexec_fn=usual
    )
    try:
        assert process.stdout.readline() == "ready\n"
        workers = _children(process.pid)
        assert [path.name for path in tmp_path.iterdir()][0].startswith("polyhead-workers-")
        process.send_signal(number)
        assert process.wait(LONGEST) == 0
        assert list(tmp_path.iterdir()) == []
        for worker in workers:
            with pytest.raises(ProcessLookupError):
                os.kill(worker, 0)
    finally:
        process.kill()
        process.communicate()


@pytest.mark.slow
def test_where_no_worker_can_begin_the_parent_ends_with_its_code():
    async def scenario():
        listening = bound("127.0.0.1", 0)
        assert await asyncio.wait_for(supervisor(listening, "3").run(), LONGEST) == 3
        listening.close()

    asyncio.run(scenario())


FIRST = """# HELP polyhead_passes_total Passes of the encoder.
# TYPE polyhead_passes_total counter
polyhead_passes_total 3.0
# HELP polyhead_answers_total Answers.
# TYPE polyhead_answers_total counter
polyhead_answers_total{task="mood",version="v0001"} 2.0
"""
SECOND = FIRST.replace(" 3.0", " 4.0") + 'polyhead_answers_total{task="a \\"b\\" c",version="v0002"} 9.0\n'


def test_counts_of_all_workers_are_one_text_of_whole_families():
    text = joined_counts({1: FIRST, 2: SECOND})
    families = {family.name: family for family in text_string_to_metric_families(text)}
    assert set(families) == {"polyhead_passes", "polyhead_answers"} and text.count("# TYPE") == 2
    passes = {sample.labels["worker"]: sample.value for sample in families["polyhead_passes"].samples}
    assert passes == {"1": 3.0, "2": 4.0}
    answers = [(s.labels["worker"], s.labels["task"], s.value) for s in families["polyhead_answers"].samples]
    assert answers == [("1", "mood", 2.0), ("2", "mood", 2.0), ("2", 'a "b" c', 9.0)]


@contextlib.asynccontextmanager
async def running(app, listening):
    config = uvicorn.Config(app, log_config=None, lifespan="off", http="httptools")
    server = uvicorn.Server(config)
    server.install_signal_handlers = lambda: None
    task = asyncio.create_task(server._serve([listening]))
    while not server.started:
        await asyncio.sleep(0.01)
    try:
        yield
    finally:
        server.should_exit = True
        await task


def counting(text, key="k"):
    """An application that tells counts to who has the key."""

    async def metrics(request):
        if request.headers.get("authorization") != f"Bearer {key}":
            return PlainTextResponse("no", 401)
        return PlainTextResponse(text)

    return Starlette(routes=[Route("/metrics", metrics), Route("/v1/tasks", lambda _: PlainTextResponse("tasks"))])


def test_any_worker_tells_the_counts_of_all_to_who_has_the_key(tmp_path):
    async def scenario():
        first, second = (place(number, 3, folder=str(tmp_path)) for number in (1, 2))  # the third does not answer
        transport = httpx.ASGITransport(CountsOfAll(counting(FIRST), first))
        async with (
            running(counting(SECOND), second.own_socket()),
            httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client,
        ):
            answer = await client.get("/metrics", headers={"authorization": "Bearer k"})
            assert answer.status_code == 200 and answer.headers["content-type"].startswith("text/plain")
            assert 'passes_total{worker="1"} 3.0' in answer.text and 'passes_total{worker="2"} 4.0' in answer.text
            assert (await client.get("/metrics")).status_code == 401
            assert (await client.get("/v1/tasks")).text == "tasks"

    asyncio.run(scenario())


@pytest.mark.slow
def test_a_server_of_two_workers_answers_changes_and_ends(tmp_path):
    """The command itself: a change of the bundle reaches both, one that is killed comes back, SIGTERM ends all."""
    root = make(tmp_path / "b", "mood", "topics")
    words = ["serve", str(root), "--port", "0", "--workers", "2", "--backend", "reference", "--watch-seconds", "0.1"]
    environment = {k: v for k, v in os.environ.items() if k != VARIABLE} | {"PYTHONPATH": str(SOURCE)}
    process = subprocess.Popen(
        [sys.executable, "-m", "polyhead", *words], stderr=subprocess.PIPE, text=True, env=environment
    )
    try:
        line = process.stderr.readline()
        address = re.search(r"http://\S+", line)[0]
        assert "2 workers" in line
        children = _children(process.pid)
        assert len(children) == 2

        def versions():
            with urllib.request.urlopen(f"{address}/v1/tasks", timeout=LONGEST) as answer:
                return {each["version"] for each in json.load(answer)["tasks"] if each["name"] == "mood"}

        assert versions() == {"v0001"}
        add(root, "mood", 5, replace=True)
        end, same = time.monotonic() + LONGEST, 0
        while same < 12:  # in a row, each by a connection of its own
            same = same + 1 if versions() == {"v0002"} else 0
            assert time.monotonic() < end
            time.sleep(0.01)
        os.kill(children[0], signal.SIGKILL)
        assert all(versions() == {"v0002"} for _ in range(6)), "the other one answers"
        while len(_children(process.pid)) < 2 or children[0] in _children(process.pid):
            assert time.monotonic() < end + LONGEST
            time.sleep(0.05)
        process.terminate()
        assert process.wait(LONGEST) == 0 and _children(process.pid) == []
        with pytest.raises(OSError), socket.create_connection(("127.0.0.1", int(address.rpartition(":")[2])), 1):
            pass
    finally:
        process.kill()
        process.stderr.close()
        process.wait()


def _children(parent):
    path = Path(f"/proc/{parent}/task/{parent}/children")
    return [int(number) for number in path.read_text().split()] if path.exists() else []
