"""A backend over any runtime that compiles graphs: pieces of layers and groups of heads, each compiled once."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache, partial
from typing import Protocol, runtime_checkable

import msgspec
import numpy as np

from polyhead.engine.backends.base import Count, LoadedTask, Stage, TokenBatch, whole
from polyhead.engine.compile.arrangement import Arrangement
from polyhead.engine.compile.compose import composed
from polyhead.engine.compile.heads import compared_outputs
from polyhead.engine.compile.ops import Ops, Runtime, Tensor
from polyhead.engine.compile.program import Graph, GraphCall, Graphs, Program, Recipe
from polyhead.engine.compile.walk import Walk
from polyhead.errors import BackendError
from polyhead.plan import Plan
from polyhead.trunk.data import TrunkData

PROGRAMS = 64  # plans that are remembered


@runtime_checkable
class DescribedRuntime(Protocol):
    """A runtime that says what it computes with; one that does not is labelled by its name and precision alone."""

    version: str  # of its library
    calibration: str  # digest of its scales of int8; "" where it has none, or they lie in no file
    weight_bits: int | None  # of weights in int8, as this processor multiplies them; None in other precisions


class _Loaded(msgspec.Struct, frozen=True, eq=False):
    arranged: Arrangement
    program: Callable[[Plan], Program]
    comparing: Callable[[str], Graph]  # of a task over pairs read separately: its head


class GraphBackend:
    """Runs plans with a runtime's compiled graphs; tasks come and go while it runs.

    Siblings run as one: layers that differ in their arrays alone where all that are loaded are asked, isolated prompts
    before one text, poolers and heads. In deterministic mode nothing runs with anything else: every layer is a graph of
    its own, isolated prompts stand in rows of their own, and poolers and heads in groups of 16 slots, so that one more
    task changes no shape of any product.
    """

    def __init__(
        self, runtime: Runtime, trunk: TrunkData, tasks: Mapping[str, LoadedTask], *, deterministic: bool = False
    ) -> None:
        self.name, self.precision, self.tolerance = runtime.name, runtime.precision, runtime.tolerance
        self.version, self.calibration, self.weight_bits = "", "", None
        if isinstance(runtime, DescribedRuntime):
            self.version, self.calibration = runtime.version, runtime.calibration
            self.weight_bits = runtime.weight_bits
        self.packs = not deterministic
        self._trunk, self._deterministic = trunk, deterministic
        self._graphs, self._count = Graphs(runtime), Count()
        self._changing, self._holding, self._is_compiling = threading.Lock(), threading.Lock(), False
        self._loaded = self._loading(tasks, None)
        self._hold(self._loaded)

    @property
    def layers_run(self) -> int:
        """Layers evaluated so far."""
        return self._count.layers

    def run(self, plan: Plan, batch: TokenBatch) -> dict[str, np.ndarray]:
        """Every task's outputs; raises what any of them fails with."""
        return self.now().run(plan, batch)

    def stages(self, plan: Plan, batch: TokenBatch) -> Iterator[Stage]:
        """The same as soon as each is known; layers above run only when more is asked for."""
        return self.now().stages(plan, batch)

    def compared(self, task: str, first: np.ndarray, second: np.ndarray) -> np.ndarray:
        """Outputs of a task over pairs read separately, from the features of both texts."""
        return self.now().compared(task, first, second)

    def now(self) -> Snapshot:
        """The tasks of this moment, whatever comes and goes; graphs that only they need go with it."""
        loaded = self._loaded
        return Snapshot(loaded, self._count, partial(self._left, loaded), exact=self._deterministic)

    # -- what is loaded ----------------------------------------------------------------------------------------------

    def attach(self, name: str, task: LoadedTask) -> None:
        """Loads one more task, or another in the place of its namesake: compiles what is new, then swaps."""
        with self._changing:
            self._swap({**self._loaded.arranged.tasks, name: task})

    def detach(self, name: str) -> None:
        """Forgets a task, and the graphs that only it needs."""
        with self._changing:
            _task(self._loaded.arranged, name)
            self._swap({one: task for one, task in self._loaded.arranged.tasks.items() if one != name})

    def replace(self, tasks: Mapping[str, LoadedTask]) -> None:
        """Loads these tasks and no others; graphs of what stays are kept."""
        with self._changing:
            self._swap(tasks)

    def _swap(self, tasks: Mapping[str, LoadedTask]) -> None:
        loaded = self._loaded
        try:
            with self._holding:
                self._is_compiling = True
            new = self._loading(tasks, loaded.arranged)
            for call in self._full(new):
                call.graph.ready()
            loaded = new
        finally:
            with self._holding:
                self._loaded, self._is_compiling = loaded, False
                self._hold(loaded)

    def _loading(self, tasks: Mapping[str, LoadedTask], before: Arrangement | None) -> _Loaded:
        arranged = Arrangement(self._trunk, tasks, deterministic=self._deterministic, before=before)
        return _Loaded(
            arranged,
            program=lru_cache(maxsize=PROGRAMS)(partial(composed, arranged, self._graphs)),
            comparing=lru_cache(maxsize=PROGRAMS)(partial(_comparing, arranged, self._graphs)),
        )

    def _full(self, loaded: _Loaded) -> tuple[GraphCall, ...]:
        """The calls of all tasks."""
        return loaded.program(loaded.arranged.plan).calls if loaded.arranged.tasks else ()

    def _hold(self, loaded: _Loaded) -> None:
        tokens = [owner.token for owner in loaded.arranged.owners.values()]
        self._graphs.hold([call.graph for call in self._full(loaded)], tokens)

    def _left(self, loaded: _Loaded) -> None:
        """Of tasks that were replaced: leaves the graphs that they alone need to those who run them."""
        if loaded is self._loaded:
            return
        with self._holding:  # a change that compiles still needs what it found, and holds its own at its end
            if not self._is_compiling:
                self._hold(self._loaded)


