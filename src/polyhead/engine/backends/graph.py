"""A backend over any runtime that compiles graphs: pieces of layers and groups of heads, each compiled once."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import lru_cache, partial
from pathlib import Path as FilePath

import msgspec
import numpy as np

from polyhead.encoder.data import TrunkData
from polyhead.encoder.shape import WORD_VECTORS
from polyhead.engine.backends.base import (
    Count,
    FeatureBatch,
    LoadedTask,
    StageResults,
    TokenBatch,
    loaded_decoder,
    whole,
)
from polyhead.engine.compile import stored
from polyhead.engine.compile.arrangement import Arrangement
from polyhead.engine.compile.compiled import COMPILED
from polyhead.engine.compile.compose import composed
from polyhead.engine.compile.decoder import GraphDecoder, begin_graph, step_graph
from polyhead.engine.compile.execution import Execution
from polyhead.engine.compile.heads import compared_outputs
from polyhead.engine.compile.ops import Ops, Runtime, Tensor
from polyhead.engine.compile.program import Graph, GraphCall, Graphs, Program, Recipe
from polyhead.engine.compile.state_cache import StateCache
from polyhead.errors import BackendError
from polyhead.plan import TRUNK, Path, Plan

PROGRAMS = 64  # plans that are remembered


class _Loaded(msgspec.Struct, frozen=True, eq=False):
    arranged: Arrangement
    program: Callable[[Plan], Program]
    comparing: Callable[[str], Graph]  # of a task over pairs read separately: its head

    @property
    def full(self) -> tuple[GraphCall, ...]:
        """The calls of all tasks."""
        return self.program(self.arranged.plan).calls if self.arranged.tasks else ()


class GraphBackend:
    """Runs plans with a runtime's compiled graphs; tasks come and go while it runs.

    Tasks that differ only in their arrays run as one graph: their own layers, if all loaded tasks are requested;
    isolated prompts before the same text; poolers and heads. In deterministic mode every layer is a graph of its own,
    isolated prompts take rows of their own, and poolers and heads run in groups of 16 slots, so that one more task
    changes the shape of no product.
    """

    def __init__(
        self, runtime: Runtime, trunk: TrunkData, tasks: Mapping[str, LoadedTask], *, deterministic: bool = False
    ) -> None:
        self.name, self.precision, self.tolerance = runtime.name, runtime.precision, runtime.tolerance
        # A runtime that does not say these is labelled by its name and precision alone.
        self.version: str = getattr(runtime, "version", "")
        self.calibration: str = getattr(runtime, "calibration", "")
        self.weight_bits: int | None = getattr(runtime, "weight_bits", None)
        self.streams: int = getattr(runtime, "streams", 1)
        self.packs, self.breadth = not deterministic, 1
        self.state_cache = StateCache() if deterministic else None  # in that mode a row is what its text makes it
        self._trunk, self._deterministic = trunk, deterministic
        self._graphs, self._count = Graphs(runtime), Count()
        self._changing, self._holding, self._is_compiling = threading.Lock(), threading.Lock(), False
        self._loaded = self._loading(tasks, None)
        self._whole = self  # `now` gives copies, which keep their tasks
        self._hold()

    @property
    def layers_run(self) -> int:
        return self._count.layers

    def now(self) -> GraphBackend:
        return copy.copy(self)

    def run(self, plan: Plan, batch: TokenBatch) -> dict[str, np.ndarray]:
        loaded = self._loaded
        outputs = whole(self._stages(loaded, plan, batch, apart=False))
        return {name: outputs[name] for name in loaded.program(plan).tasks}

    def stages(self, plan: Plan, batch: TokenBatch) -> Iterator[StageResults]:
        return self._stages(self._loaded, plan, batch, apart=True)

    def compared(self, task: str, first: np.ndarray, second: np.ndarray) -> np.ndarray:
        loaded = self._loaded
        graph = loaded.comparing(task)
        self._release_replaced(loaded)
        return np.array(graph({"first": first, "second": second})["out"])

    def decoder(self, task: str) -> GraphDecoder:
        loaded = self._loaded
        decoder, loaded_task = loaded_decoder(loaded.arranged.tasks, task)
        head, trunk = loaded_task.path.head, loaded.arranged.arrays(TRUNK)
        tokens, arrays = loaded.arranged.tokens(head), loaded.arranged.arrays(head.part)
        label = f"decoder of {task}"
        builds = {"begin": begin_graph(decoder, arrays), "step": step_graph(decoder, arrays, trunk[WORD_VECTORS])}
        begin, step = (
            self._graphs.graph(
                Recipe(key=(name, head, tokens), build=build, label=label, layers=False, exact=True, alone=tokens)
            )
            for name, build in builds.items()
        )
        self._release_replaced(loaded)
        return GraphDecoder(decoder, arrays, trunk, begin=begin, step=step)

    def features(self, paths: Sequence[Path], batch: TokenBatch) -> list[np.ndarray]:
        values, layers = stored.features(self._loaded.arranged, self._graphs, paths, batch)
        self._count.add(layers)
        return values

    def heads(self, tasks: Sequence[str], features: FeatureBatch) -> dict[str, np.ndarray]:
        loaded = self._loaded
        outputs = stored.heads(loaded.arranged, self._graphs, tasks, features)
        self._release_replaced(loaded)
        return outputs

    def _stages(self, loaded: _Loaded, plan: Plan, batch: TokenBatch, *, apart: bool) -> Iterator[StageResults]:
        program = loaded.program(plan)
        self._release_replaced(loaded)
        if not len(batch.ids):
            outputs = {name: _nothing(loaded.arranged, name, batch) for name in program.tasks}
            yield StageResults(outputs=outputs, failed={}, layers_left=0)
            return
        exact, cache = self._deterministic, self.state_cache
        yield from Execution(program, batch, count=self._count.add, apart=apart, exact=exact, cache=cache).stages()

    def keep_states(self, bundle: FilePath, most: int) -> None:
        """Keeps up to `most` bytes of states from now on, with those that `store_states` of this bundle has stored."""
        if self.state_cache is not None:
            self.state_cache.most = most
            if most:
                COMPILED.take_states(self._graphs.runtime, bundle, self.state_cache.load)

    def store_states(self, bundle: FilePath) -> None:
        """Stores the states that are kept for later processes, if there are new ones."""
        if self.state_cache is not None and self.state_cache.is_new:
            COMPILED.put_states(self._graphs.runtime, bundle, self.state_cache.dump())

    def ready(self) -> None:
        """Compiles what a call of all tasks runs, two graphs at once; what cannot be compiled fails when called.

        Not layers, where states are kept: they may not run.
        """

        def compiled(call: GraphCall) -> None:
            with suppress(Exception):
                call.graph.ready()

        with ThreadPoolExecutor(2, "polyhead-compile") as pool:
            list(pool.map(compiled, self._needed(self._loaded)))

    def replace(self, tasks: Mapping[str, LoadedTask]) -> None:
        """Compiles new tasks, then swaps; the graphs of unchanged tasks are kept."""
        with self._changing:
            loaded = self._loaded
            try:
                with self._holding:
                    self._is_compiling = True
                new = self._loading(tasks, loaded.arranged)
                for call in self._needed(new):
                    call.graph.ready()
                loaded = new
            finally:
                with self._holding:
                    self._loaded, self._is_compiling = loaded, False
                    self._hold()

    def _needed(self, loaded: _Loaded) -> Iterator[GraphCall]:
        """The calls of all tasks whose graphs are compiled before they are called."""
        has_states = self.state_cache is not None and self.state_cache.size > 0
        return (call for call in loaded.full if call.answers or not has_states)

    def _loading(self, tasks: Mapping[str, LoadedTask], before: Arrangement | None) -> _Loaded:
        arranged = Arrangement(self._trunk, tasks, deterministic=self._deterministic, before=before)
        return _Loaded(
            arranged,
            program=lru_cache(maxsize=PROGRAMS)(partial(composed, arranged, self._graphs)),
            comparing=lru_cache(maxsize=PROGRAMS)(partial(_comparing, arranged, self._graphs)),
        )

    def _hold(self) -> None:
        arranged = self._loaded.arranged
        tokens = [owner.token for owner in arranged.owners.values()]
        self._graphs.hold([call.graph for call in self._loaded.full], tokens, list(arranged.mapped()))

    def _release_replaced(self, loaded: _Loaded) -> None:
        """Releases the graphs that only tasks replaced since need; calls that still run them keep them."""
        backend = self._whole
        if loaded is backend._loaded:
            return
        with backend._holding:  # a change that compiles still needs what it found, and holds its own at its end
            if not backend._is_compiling:
                backend._hold()


def _comparing(arranged: Arrangement, graphs: Graphs, task: str) -> Graph:
    """The head of a task over pairs read separately; it reads the features of both texts."""
    if task not in arranged.tasks:
        raise BackendError(f"task '{task}' is not loaded", allowed=list(arranged.tasks))
    head = arranged.tasks[task].path.head
    head_arrays, hidden = arranged.arrays(head.part), arranged.arrays(head.hidden_part or head.part)
    tokens = arranged.tokens(head)

    def build(ops: Ops) -> dict[str, Tensor]:
        return {"out": compared_outputs(ops, head, head_arrays, hidden)}

    key = ("pair", head, tokens)
    return graphs.graph(Recipe(key=key, build=build, label=f"head of {task}", layers=False, alone=tokens))


def _nothing(arranged: Arrangement, name: str, batch: TokenBatch) -> np.ndarray:
    path, width = arranged.tasks[name].path, arranged.group_of[name].form.form.width
    if path.pool.positions == "all":
        return np.zeros((0, batch.ids.shape[1], width), np.float32)
    words = (batch.words.shape[1],) if path.pool.positions == "tokens" else ()
    return np.zeros((0, *words, width if path.head.separate else path.head.width), np.float32)
