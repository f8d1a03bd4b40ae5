"""What `engine_plans.py` times: plans of drawn weights on a backend, the bare trunk beside them, and their batches.

Neither side tokenizes: both get the batches that a session makes of the texts. The bare trunk is its own layers as one
graph, directly built and without heads, over the same rows, packed where the plan's are packed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from polyhead.encoder.data import TextSettings, TrunkData
from polyhead.encoder.shape import Architecture, trunk_arrays
from polyhead.engine.backends import open_runtime
from polyhead.engine.backends.base import LoadedTask, TokenBatch
from polyhead.engine.backends.graph import GraphBackend
from polyhead.engine.batch import batched, readings_of
from polyhead.engine.compile.encoder import LayerSpan, span_graph
from polyhead.engine.compile.layout import RowLayout, Shape
from polyhead.engine.compile.ops import Runtime
from polyhead.engine.readers import readers_by_type
from polyhead.plan import TRUNK, Embed, Layers, Path, Plan, Pool, cost, merge
from polyhead.project.strategies import Strategy, prompt_groups
from polyhead.tasks.task import Task
from polyhead.text.tokenize import Tokenizer
from polyhead.values import Value

SPREAD = 0.02  # of drawn weights, as BERT's are begun with: activations stay in range
Run = Callable[[], object]


class Machine(Value, eq=False):
    """A trunk on a runtime: everything that is compared with each other."""

    runtime: Runtime
    trunk: TrunkData
    digest: str

    @classmethod
    def of(cls, runtime: Runtime, trunk: TrunkData) -> Machine:
        return cls(runtime=runtime, trunk=trunk, digest=trunk.digest)

    def bare(self) -> Callable[[TokenBatch], np.ndarray]:
        """The trunk without tasks: from a batch to the last states."""
        shape = self.trunk.architecture
        node = Layers(start=0, stop=shape.layers, weights=TRUNK)
        span = LayerSpan(nodes=(node,), inputs=(), keep=(shape.layers,), begins=True)
        build = span_graph(span, shape, {TRUNK: self.trunk.arrays})
        graph = self.runtime.compile(build, label="trunk", layers=True)
        rows = Shape(first_position=shape.first_position, segments=shape.segments, width=shape.width)
        inputs = ("ids", "positions", "added", *(["segments"] if shape.segments else []))

        def run(batch: TokenBatch) -> np.ndarray:
            layout = RowLayout(batch, rows)
            (states,) = graph({name: getattr(layout, name) for name in inputs}).values()
            return states

        return run

    def tasks(self, strategies: Sequence[Strategy]) -> Tasks:
        """A task of two labels for each strategy, with drawn arrays, loaded."""
        named = [
            Task(name=f"t{number}", kind="single_label", labels=("no", "yes")) for number in range(len(strategies))
        ]
        both, shape = list(zip(named, strategies, strict=True)), self.trunk.architecture
        groups = prompt_groups(both)
        paths = {
            task.name: strategy.path(task, trunk=self.digest, shape=shape, group=groups[task.name])
            for task, strategy in both
        }
        backend = GraphBackend(self.runtime, self.trunk, drawn_tasks(paths, shape))
        return Tasks(backend=backend, paths=paths, shape=shape)

    def batches(self, texts: Sequence[str], *, max_tokens: int = 128) -> list[TokenBatch]:
        """The batches that a session makes of these texts."""
        tokenizer = Tokenizer(self.trunk.tokenizer, TextSettings(max_tokens=max_tokens))
        task = Task(name="t", kind="single_label", labels=("no", "yes"))
        (readings,) = readings_of([(text,) for text in texts], readers_by_type({"t": task}), tokenizer, None)
        made = batched(readings, tokenizer, deterministic=False, width=self.trunk.architecture.width)
        return [tokens for _, tokens in made]

    def bare_flops(self, tokens: int) -> int:
        """FLOPs of the trunk alone on one text."""
        shape = self.trunk.architecture
        nodes = (Embed(trunk=self.digest), Layers(start=0, stop=shape.layers), Pool(positions="all"))
        return cost.flops(merge({"t": Path(nodes=nodes)}), shape, tokens)


class Tasks(Value, eq=False):
    """Loaded tasks, and their paths."""

    backend: GraphBackend
    paths: dict[str, Path]
    shape: Architecture

    def plan(self, names: Sequence[str] | None = None) -> Plan:
        """Of some of the tasks, or of all."""
        return merge({name: self.paths[name] for name in names or self.paths})

    def run(self, batches: Sequence[TokenBatch], names: Sequence[str] | None = None) -> Run:
        """Answers these batches with some of the tasks, or with all."""
        plan, run = self.plan(names), self.backend.run
        return lambda: [run(plan, batch) for batch in batches]


def over(bare: Callable[[TokenBatch], np.ndarray], batches: Sequence[TokenBatch]) -> Run:
    """The bare trunk over these batches."""
    return lambda: [bare(batch) for batch in batches]


def drawn_trunk(shape: Architecture, tokenizer: bytes) -> TrunkData:
    """A trunk of this shape with drawn weights."""
    rng = np.random.default_rng(0)
    arrays = {name: _drawn(name, size, rng) for name, size in trunk_arrays(shape)}
    settings = TextSettings(max_tokens=shape.max_tokens)
    return TrunkData(name="drawn", architecture=shape, arrays=arrays, tokenizer=tokenizer, settings=settings)


def drawn_tasks(paths: Mapping[str, Path], shape: Architecture) -> dict[str, LoadedTask]:
    """Each path with the arrays of every owner on it, drawn once for all paths that read them."""
    rng = np.random.default_rng(1)
    owned: dict[str, dict[str, np.ndarray]] = {}
    tasks_by_name: dict[str, LoadedTask] = {}
    for name, path in paths.items():
        read: dict[str, dict[str, np.ndarray]] = {}
        for array in cost.arrays_of_path(path, shape):
            if array.owner != TRUNK:
                known = owned.setdefault(array.owner, {})
                if array.name not in known:
                    known[array.name] = _drawn(array.name, array.shape, rng)
                read.setdefault(array.owner, {})[array.name] = known[array.name]
        tasks_by_name[name] = LoadedTask(path=path, arrays=read.pop(path.head.part), others=read)
    return tasks_by_name


def runtime_of(backend: str, precision: str | None, threads: int) -> Runtime:
    """The runtime; None is its own precision. OpenVINO takes the threads, others all that there are."""
    if backend != "openvino":
        return open_runtime(backend, precision=precision)
    from polyhead.engine.backends.openvino import OpenVINORuntime

    return OpenVINORuntime(precision=precision, threads=threads)


def _drawn(name: str, size: tuple[int, ...], rng: np.random.Generator) -> np.ndarray:
    centre = 1.0 if name.endswith("norm.weight") or name == "mix.scale" else 0.0
    return np.float32(centre) + np.float32(SPREAD) * rng.standard_normal(size, np.float32)