class Snapshot:
    """A backend's tasks as they were loaded at one moment."""

    def __init__(self, loaded: _Loaded, count: Count, left: Callable[[], None], *, exact: bool) -> None:
        """`left` is called whenever graphs were made for them."""
        self.packs = not exact
        self._loaded, self._count, self._left, self._exact = loaded, count, left, exact

    def run(self, plan: Plan, batch: TokenBatch) -> dict[str, np.ndarray]:
        """Every task's outputs; raises what any of them fails with."""
        outputs = whole(self._stages(plan, batch, apart=False))
        return {name: outputs[name] for name in self._loaded.program(plan).tasks}

    def stages(self, plan: Plan, batch: TokenBatch) -> Iterator[Stage]:
        """The same as soon as each is known; layers above run only when more is asked for."""
        return self._stages(plan, batch, apart=True)

    def compared(self, task: str, first: np.ndarray, second: np.ndarray) -> np.ndarray:
        """Outputs of a task over pairs read separately, from the features of both texts."""
        graph = self._loaded.comparing(task)
        self._left()
        return np.array(graph({"first": first, "second": second})["out"])

    def _stages(self, plan: Plan, batch: TokenBatch, *, apart: bool) -> Iterator[Stage]:
        program = self._loaded.program(plan)
        self._left()
        if not len(batch.ids):
            outputs = {name: _nothing(self._loaded.arranged, name, batch) for name in program.tasks}
            yield Stage(outputs=outputs, failed={}, layers_left=0)
            return
        walk = Walk(program, batch, count=self._count.add, apart=apart, exact=self._exact)
        yield from walk.stages()


def _comparing(arranged: Arrangement, graphs: Graphs, task: str) -> Graph:
    """The head of a task over pairs read separately; it reads the features of both texts."""
    head = _task(arranged, task).path.head
    own, hidden = arranged.arrays(head.part), arranged.arrays(head.hidden_part or head.part)
    tokens = arranged.tokens(head)

    def build(ops: Ops) -> dict[str, Tensor]:
        return {"out": compared_outputs(ops, head, own, hidden)}

    key = ("pair", head, tokens)
    return graphs.graph(Recipe(key=key, build=build, label=f"head of {task}", layers=False, alone=tokens))


def _task(arranged: Arrangement, name: str) -> LoadedTask:
    if name not in arranged.tasks:
        raise BackendError(f"task '{name}' is not loaded", allowed=list(arranged.tasks))
    return arranged.tasks[name]


def _nothing(arranged: Arrangement, name: str, batch: TokenBatch) -> np.ndarray:
    path, width = arranged.tasks[name].path, arranged.group_of[name].form.form.width
    words = (batch.words.shape[1],) if path.pool.positions == "tokens" else ()
    return np.zeros((0, *words, width if path.head.separate else path.head.width), np.float32)


__all__ = ["GraphBackend"]
