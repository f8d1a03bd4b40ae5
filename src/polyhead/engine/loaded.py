"""The tasks that a session answers at one moment, and how two states of a bundle differ."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache, partial
from types import MappingProxyType
from typing import Generic, NamedTuple, TypeVar
from weakref import WeakKeyDictionary

import msgspec
import numpy as np
from msgspec import UnsetType

from polyhead.bundle.files import release
from polyhead.bundle.manifest import TaskRecord
from polyhead.bundle.read import Bundle
from polyhead.bundle.write import check_read
from polyhead.encoder.data import check_arrays
from polyhead.encoder.shape import Architecture
from polyhead.engine.backends.base import LoadedTask, Runner, StageResults, TokenBatch
from polyhead.engine.familiar import KnownTask, none_below, not_asked
from polyhead.engine.generate.texts import TextWriter
from polyhead.engine.inputs import InputType, input_types_of
from polyhead.engine.readers import Readers, readers_by_type
from polyhead.engine.receipt import Flops
from polyhead.errors import BackendError, BadValue, UnknownTask, WrongTrunk
from polyhead.plan import LEAST_READ, Layers, Node, Path, Plan, cost, merge
from polyhead.plan.cost import WORD_WEIGHTS, part_arrays
from polyhead.tasks.calibration import CalibrationChoice, Wish, Wishes, with_choice
from polyhead.tasks.generation import GenerationRules
from polyhead.tasks.kinds import kind_of
from polyhead.tasks.task import Kind, Task, owner_of
from polyhead.text.tokenize import Tokenizer
from polyhead.values import Value

_LOG = logging.getLogger(__name__)
PLANS = 64  # plans that are remembered, and of so many sets of tasks their layers
SETS = 4096  # sets of tasks of which is remembered what they run
FACTS = 256  # results that a `FactOfTasks` remembers, of the same loaded tasks
FLOPS = 2048  # passes of which the FLOPs are remembered: by their tasks and tokens
Fact = TypeVar("Fact")


class Changes(Value):
    """Changes of tasks."""

    attached: tuple[str, ...] = ()
    replaced: tuple[str, ...] = ()
    detached: tuple[str, ...] = ()


class AskedTasks(NamedTuple):
    """Some tasks, and what follows from them alone."""

    tasks: dict[str, Task]
    kinds: dict[str, Kind]
    reads: dict[str, tuple[InputType, ...]]  # the types of input that each reads
    writing: frozenset[str]  # those that generate
    versions: dict[str, str]  # of those that lie in a bundle
    readers: Readers


class LoadedTasks:
    """The tasks of one moment and what computes them; a change makes another, so that a call sees one throughout."""

    def __init__(
        self,
        records: Mapping[str, TaskRecord],
        backend: Runner,
        tokenizer: Tokenizer,
        *,
        shape: Architecture,
        deterministic: bool,
        versions: Mapping[str, str] = MappingProxyType({}),
        hidden: Collection[str] = (),
        known: Mapping[str, KnownTask] = MappingProxyType({}),
        word_weights: Mapping[str, np.ndarray] = MappingProxyType({}),
    ) -> None:
        """`records` are of the tasks that the backend has loaded; `known` of these keep rows.

        `word_weights` (columns, outputs) are of those whose heads read hashed words.
        `versions` are those of tasks that lie in a bundle; `hidden` tasks are answered where they are asked by name.
        """
        self.records, self.backend, self.tokenizer = dict(records), backend, tokenizer
        self.versions, self.hidden, self.known = dict(versions), frozenset(hidden), dict(known)
        self.deterministic, self.word_weights = deterministic, word_weights
        self.width = shape.width if backend.packs else None  # of rows that texts fill together
        self.breadth = backend.breadth
        self._state_width = shape.width
        self.tasks = {name: record.task for name, record in records.items()}
        self.limits = _limits(records, shape, tokenizer.max_tokens)
        self.calibrations = {name: record.calibration for name, record in records.items() if record.calibration}
        # The tasks of each plan of which one failed when it was last run.
        self._failing: set[tuple[str, ...]] = set()
        place = {name: number for number, name in enumerate(records)}
        paths = {name: record.path for name, record in records.items()}
        self.runs_alike: Callable[[tuple[str, ...]], Hashable] = lru_cache(maxsize=SETS)(
            partial(_runs_alike, paths, self.tasks)
        )
        # None of these holds `self`: what computes tasks that were replaced goes with the last call that has them.
        tasks = self.tasks
        plan = self._plan = lru_cache(maxsize=PLANS)(lambda names: merge({name: paths[name] for name in names}))
        # Whether some task itself says below which familiarity an answer does not stand.
        self.limited = any(none_below(tasks[name], None) > 0 for name in self.known if name in tasks)
        ordered = lru_cache(maxsize=PLANS)(lambda names: tuple(sorted(names, key=place.__getitem__)))
        layers = self._layers = lru_cache(maxsize=PLANS)(lambda names: cost.layer_evaluations(plan(names)))
        # What a decoder did is known when a text is written.
        pooled = {name: Path(nodes=path.nodes[:-1]) if path.head.decoder else path for name, path in paths.items()}
        costed = lru_cache(maxsize=PLANS)(lambda names: merge({name: pooled[name] for name in names}))
        flops = self._flops = lru_cache(maxsize=FLOPS)(partial(_flops, costed, shape))
        # Layers that one pass of these tasks runs; what each of them adds alone to a pass of so many tokens, and what
        # several add together. Tasks may be given in any order, and stand in that of the session.
        self.layers: Callable[[tuple[str, ...]], int] = lambda names: layers(ordered(names))
        self.flops: Flops = lambda names, tokens: flops(ordered(names), tokens)

    def homes(self, task: str) -> tuple[LoadedTasks, ...]:
        """The tasks of the bundles that answer this one, the deepest last: of a single bundle these."""
        return (self,)

    def part(self, bundle: str | UnsetType) -> LoadedTasks:
        """The tasks of this bundle of a set: of a single bundle these."""
        return self

    def task_names(self, tasks: Iterable[str] | None) -> tuple[str, ...]:
        """The tasks that a call with this argument answers, each once; None asks for all. Raises UnknownTask."""
        if tasks is None:
            return tuple(name for name in self.tasks if name not in self.hidden)
        names = tuple(dict.fromkeys(_names(tasks)))
        unknown = [name for name in names if name not in self.tasks]
        if unknown:
            raise UnknownTask(
                f"the bundle has no task {', '.join(map(repr, unknown))}",
                got=unknown,
                allowed=sorted(self.tasks.keys() - self.hidden),
            )
        return names

    def check_choices(self, calibrated: Wishes, asked: Sequence[str] | None) -> None:
        """Raises UnknownTask or BadValue for a choice that a bundle of the task, whichever answers, does not have.

        BadValue also for a task that is not among those `asked`; None: all are.
        """
        if isinstance(calibrated, bool):
            return
        if not isinstance(calibrated, Mapping):
            raise BadValue("'calibrated' cannot be read", got=calibrated, allowed="a bool, or choices by task")
        for name, wish in calibrated.items():
            if name not in self.tasks:
                raise UnknownTask("'calibrated' names a task that is not there", got=name, allowed=sorted(self.tasks))
            if asked is not None and name not in asked:
                raise not_asked("calibrated", name, asked)
            if not isinstance(wish, Wish):
                problem = f"the choice for task '{name}' in 'calibrated' cannot be read"
                do = "import CalibrationChoice from polyhead"
                raise BadValue(problem, got=wish, allowed="a bool or a CalibrationChoice", do=do)
            if not isinstance(wish, CalibrationChoice):
                continue
            calibrated_homes = [home for home in self.homes(name) if name in home.calibrations]
            if not calibrated_homes:
                problem, do = f"task '{name}' has no calibration that a choice could change", "run `polyhead calibrate`"
                raise BadValue(problem, got=wish, allowed="true or false", do=do)
            for home in calibrated_homes:
                with_choice(home.tasks[name], home.calibrations[name], wish)

    def versions_of(self, tasks: Iterable[str]) -> dict[str, str]:
        """The versions of those of these tasks that lie in a bundle."""
        return self.asked(tasks).versions

    def flops_of(self, tasks: Iterable[str]) -> Flops:
        """FLOPs of a pass as if only these tasks had been asked."""
        counted, flops = frozenset(tasks), self.flops
        return lambda names, tokens: flops(tuple(name for name in names if name in counted), tokens)

    def plan(self, tasks: Iterable[str]) -> Plan:
        """The merged plan of these tasks, which gives their outputs in this order."""
        return self._plan(tuple(tasks))

    def writer(self, task: str) -> TextWriter:
        """What writes the texts of a task that generates."""
        head, rules = self.records[task].path.head, self.tasks[task].generation
        assert isinstance(rules, GenerationRules)
        step = self.backend.decoder(task)
        return TextWriter(step, head, rules, self.tokenizer, width=self._state_width, singly=self.deterministic)

    def readers(self, tasks: Iterable[str]) -> Readers:
        """Which inputs these tasks read, and how."""
        return self.asked(tasks).readers

    def asked(self, tasks: Iterable[str]) -> AskedTasks:
        """These tasks, and what follows from them alone; of the same ones it is known."""
        return _ASKED(self, tuple(tasks))

    def stages(self, plan: Plan, batch: TokenBatch) -> Iterator[StageResults]:
        """All at once, the fastest; where anything fails stage by stage, so that it fails alone.

        What failed before is run stage by stage at once, until it no longer fails.
        """
        outputs, reason = None, ""
        if not self._failing or plan.tasks not in self._failing:
            try:
                outputs = self.backend.run(plan, batch)
            except Exception as error:  # only its words are kept, so that its memory is not
                reason = str(error)
        if outputs is not None:
            yield StageResults(outputs=outputs, failed={}, layers_left=0)
            return
        self._failing.discard(plan.tasks)
        try:  # the error is gone by now, and what it kept in memory
            for stage in self.backend.stages(plan, batch):
                if stage.failed:
                    self._failing.add(plan.tasks)
                yield stage
        except Exception:
            self._failing.add(plan.tasks)
            raise
        finally:  # a caller that has all that it wants does not ask for more
            if reason and plan.tasks not in self._failing:
                _LOG.warning("%s: could not run at once, and ran stage by stage: %s", ", ".join(plan.tasks), reason)


class FactOfTasks(Generic[Fact]):
    """A function of loaded tasks and some of their names that remembers its results, which must not be changed.

    It holds no loaded tasks: their results are forgotten when the last call that has them ends.
    """

    def __init__(self, find: Callable[[LoadedTasks, tuple[str, ...]], Fact]) -> None:
        self._find = find
        self._known: WeakKeyDictionary[LoadedTasks, dict[tuple[str, ...], Fact]] = WeakKeyDictionary()

    def __call__(self, loaded: LoadedTasks, tasks: Sequence[str]) -> Fact:
        """The result; `tasks` are names of `loaded`."""
        facts, names = self._known.setdefault(loaded, {}), tuple(tasks)
        try:
            return facts[names]
        except KeyError:
            fact = self._find(loaded, names)
        if len(facts) >= FACTS:
            facts.clear()
        facts[names] = fact
        return fact


def _asked_tasks(loaded: LoadedTasks, names: tuple[str, ...]) -> AskedTasks:
    tasks = {name: loaded.tasks[name] for name in names}
    kinds = {name: kind_of(task) for name, task in tasks.items()}
    return AskedTasks(
        tasks=tasks,
        kinds=kinds,
        reads={name: input_types_of(task) for name, task in tasks.items()},
        writing=frozenset(name for name, kind in kinds.items() if kind.generates),
        versions={name: loaded.versions[name] for name in names if name in loaded.versions},
        readers=readers_by_type(tasks, loaded.limits),
    )


_ASKED = FactOfTasks(_asked_tasks)


def loaded(bundle: Bundle, name: str) -> LoadedTask:
    """A task of a bundle with its arrays."""
    arrays = bundle.part(name)
    release(arrays.values())  # all were read to be hashed
    return LoadedTask(path=bundle.tasks[name].path, arrays=arrays, others=bundle.others(name), is_mapped=True)


def word_weights_of(tasks: Mapping[str, LoadedTask]) -> dict[str, np.ndarray]:
    """The weights of hashed words (columns, outputs) of each task that has some."""
    return {name: np.asarray(task.arrays[WORD_WEIGHTS]) for name, task in tasks.items() if task.path.head.words}


def check_task(
    record: TaskRecord,
    arrays: Mapping[str, np.ndarray],
    others: Mapping[str, Mapping[str, np.ndarray]],
    *,
    trunk: str,
    shape: Architecture,
) -> LoadedTask:
    """A task with these arrays, checked against its path; raises WrongTrunk, WeightsMismatch."""
    name = record.task.name
    if record.trunk != trunk:
        raise WrongTrunk(f"task '{name}' was trained on another trunk", got=record.trunk, allowed=trunk)
    owner = record.owner or owner_of(record.task)
    check_arrays(arrays, part_arrays(record.path, shape, owner), owner=f"task '{name}'")
    for other, theirs in others.items():
        check_read(theirs, record, other, shape)
    return LoadedTask(path=record.path, arrays=arrays, others=others)


def bundle_changes(before: Bundle, after: Bundle) -> Changes:
    """Changes of a bundle between two moments; raises WrongTrunk if its trunk changed."""
    if before.digest != after.digest:
        raise WrongTrunk(
            "the bundle has another trunk than the session that is open on it",
            got=after.digest,
            allowed=before.digest,
            do="open a new session",
        )
    then, now = before.lines, after.lines
    return Changes(
        attached=tuple(name for name in now if name not in then),
        replaced=tuple(name for name in now if name in then and now[name] != then[name]),
        detached=tuple(name for name in then if name not in now),
    )


def trained_precision(records: Mapping[str, TaskRecord]) -> str | None:
    """The precision that the tasks were trained with, where they say; raises BackendError where they differ.

    int8, from a store of such features, counts as float32: its scales are not the bundle's, and may be gone.
    """
    labels = [record.trained_with.get("numerics") for record in records.values()]
    precisions = {str(label["precision"]) for label in labels if isinstance(label, dict) and "precision" in label}
    precisions = {"float32" if precision == "int8" else precision for precision in precisions}
    if len(precisions) > 1:
        raise BackendError(
            "the bundle's tasks were trained on a trunk of different precisions",
            got=sorted(precisions),
            do="say which one is to answer: precision=..., --precision",
        )
    return next(iter(precisions), None)


def warn_of_precision(records: Mapping[str, TaskRecord], trained: str | None, precision: str) -> None:
    """Says in the log that tasks came to a session that computes otherwise than they were trained."""
    _LOG.warning(
        "%s: trained on a trunk in %s, and this session computes in %s, as its first tasks asked; open a new "
        "session, or say the precision",
        ", ".join(records),
        trained,
        precision,
    )


def _names(tasks: Iterable[str]) -> list[str]:
    """The names; raises BadValue for what is no list of them."""
    if isinstance(tasks, str):
        raise BadValue("`tasks` must be a list of names, not a single string", got=tasks, do=f"ask for [{tasks!r}]")
    is_list = isinstance(tasks, Iterable) and not isinstance(tasks, bytes)
    values: list[object] = list(tasks) if is_list else [tasks]
    names = [name for name in values if isinstance(name, str)]
    if len(names) < len(values):
        raise BadValue(
            "`tasks` must be a list of names",
            got=", ".join(repr(value) for value in values if not isinstance(value, str)),
            allowed="strings in a list, or None for all tasks",
            do="ask for names that `polyhead inspect` lists",
        )
    return names


def _limits(records: Mapping[str, TaskRecord], shape: Architecture, max_tokens: int) -> dict[str, int]:
    """By task, the tokens of a text that it reads, where prompts take some of the trunk's positions.

    A task of an earlier bundle that has room for fewer than LEAST_READ fails where a text has more, and no other does.
    """
    room = {name: shape.max_tokens - record.path.embed.shifted for name, record in records.items()}
    return {name: tokens for name, tokens in room.items() if LEAST_READ <= tokens < max_tokens}


def _runs_alike(paths: Mapping[str, Path], tasks: Mapping[str, Task], names: tuple[str, ...]) -> Hashable:
    """A key: sets of tasks with the same key run the same layers on the same texts, so that a batch may serve all.

    It holds the longest chains of layers that the tasks run, and the ways in which they read an input.
    """
    chains = dict.fromkeys((path.nodes[0], *path.layers) for name in names if (path := paths.get(name)) is not None)
    longest = [chain for chain in chains if not any(chain != other and _begins(chain, other) for other in chains)]
    read = ((tasks[name].pair, tasks[name].long_texts, tasks[name].ends, input_types_of(tasks[name])) for name in names)
    generating = (name for name in names if kind_of(tasks[name]).generates)  # which take a time of their own
    return frozenset(longest), frozenset(read), frozenset(generating)


def _begins(chain: tuple[Node, ...], other: tuple[Node, ...]) -> bool:
    """Whether the other chain runs all of this one first."""
    *before, last = chain
    if len(chain) > len(other) or tuple(before) != other[: len(before)]:
        return False
    over = other[len(before)]
    if isinstance(last, Layers) and isinstance(over, Layers) and last.is_plain and over.stop >= last.stop:
        return msgspec.structs.replace(last, stop=over.stop) == over
    return last == over


def _flops(
    plan: Callable[[tuple[str, ...]], Plan], shape: Architecture, tasks: tuple[str, ...], tokens: int
) -> dict[str, int]:
    shares = cost.flops_by_sharers(plan(tasks), shape, tokens, folded=True) if tasks else {}
    named = {names[0] if len(names) == 1 else f"shared: {', '.join(names)}": flops for names, flops in shares.items()}
    return dict.fromkeys(tasks, 0) | named


def shown_tasks(loaded: LoadedTasks) -> dict[str, Task]:
    """The tasks of a moment that callers may ask, by name."""
    return {name: task for name, task in loaded.tasks.items() if name not in loaded.hidden}
