"""Compiled graphs that are kept: one that cannot be compiled is tried again, but not by every batch."""

import threading

import pytest

from polyhead.engine.compile import program
from polyhead.engine.compile.program import PATIENCE, Graphs, Recipe


class Runtime:
    """Compiles to a graph that gives its number; fails while it is `broken`."""

    def __init__(self):
        self.broken, self.tries = None, 0

    def compile(self, build, *, label, layers, exact=False):
        self.tries += 1
        if self.broken is not None:
            raise self.broken
        number = self.tries
        return lambda inputs: {"number": number}


@pytest.fixture
def clock(monkeypatch):
    now = [1000.0]
    monkeypatch.setattr(program, "monotonic", lambda: now[0])
    return now


def recipe(key):
    return Recipe(key=key, build=lambda ops: {}, label=key, layers=False)


def test_a_graph_that_failed_fails_at_once_until_its_patience_is_over(clock):
    runtime = Runtime()
    graph, runtime.broken = Graphs(runtime).graph(recipe("a")), MemoryError("no room for it")
    with pytest.raises(MemoryError, match="no room"):
        graph({})
    clock[0] += PATIENCE - 1
    with pytest.raises(MemoryError, match="no room for it"):
        graph({})
    assert runtime.tries == 1
    runtime.broken = None
    clock[0] += 2
    assert graph({}) == graph({}) == {"number": 2}


def test_a_failure_is_its_own_graphs_alone(clock):
    runtime = Runtime()
    graphs, runtime.broken = Graphs(runtime), ValueError("no such product")
    with pytest.raises(ValueError, match="no such product"):
        graphs.graph(recipe("a"))({})
    runtime.broken = None
    assert graphs.graph(recipe("b"))({}) == {"number": 2}
    with pytest.raises(ValueError, match="no such product"):
        graphs.graph(recipe("a"))({})


def test_threads_that_ask_for_a_graph_at_once_compile_it_once():
    runtime, inside, go = Runtime(), threading.Event(), threading.Event()
    compiled = runtime.compile

    def slow(*given, **options):
        inside.set()
        assert go.wait(10)
        return compiled(*given, **options)

    runtime.compile = slow
    graph, found = Graphs(runtime).graph(recipe("a")), []
    threads = [threading.Thread(target=lambda: found.append(graph({})["number"])) for _ in range(4)]
    for thread in threads:
        thread.start()
    assert inside.wait(10)
    go.set()
    for thread in threads:
        thread.join(10)
    assert found == [1, 1, 1, 1]
