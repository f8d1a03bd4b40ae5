"""A plan as calls of graphs, in the order in which answers come soonest; each graph is compiled once."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from time import monotonic

import msgspec
import numpy as np

from polyhead.arguments import twice_in
from polyhead.bundle.files import release
from polyhead.engine.backends.base import TokenBatch
from polyhead.engine.compile.compiled import COMPILED
from polyhead.engine.compile.encoder import HIDDEN
from polyhead.engine.compile.heads import SlotForm
from polyhead.engine.compile.layout import RowLayout, Shape
from polyhead.engine.compile.ops import Build, Compiled, Runtime
from polyhead.engine.compile.positions import PLACED
from polyhead.errors import BackendError, without_frames
from polyhead.values import Value

Token = tuple[str, int]  # an owner of arrays and which of its contents
RARE = 64  # most graphs that stay compiled beside those which a call of all tasks runs
PATIENCE = 60.0  # seconds before a graph that could not be compiled is tried again: there may be room by then
_CLOCK = itertools.count()


class Recipe(Value, eq=False):
    """The facts that a graph is made from."""

    key: Hashable  # equal keys, equal graphs
    build: Build
    label: str  # for errors
    layers: bool  # as in `Runtime.compile`, and the next
    exact: bool = False
    # Members that may be asked without their siblings: the graph is kept for as long as these are loaded.
    alone: tuple[Token, ...] = ()
    outputs: tuple[str, ...] = ()  # of poolers and heads: the name of each slot's output
    # Says all that it is made from, the same in any process; None: each process compiles it.
    digest: Callable[[], str | None] = lambda: None


class Graph:
    """A graph that is compiled by its first call; other graphs may run and be compiled meanwhile."""

    def __init__(self, recipe: Recipe, make: Callable[[Graph], Compiled], has_run: Callable[[], None]) -> None:
        """`has_run` is called once, after the first call."""
        self.recipe, self.used = recipe, next(_CLOCK)
        self.compiled: Compiled | None = None
        self._make, self._lock = make, threading.Lock()
        self._has_run: Callable[[], None] | None = has_run
        # Why it could not be compiled, and until when that is not tried again.
        self._failed: Exception | None = None
        self._again = 0.0

    def __call__(self, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """The outputs by name; they hold until the same thread calls again."""
        self.used = next(_CLOCK)
        outputs = self.ready()(inputs)
        has_run, self._has_run = self._has_run, None
        if has_run is not None:
            has_run()
        return outputs

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
        self._read: Collection[np.ndarray] = ()
        self._known: dict[Hashable, Graph] = {}
        self._held: frozenset[Graph] = frozenset()

    def graph(self, recipe: Recipe) -> Graph:
        """The graph of this recipe, the same for each with its key."""
        with self._lock:
            return self._known.setdefault(recipe.key, Graph(recipe, self._compiled, self._release))

    def hold(self, graphs: Collection[Graph], tokens: Collection[Token], read: Collection[np.ndarray] = ()) -> None:
        """Keeps these graphs, and loaded ones of single tasks or steps; a call that runs others ends as it began.

        `read` are arrays that graphs are made from, and that nobody writes to: pages of files that compiling read, or
        the first call, are given back.
        """
        with self._lock:
            self._read = read
            self._held, live = frozenset(graphs), set(tokens)
            self._known = {
                key: graph
                for key, graph in self._known.items()
                if graph in self._held or (graph.recipe.alone and live.issuperset(graph.recipe.alone))
            }

    def _compiled(self, graph: Graph) -> Compiled:
        """The compiled graph; where many are kept, it replaces the least recently used."""
        recipe = graph.recipe
        compiled = COMPILED.get(
            self.runtime, recipe.digest, recipe.build, label=recipe.label, layers=recipe.layers, exact=recipe.exact
        )
        self._release()
        with self._lock:
            rare = [known for known in self._known.values() if known.compiled is not None and known not in self._held]
            over = len(rare) + (graph not in self._held) - RARE
            for oldest in sorted(rare, key=lambda known: known.used)[: max(0, over)]:
                oldest.compiled = None
        return compiled

    def _release(self) -> None:
        """Gives back what was read once: compiling and a first call, which packs weights, read all, later calls few."""
        release(self._read)


# An array of a run: a state's number or an input's name, the plan's step, and whose rows: "" the text's.
Key = tuple[int | str, int, str]
Values = dict[Key, np.ndarray]
EMBEDDED = ("ids", "positions", "segments", "text", "which", "prompts")  # what an embedding reads
LAID = (*EMBEDDED[:5], "added", *PLACED, "places", "first", "second", "keep", "share", "words")  # what a layout gives


class OutputPlace(msgspec.Struct, frozen=True):
    """Where a task's outputs stand among those of its group."""

    task: str
    output: str  # of the graph
    slot: int  # of this output
    width: int | None  # None: all


class GraphCall(Value, eq=False):
    """One call of one graph."""

    graph: Graph
    tasks: tuple[str, ...]  # that need it
    inputs: tuple[tuple[str, Key], ...]
    states: tuple[tuple[str, tuple[Key, ...]], ...] = ()  # outputs that are kept, each the rows of so many lanes
    answers: tuple[OutputPlace, ...] = ()
    chosen: Mapping[str, np.ndarray] = {}  # inputs that say which tasks of a group are asked
    is_joint: bool = False  # answers of several groups by one graph, each input under its name in a layout
    words: frozenset[str] = frozenset()  # outputs of these that are asked and have a row for each word
    form: SlotForm | None = None  # of a group's poolers and heads
    layers: int = 0
    is_shared: bool = False  # what fails here fails for all
    alone: Callable[[], Sequence[GraphCall]] = tuple  # the same in parts, a lane or a task each


