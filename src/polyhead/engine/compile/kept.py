"""Compiled graphs, each once: known by what they compute, compiled when needed, forgotten when nothing needs them."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Collection, Hashable, Mapping
from time import monotonic

import numpy as np

from polyhead.config import Value
from polyhead.engine.compile.ops import Build, Compiled, Runtime
from polyhead.errors import without_frames

Token = tuple[str, int]  # an owner of arrays and which of its contents
RARE = 64  # most graphs that stay compiled beside those which a call of all tasks runs
PATIENCE = 60.0  # seconds before a graph that could not be compiled is tried again: there may be room by then
_CLOCK = itertools.count()


class Recipe(Value, eq=False):
    """What a graph is made of."""

    key: Hashable  # equal keys, equal graphs
    build: Build
    label: str  # for errors
    layers: bool  # as in `Runtime.compile`
    # Of what may be asked without its siblings: kept for as long as these are loaded.
    alone: tuple[Token, ...] = ()
    outputs: tuple[str, ...] = ()  # of poolers and heads: the name of each slot's output


class Graph:
    """A graph that is compiled by its first call; other graphs may run and be compiled meanwhile."""

    def __init__(self, recipe: Recipe, make: Callable[[Graph], Compiled]) -> None:
        self.recipe, self.used = recipe, next(_CLOCK)
        self.compiled: Compiled | None = None
        self._make, self._lock = make, threading.Lock()
        # Why it could not be compiled, and until when that is not tried again.
        self._failed: Exception | None = None
        self._again = 0.0

    def __call__(self, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """The outputs by name; they hold until the same thread calls again."""
        self.used = next(_CLOCK)
        return self.ready()(inputs)

    def ready(self) -> Compiled:
        """Compiled, now at the latest; a graph that could not be compiled is not tried again for a while."""
        compiled = self.compiled
        if compiled is None:
            with self._lock:
                if self._failed is not None and monotonic() < self._again:
                    raise self._failed.with_traceback(None)
                try:
                    compiled = self.compiled = self.compiled or self._make(self)
                except Exception as error:
                    self._failed, self._again = without_frames(error), monotonic() + PATIENCE
                    raise
        return compiled


class Graphs:
    """All graphs of a backend."""

    def __init__(self, runtime: Runtime) -> None:
        self.runtime, self._lock = runtime, threading.Lock()
        self._known: dict[Hashable, Graph] = {}
        self._held: frozenset[Graph] = frozenset()

    def graph(self, recipe: Recipe) -> Graph:
        """The graph of this recipe, the same for each with its key."""
        with self._lock:
            return self._known.setdefault(recipe.key, Graph(recipe, self._made))

    def hold(self, graphs: Collection[Graph], tokens: Collection[Token]) -> None:
        """Keeps these, and those of single tasks or steps that are loaded; a call that runs others ends as it began."""
        with self._lock:
            self._held, live = frozenset(graphs), set(tokens)
            self._known = {
                key: graph
                for key, graph in self._known.items()
                if graph in self._held or (graph.recipe.alone and live.issuperset(graph.recipe.alone))
            }

    def _made(self, graph: Graph) -> Compiled:
        """The graph compiled, in the place of the one that was needed least lately where there are many."""
        recipe = graph.recipe
        compiled = self.runtime.compile(recipe.build, label=recipe.label, layers=recipe.layers)
        with self._lock:
            rare = [one for one in self._known.values() if one.compiled is not None and one not in self._held]
            over = len(rare) + (graph not in self._held) - RARE
            for one in sorted(rare, key=lambda one: one.used)[: max(0, over)]:
                one.compiled = None
        return compiled
