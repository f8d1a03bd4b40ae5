"""An event loop that is late: callers' deadlines count from when their requests were there, answers' way included."""

import asyncio
import time

import httpx
import pytest

from polyhead.engine.queue import Queue
from polyhead.serve import event_loop
from polyhead.serve.app import application
from polyhead.serve.event_loop import HALVED, LoopLag
from polyhead.serve.exchange import ARRIVED
from polyhead.serve.formats.asking import for_task
from support.loopback_server import connected, listening, read_all, request_bytes, service_of, tiny_root


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return tiny_root(tmp_path_factory.mktemp("late") / "b")


def test_the_longest_lag_counts_and_fades(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(event_loop, "monotonic", lambda: now[0])
    seen = LoopLag()
    assert seen.seconds == 0
    seen.learn(4.0)
    now[0] += HALVED
    assert seen.seconds == pytest.approx(2)
    seen.learn(1.0)  # shorter than what is left of the longest
    now[0] += 2 * HALVED
    assert seen.seconds == pytest.approx(0.5)
    seen.learn(3.0)
    assert seen.seconds == 3


def asked(root, monkeypatch, deadline, *, age=0.0, late=0.0, is_idle=False):
    """The status of a request that was there `age` seconds before it is read, where the loop is `late`."""
    monkeypatch.setattr(event_loop, "HALVED", 1e6)
    service = service_of(root)
    app = application(service)

    async def waited(scope, receive, send):
        await app({**scope, ARRIVED: time.monotonic() - age}, receive, send)

    async def run():
        await service.start()
        try:
            monkeypatch.setattr(Queue, "is_idle", is_idle)
            service.lag.learn(late)
            async with httpx.AsyncClient(transport=httpx.ASGITransport(waited), base_url="http://x") as client:
                body = {"inputs": "good lamp", "tasks": ["mood"], "options": {"deadline": deadline}}
                return (await client.post("/v1/predict", json=body)).status_code
        finally:
            await service.stop()

    with monkeypatch.context() as monkeypatch:
        return asyncio.run(run())


@pytest.mark.slow
@pytest.mark.parametrize(("age", "late"), [(6.0, 0.0), (0.0, 6.0)], ids=["unread", "late"])
def test_what_a_late_loop_takes_is_not_there_for_the_queue(root, monkeypatch, age, late):
    """Six seconds before it was read, or twice what reading and writing are expected to take by now."""
    assert asked(root, monkeypatch, 5.0, age=age, late=late) == 429
    assert asked(root, monkeypatch, 50.0, age=age, late=late) == 200
    assert asked(root, monkeypatch, 5.0, age=age, late=late, is_idle=True) == (429 if age else 200)


@pytest.mark.slow
@pytest.mark.parametrize("port_of_task", [False, True])
def test_a_connection_says_when_the_whole_request_was_there(root, port_of_task):
    """Not when it began: a caller that sends slowly has its own time for it. Ports of a task pass this on."""
    service, ages = service_of(root), []
    service.metrics.exchange = lambda exchange: ages.append((exchange.age, time.monotonic() - exchange.began))
    whole = request_bytes({"inputs": "good lamp", "tasks": ["mood"], "options": {"deadline": 10}}, close=True)
    wrap = (lambda app: for_task(app, "mood")) if port_of_task else None
    with listening(service, wrap=wrap) as port, connected(port) as own:
        own.sendall(whole[:-1])
        time.sleep(1)
        own.sendall(whole[-1:])
        assert b" 200 " in read_all(own)
    ((age, since_headers),) = ages
    assert age + 0.3 < since_headers