class OwnState(Value, eq=False):
    """Prompt rows that a group's slots read, each its own, counted from a text's first prompt row."""

    whose: str
    offsets: np.ndarray  # (slots, rows) int64
    share: np.ndarray  # (slots, 1, rows) float32

    def values(self, step: int, before: np.ndarray) -> Values:
        """Places and shares, (slots * texts) rows."""
        places = before[None, :, None] + self.offsets[:, None]
        return {
            ("places", step, self.whose): places.reshape(-1, self.offsets.shape[1]),
            ("share", step, self.whose): np.repeat(self.share, len(before), axis=0),
        }


class ParallelStates(Value, eq=False):
    """A prompt in rows of its own beside the texts."""

    whose: str
    slots: int  # of the group that reads it
    prompts: np.ndarray  # (1 + prompt rows, embedding width), the first zero

    def values(self, step: int, keep: np.ndarray, positions: int) -> Values:
        """What its embedding, its layers and its pool read; a text has so many positions."""
        texts, rows = len(keep), len(self.prompts) - 1
        filled = np.pad(keep, ((0, 0), (0, positions - keep.shape[1])), constant_values=HIDDEN)
        nothing = np.zeros((texts, rows), np.int64)
        values: dict[str, np.ndarray] = dict.fromkeys(("ids", "positions", "segments"), nothing)
        values["text"] = np.zeros((texts, rows, 1), np.float32)
        values["which"] = np.tile(np.arange(1, rows + 1), (texts, 1))
        values["prompts"] = self.prompts
        values["added"] = np.pad(filled, ((0, 0), (0, rows)))[:, None, None]
        values["places"] = np.tile(np.arange(texts * rows).reshape(texts, rows), (self.slots, 1))
        values["share"] = np.full((self.slots * texts, 1, rows), 1 / rows, np.float32)
        return {(name, step, self.whose): array for name, array in values.items()}


class InputState(Value, eq=False):
    """How a batch becomes what the graphs above one embedding read."""

    step: int
    tasks: tuple[str, ...]
    shape: Shape
    most: int  # positions of the trunk
    reads: tuple[str, ...]  # what of the layout
    prompts: np.ndarray  # (1 + prompt rows, embedding width), the first zero
    own: tuple[OwnState, ...] = ()
    beside: tuple[ParallelStates, ...] = ()

    def values(self, batch: TokenBatch) -> Values:
        """All inputs; BackendError for texts too long."""
        tokens, rows = int(batch.mask.sum(axis=1).max(initial=0)), len(self.prompts) - 1
        if self.shape.first_position + tokens > self.most:
            raise BackendError(
                "the trunk has no positions for this text behind its prompts",
                got=f"{tokens} tokens behind {rows} prompt rows",
                allowed=f"{self.most - self.shape.first_position} tokens",
                do="give shorter texts, or leave `shift` out",
            )
        laid = RowLayout(batch, self.shape)
        values: Values = {(name, self.step, ""): getattr(laid, name) for name in self.reads}
        if "positions" in self.reads:  # those of padding may lie beyond the trunk's
            values["positions", self.step, ""] = np.minimum(laid.positions, self.most - 1)
        values["prompts", self.step, ""] = self.prompts
        for state in self.own:
            values |= state.values(self.step, laid.before)
        for beside in self.beside:
            values |= beside.values(self.step, laid.keep, laid.size[1])
        return values


class Program(Value, eq=False):
    """All that one batch of a plan runs."""

    tasks: tuple[str, ...]
    roots: tuple[InputState, ...]
    calls: tuple[GraphCall, ...]
    repeated: frozenset[Graph]  # run more than once a batch: their outputs are copied

    @property
    def layers(self) -> int:
        """The layers that all calls run."""
        return sum(call.layers for call in self.calls)


def program_of(tasks: Sequence[str], roots: Sequence[InputState], calls: Iterable[GraphCall]) -> Program:
    """The calls in order: again and again the answers that need the fewest layers which have not run."""
    calls = list(calls)
    makers = {key: call for call in calls for _, keys in call.states for key in keys}
    ordered: dict[int, GraphCall] = {}
    heads = [call for call in calls if call.answers]
    while heads:
        missing = [_needed(head, makers, ordered) for head in heads]
        layers = [sum(call.layers for call in missing_calls.values()) for missing_calls in missing]
        soonest = layers.index(min(layers))
        ordered |= missing[soonest]
        del heads[soonest]
    graphs = [call.graph for call in ordered.values()]
    return Program(
        tasks=tuple(tasks), roots=tuple(roots), calls=tuple(ordered.values()), repeated=frozenset(twice_in(graphs))
    )


def _needed(call: GraphCall, makers: Mapping[Key, GraphCall], ready: Mapping[int, GraphCall]) -> dict[int, GraphCall]:
    """The call and the calls that it needs, by their ids, without those that are `ready`."""
    # No function within `program_of`: one that calls itself is a cycle, which would keep graphs that are long replaced.
    if id(call) in ready:
        return {}
    needed: dict[int, GraphCall] = {}
    for maker in (makers[key] for _, key in call.inputs if key in makers):
        needed |= _needed(maker, makers, ready)
    return needed | {id(call): call}
