"""A backend over any runtime that compiles graphs: pieces of layers and groups of heads, each compiled once."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterator, Mapping

import msgspec
import numpy as np

from polyhead.engine.backends.base import LoadedTask, Stage, TokenBatch, whole
from polyhead.engine.graph.compose import composed
from polyhead.engine.graph.kept import Graphs, Recipe
from polyhead.engine.graph.live import Live
from polyhead.engine.graph.ops import Ops, Runtime, Tensor
from polyhead.engine.graph.pairs import compared_outputs
from polyhead.engine.graph.program import Call, Program
from polyhead.engine.graph.walk import Walk
from polyhead.errors import BackendError
from polyhead.plan import Plan
from polyhead.trunk_data import TrunkData

PROGRAMS = 64  # plans that are remembered


class _Loaded(msgspec.Struct, frozen=True, eq=False):
    live: Live
    program: Callable[[Plan], Program]


class GraphBackend:
    """Runs plans with a runtime's compiled graphs; tasks come and go while it runs.

    Siblings run as one: layers that differ in their arrays alone where all that are loaded are asked, isolated prompts
    before one text, poolers and heads. In deterministic mode nothing runs with anything else: every layer is a graph of
    its own, isolated prompts stand in rows of their own, and poolers and heads in groups of 16 slots, so that one more
    task changes no shape of any product.
    """

    def __init__(
        self,
        runtime: Runtime,
        trunk: TrunkData,
        tasks: Mapping[str, LoadedTask],
        *,
        deterministic: bool = False,
    ) -> None:
        self.name, self.precision, self.tolerance = runtime.name, runtime.precision, runtime.tolerance
        self.layers_run, self.packs = 0, not deterministic
        self._trunk, self._deterministic = trunk, deterministic
        self._graphs = Graphs(runtime)
        self._counting, self._changing = threading.Lock(), threading.Lock()
        self._loaded = self._loading(tasks, None)
        self._hold(self._loaded)

    def run(self, plan: Plan, batch: TokenBatch) -> dict[str, np.ndarray]:
        """Every task's outputs; raises what any of them fails with."""
        loaded = self._loaded
        found = whole(self._stages(loaded, plan, batch, apart=False))
        return {name: found[name] for name in loaded.program(plan).tasks}

    def stages(self, plan: Plan, batch: TokenBatch) -> Iterator[Stage]:
        """The same as soon as each is known; layers above run only when more is asked for."""
        return self._stages(self._loaded, plan, batch, apart=True)

    def compared(self, task: str, first: np.ndarray, second: np.ndarray) -> np.ndarray:
        """Outputs of a task over pairs read separately, from the features of both texts."""
        live = self._loaded.live
        head = self._task(live, task).path.head
        own, hidden = live.arrays(head.part), live.arrays(head.hidden_part or head.part)

        def build(ops: Ops) -> dict[str, Tensor]:
            return {"out": compared_outputs(ops, head, own, hidden)}

        tokens = live.tokens(head)
        label = f"head of {task}"
        graph = self._graphs.graph(
            Recipe(
                key=("pair", head, tokens),
                build=build,
                label=label,
                layers=False,
                alone=tokens,
            )
        )
        return np.array(graph({"first": first, "second": second})["out"])

    # -- what is loaded ----------------------------------------------------------------------------------------------

    def attach(self, name: str, task: LoadedTask) -> None:
        """Loads one more task, or another in the place of its namesake: compiles what is new, then swaps."""
        with self._changing:
            self._swap({**self._loaded.live.tasks, name: task})

    def detach(self, name: str) -> None:
        """Forgets a task, and the graphs that only it needs."""
        with self._changing:
            self._task(self._loaded.live, name)
            self._swap({one: task for one, task in self._loaded.live.tasks.items() if one != name})

    def replace(self, tasks: Mapping[str, LoadedTask]) -> None:
        """Loads these tasks and no others; graphs of what stays are kept."""
        with self._changing:
            self._swap(tasks)

    def _swap(self, tasks: Mapping[str, LoadedTask]) -> None:
        try:
            loaded = self._loading(tasks, self._loaded.live)
            for call in self._full(loaded):
                call.graph.ready()
        except BaseException:
            self._hold(self._loaded)
            raise
        self._loaded = loaded
        self._hold(loaded)

    def _loading(self, tasks: Mapping[str, LoadedTask], before: Live | None) -> _Loaded:
        live = Live(self._trunk, tasks, deterministic=self._deterministic, before=before)
        program = functools.lru_cache(maxsize=PROGRAMS)(functools.partial(composed, live, self._graphs))
        return _Loaded(live, program)

    def _full(self, loaded: _Loaded) -> tuple[Call, ...]:
        """The calls of all tasks."""
        return loaded.program(loaded.live.plan).calls if loaded.live.tasks else ()

    def _hold(self, loaded: _Loaded) -> None:
        tokens = [owner.token for owner in loaded.live.owners.values()]
        self._graphs.hold([call.graph for call in self._full(loaded)], tokens)

    # -- runs --------------------------------------------------------------------------------------------------------

    def _stages(self, loaded: _Loaded, plan: Plan, batch: TokenBatch, *, apart: bool) -> Iterator[Stage]:
        program = loaded.program(plan)
        if not len(batch.ids):
            outputs = {name: _nothing(loaded.live, name, batch) for name in program.tasks}
            yield Stage(outputs=outputs, failed={}, layers_left=0)
            return
        walk = Walk(program, batch, count=self._count, apart=apart, exact=self._deterministic)
        yield from walk.stages()

    def _count(self, layers: int) -> None:
        with self._counting:
            self.layers_run += layers

    def _task(self, live: Live, name: str) -> LoadedTask:
        if name not in live.tasks:
            raise BackendError(f"task '{name}' is not loaded", allowed=list(live.tasks))
        return live.tasks[name]


def _nothing(live: Live, name: str, batch: TokenBatch) -> np.ndarray:
    path, width = live.tasks[name].path, live.group_of[name].form.form.width
    words = (batch.words.shape[1],) if path.pool.positions == "tokens" else ()
    return np.zeros((0, *words, width if path.head.separate else path.head.width), np.float32)


__all__ = ["GraphBackend"]
