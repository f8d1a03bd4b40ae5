"""Passes beside callers: few inputs and a rest while any wait, many and none else."""

import asyncio
import threading

import pytest

from polyhead.engine.compile.ops import PART
from polyhead.serve import changes, event_loop, service
from polyhead.serve.event_loop import ALONE, FEW, MANY, Pace
from support.admin_server import add, asked, make, served
from support.numpy_graphs import NumpyRuntime


@pytest.fixture
def rests(monkeypatch):
    taken = []
    monkeypatch.setattr(event_loop, "sleep", taken.append)
    return taken


@pytest.fixture
def clock(monkeypatch):
    """A clock that a pass moves."""
    now = [100.0]
    monkeypatch.setattr(event_loop, "perf_counter", lambda: now[0])
    return now


@pytest.mark.parametrize(("seconds", "rest"), [(0.03, 5 * 0.03), (5.0, event_loop.LONGEST_REST)])
def test_a_rest_of_five_times_the_pass_follows_while_callers_wait(rests, clock, seconds, rest):
    with Pace(lambda: True).one_pass():
        clock[0] += seconds
    assert rests == [pytest.approx(rest)]


def test_building_rests_after_each_part_while_callers_wait(rests, clock):
    waiting = [True]

    def build(seconds):
        clock[0] += 9  # between parts
        with PART.get()():
            clock[0] += seconds

    with Pace(lambda: waiting[0]).building():
        build(0.01)
        waiting[0] = False
        build(0.02)
        waiting[0] = True
        build(0.03)
    build(0.04)
    assert rests == [pytest.approx(5 * 0.01), pytest.approx(5 * 0.03)], "none for who builds elsewhere"


def test_the_graph_of_a_change_is_built_in_parts(tmp_path, monkeypatch):
    """While callers wait: a rest for each of three tasks at least."""
    root, parts = make(tmp_path / "b", "mood", "topics", "urgency"), []
    monkeypatch.setattr(event_loop, "sleep", lambda seconds: parts.append(threading.current_thread().name))

    async def scenario():
        async with served(root, backend=NumpyRuntime(), deterministic=False) as (_, serving):
            monkeypatch.setattr(serving.pace, "_is_busy", lambda: True)
            monkeypatch.setattr(changes, "check_new", lambda *given, **named: parts.append("built"))
            add(root, "mood", 8, replace=True)
            await serving.changes.take()

    asyncio.run(scenario())
    assert parts.index("built") >= 3 and parts[0].startswith("polyhead-changes")


def test_who_came_during_the_pass_is_waited_for_too(rests):
    waiting = [False]
    with Pace(lambda: waiting[0]).one_pass():
        waiting[0] = True
    assert len(rests) == 1


def test_without_callers_passes_are_large_and_nothing_rests(rests):
    with ALONE.one_pass():
        pass
    assert not rests and ALONE.at_once == MANY > Pace(lambda: True).at_once == FEW


def test_a_server_is_busy_until_a_second_after_its_last_answer(tmp_path, monkeypatch):
    async def scenario():
        async with served(make(tmp_path / "b", "mood")) as (client, serving):
            now = [service.monotonic() + 60]
            monkeypatch.setattr(service, "monotonic", lambda: now[0])
            assert serving.pace.at_once == MANY
            await asked(client)
            while not serving.queue.is_idle:
                await asyncio.sleep(0.001)
            assert serving.pace.at_once == FEW
            now[0] += 1.5
            assert serving.pace.at_once == MANY

    asyncio.run(scenario())
