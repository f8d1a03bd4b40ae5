"""Compiled graphs, each once: known by what they compute, compiled when needed, forgotten when nothing needs them."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Collection, Hashable, Mapping

import numpy as np

from polyhead.engine.graph.ops import Build, Compiled, Runtime

Token = tuple[str, int]  # an owner of arrays and which of its contents
RARE = 64  # most graphs that stay compiled beside those which a call of all tasks runs
_CLOCK = itertools.count()


class Graph:
    """A graph that is compiled by its first call; other graphs may run and be compiled meanwhile."""

    def __init__(
        self,
        compile_: Callable[[Graph], Compiled],
        build: Build,
        label: str,
        tokens: frozenset[Token],
        layers: bool,
    ) -> None:
        self.build, self.label, self.tokens, self.layers = build, label, tokens, layers
        self.used = next(_CLOCK)
        self.compiled: Compiled | None = None
        self._compile, self._lock = compile_, threading.Lock()

    def __call__(self, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """The outputs by name; they hold until the same thread calls again."""
        self.used = next(_CLOCK)
        return self.ready()(inputs)

    def ready(self) -> Compiled:
        """Compiled, now at the latest."""
        found = self.compiled
        if found is None:
            with self._lock:
                found = self.compiled = self.compiled or self._compile(self)
        return found


class Graphs:
    """All graphs of a backend."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime, self._lock = runtime, threading.Lock()
        self._known: dict[Hashable, Graph] = {}
        self._held: frozenset[Graph] = frozenset()

    def graph(
        self, key: Hashable, build: Build, *, label: str, tokens: Collection[Token], layers: bool
    ) -> Graph:
        """The graph of this key; `tokens` are the arrays in it beside the trunk's, `layers` as in `Runtime.compile`."""
        with self._lock:
            if key not in self._known:
                self._known[key] = Graph(self._compiled, build, label, frozenset(tokens), layers)
            return self._known[key]

    def hold(self, graphs: Collection[Graph], tokens: Collection[Token]) -> None:
        """Keeps these, and of all others those whose arrays are among the tokens; the rest is forgotten.

        A call that runs one meanwhile ends as it began.
        """
        with self._lock:
            self._held, live = frozenset(graphs), frozenset(tokens)
            self._known = {
                key: graph
                for key, graph in self._known.items()
                if graph in self._held or (graph.tokens and graph.tokens <= live)
            }

    def _compiled(self, graph: Graph) -> Compiled:
        made = self._runtime.compile(graph.build, label=graph.label, layers=graph.layers)
        with self._lock:
            rare = [one for one in self._known.values() if one.compiled is not None and one not in self._held]
            over = len(rare) + (graph not in self._held) - RARE
            for one in sorted(rare, key=lambda one: one.used)[: max(0, over)]:
                one.compiled = None
        return made
