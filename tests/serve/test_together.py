"""Callers that ask at once: one batch of the encoder, each answered as if it were alone; and far too many of them."""

import asyncio
import resource
from collections import Counter

import httpx
import msgspec
import pytest

from polyhead.engine.inputs import Passage
from polyhead.engine.queue import QueueLimits
from polyhead.serve.app import application
from polyhead.serve.settings import ServeSettings
from polyhead.text.question import Question
from support.loopback_server import TASKS, held, service_of, tiny_root
from support.tiny_project import messages

SETS = (("mood",), ("topics", "urgency"), ("names",), TASKS, ("urgency", "mood", "names"))
TOLERANCE = 1e-5


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return tiny_root(tmp_path_factory.mktemp("together") / "b")


def calls():
    """A call for each set of tasks, with texts of its own, and one each with other inputs."""
    texts = [row["text"] for row in messages(3 * len(SETS))]
    made = [([(text,) for text in texts[3 * i : 3 * i + 3]], tasks) for i, tasks in enumerate(SETS)]
    made.append(([("good lamp", "the lamp is happy"), ("sad phone",)], ("same", "alike", "mood")))
    made.append(([Passage(question="where is it", context="the lamp is in the box")], ("where",)))
    made.append(([Question(text="which one", options=("good", "lamp", "late"))], ("reply",)))
    return made


@pytest.mark.parametrize("deterministic", [True, False], ids=["deterministic", "fast"])
def test_sets_of_tasks_share_a_batch_and_are_answered_as_alone(root, deterministic, monkeypatch):
    service, facts = service_of(root, deterministic=deterministic), []

    async def run():
        await service.start()
        service.observers.append(facts.append)
        try:
            alone = [await service.ask(*call) for call in calls()]
            while sum(each.inputs for each in facts) < 19:  # told beside the answers, so perhaps after them
                await asyncio.sleep(0.01)
            with held(monkeypatch) as (begun, go, _):
                first = asyncio.ensure_future(service.ask([("good lamp",)], ("mood",)))
                await asyncio.to_thread(begun.wait, 30)
                facts.clear()
                waiting = asyncio.gather(*(service.ask(*call) for call in calls()))
                await asyncio.sleep(0)
                assert service.queue.waiting == 19
                go.set()
                return alone, (await waiting, await first)[0]
        finally:
            await service.stop()

    alone, together = asyncio.run(run())
    # Beside the one that was held: a batch for all calls whose tasks run the same layers and read the same inputs.
    lanes = Counter(ticket.loaded.runs_alike(ticket.tasks) for ticket in together)
    assert sorted(each.tickets for each in facts) == sorted([1, *lanes.values()]) and max(lanes.values()) >= 3
    assert sum(each.inputs for each in facts) == 1 + 19
    for one, other in zip(alone, together, strict=True):
        for result, expected in zip(other.results, one.results, strict=True):
            assert result.receipt == expected.receipt
            if deterministic:
                assert result == expected
            else:
                _close(msgspec.to_builtins(expected.answers), msgspec.to_builtins(result.answers))


def _close(one, other):
    if isinstance(one, dict):
        assert one.keys() == other.keys()
        for key in one:
            _close(one[key], other[key])
    elif isinstance(one, list | tuple):
        for a, b in zip(one, other, strict=True):
            _close(a, b)
    elif isinstance(one, float):
        assert other == pytest.approx(one, abs=TOLERANCE)
    else:
        assert one == other


@pytest.mark.slow
def test_ten_times_too_many_are_refused_or_answered_in_time(root):
    """Only 429, and answers within the deadline; what waits is bounded, and afterwards all is as before."""
    waiting, timeout = 64, 20.0
    settings = ServeSettings(queue=QueueLimits(waiting_inputs=waiting), timeout=timeout)
    service, most = service_of(root, settings), [0]

    async def run():
        transport = httpx.ASGITransport(application(service))
        loop, statuses, slowest = asyncio.get_running_loop(), Counter(), 0.0
        await service.start()
        try:
            async with httpx.AsyncClient(transport=transport, base_url="http://x", timeout=60) as client:

                async def one(number):
                    nonlocal slowest
                    began = loop.time()
                    body = {"inputs": [f"good lamp {number}"] * 4, "tasks": list(TASKS)}
                    answer = await client.post("/v1/predict", json=body)
                    statuses[answer.status_code] += 1
                    most[0] = max(most[0], service.queue.waiting)
                    if answer.status_code == 200:
                        slowest = max(slowest, loop.time() - began)
                        assert all("late" not in result for result in answer.json()["results"])

                memory = []
                for _ in range(4):
                    await asyncio.gather(*(one(number) for number in range(10 * waiting // 4)))
                    memory.append(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
                after = [await client.post("/v1/predict", json={"inputs": "good lamp"}) for _ in range(3)]
                return statuses, slowest, memory, [answer.status_code for answer in after]
        finally:
            await service.stop()

    statuses, slowest, memory, after = asyncio.run(run())
    assert set(statuses) == {200, 429} and statuses[429] > 100 and statuses[200] >= 4 * waiting // 4
    assert most[0] <= waiting and slowest < timeout
    assert memory[-1] - memory[0] < 64 * 1024  # KiB: the first burst is as large as the last
    assert after == [200] * 3
