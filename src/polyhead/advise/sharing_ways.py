"""The compared ways of sharing, each as a project file over the same tasks: a strategy, a recipe, a choice."""

from __future__ import annotations

import tomllib
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Any

import msgspec
import tomli_w

from polyhead.errors import ConfigError
from polyhead.project.declare import task_text
from polyhead.project.recipes import FineTune, Frozen, Joint, Recipe, SearchGrid
from polyhead.project.strategies import Adapter, Branch, InLayer, OnTop, Pooled, Prompted, Strategy
from polyhead.project.tables import AllocationRule, Project, TaskEntry, read_project, training_of
from polyhead.tasks.kinds import kind_of
from polyhead.values import Value, digested

ALONE, GROUP = "the new task alone", "every task of the group"
ALL, OWN = "the trunk and every task", "the new task, with a trunk of its own"
SHORTEST = AllocationRule(rule="marginal", c=1e6)
"""A layer is worth more than any score: the shortest student is kept."""
ONE_CANDIDATE = SearchGrid(learning_rates=(1e-4,), epsilons=(1e-8,), dropouts=(0.1,))


class Way(Value):
    """One way of sharing: its changes to the project file, and the effect of one more task."""

    name: str  # of its rows and its project file
    title: str
    strategy: Strategy
    recipe: Recipe = Frozen()
    allocation: AllocationRule = AllocationRule()
    retrained: str = ALONE  # when a task is added
    besides: tuple[Strategy, ...] = ()  # trained in addition: a student's teacher, the depths of a search

    @property
    def kind(self) -> str:
        """The strategy, or the recipe if every task has its own trunk."""
        return "fine_tune" if isinstance(self.recipe, FineTune) else self.strategy.kind

    @property
    def runs_layers(self) -> bool:
        """Whether each training pass runs layers of the trunk or private layers, and so takes long."""
        return self.trunk_learns or not self.strategy.reads_kept_features

    @property
    def trunk_learns(self) -> bool:
        """Whether it makes another trunk."""
        return not isinstance(self.recipe, Frozen)


def ways_of(layers: int) -> tuple[Way, ...]:
    """Every way over a trunk of this many layers; over 0, a table of word vectors, the pooled ones."""
    ways = _ways_of_layers(max(1, layers))
    return ways if layers else tuple(way for way in ways if way.strategy.reads_kept_features)


def _ways_of_layers(layers: int) -> tuple[Way, ...]:
    half = max(1, layers // 2)
    students = tuple(length for length in (1,) if length < half)
    frozen: list[Way] = [
        Way(name="pooled-auto", title="pooled, the head chosen", strategy=Pooled()),
        Way(name="pooled-first", title="pooled, first token", strategy=Pooled(layers="last", positions="first")),
        Way(name="pooled-mean", title="pooled, mean", strategy=Pooled(layers="last", positions="mean")),
        Way(name="pooled-attention", title="pooled, attention", strategy=Pooled(positions="attention")),
        Way(
            name="pooled-mix",
            title="pooled, attention over a learned mix of layers",
            strategy=Pooled(layers="learned", positions="attention"),
        ),
        *(
            Way(
                name=f"branch-{depth}",
                title=f"branch, {depth} private layer{'s' if depth > 1 else ''}",
                strategy=Branch(layers=depth),
            )
            for depth in sorted({1, min(2, layers), half, layers})
        ),
        *(
            Way(
                name=f"student-{length}",
                title=f"student of {length} layer{'s' if length > 1 else ''}, taught by a branch of {half}",
                strategy=Branch(layers=half, students=(length,)),
                allocation=SHORTEST,
                besides=(Branch(layers=length),),
            )
            for length in students
        ),
        Way(name="prompted-isolated", title="prompts, isolated", strategy=Prompted(isolated=True)),
        Way(name="prompted-group", title="prompts in one input", strategy=Prompted(), retrained=GROUP),
        Way(name="in-layer", title="projected attention in every layer", strategy=InLayer()),
        Way(
            name="in-layer-top",
            title="projected attention in the upper half",
            strategy=InLayer(adapters=(Adapter(start=layers - half),)),
        ),
        Way(name="lora", title="LoRA in every layer", strategy=InLayer(adapters=(Adapter(delta="lora"),))),
        Way(name="on-top", title="narrow layers on top", strategy=OnTop()),
    ]
    learned = (
        ("pooled-joint", "pooled, the trunk learns too", Pooled()),
        ("prompted-joint", "prompts in one input, the trunk learns too", Prompted()),
        ("in-layer-joint", "projected attention, the trunk learns too", InLayer()),
        ("on-top-joint", "narrow layers on top, the trunk learns too", OnTop()),
    )
    return (
        *frozen,
        *(Way(name=n, title=t, strategy=s, recipe=Joint(), retrained=ALL) for n, t, s in learned),
        Way(
            name="fine-tune",
            title="a trunk of its own for each task, fine-tuned",
            strategy=Pooled(),
            recipe=FineTune(search=ONE_CANDIDATE),
            retrained=OWN,
        ),
    )


def chosen_ways(ways: Iterable[Way], only: Collection[str]) -> tuple[Way, ...]:
    """The ways with these names, or of these strategies; all without names. Raises ConfigError for an unknown one."""
    ways = tuple(ways)
    known = {way.name for way in ways} | {way.kind for way in ways}
    if unknown := sorted(set(only) - known):
        raise ConfigError("no such way of sharing", got=unknown, allowed=sorted(known), do="correct --only")
    return tuple(way for way in ways if not only or way.name in only or way.kind in only)


class TaskSet(Value):
    """The compared tasks: a project, and the pair modes that its file states."""

    project: Project  # without tasks that write
    folder: str  # where relative paths start
    pairs: dict[str, str] = {}  # by task
    left: tuple[str, ...] = ()  # tasks that write: their decoders take too long for a comparison


def read_task_set(path: Path | str) -> TaskSet:
    """The tasks of a project file; raises ConfigError if all of them write."""
    path = Path(path)
    project = read_project(path)
    with path.open("rb") as file:
        tables = tomllib.load(file).get("tasks", [])
    compared = tuple(entry for entry in project.tasks if not entry.known_kind.generates)
    if not compared:
        raise ConfigError(f"{path} has only tasks that write texts", do="declare one of another kind")
    return TaskSet(
        project=msgspec.structs.replace(project, tasks=compared, donors=None, recipe=Frozen()),
        folder=str(path.resolve().parent),
        pairs={str(table["name"]): table["pair"] for table in tables if "pair" in table},
        left=tuple(entry.name for entry in project.tasks if entry.known_kind.generates),
    )


def unfit(way: Way, entry: TaskEntry) -> str:
    """The reason why the way cannot answer the task; "" if it can."""
    words = kind_of(entry.task()).per_word
    return "it cannot answer words" if words and way.strategy.isolated else ""


def declared(tasks: TaskSet, way: Way, *, seed: int, bundle: str, epochs: int | None = None) -> Project:
    """The project that trains the way; tasks that it cannot answer are pooled.

    The way's own defaults for training are used, so that no way is trained with another's; only the project's seed,
    class weights and precision are kept. `epochs` limits the passes of a way that runs layers in training.
    """
    entries = tuple(_entry(tasks, way, entry) for entry in tasks.project.tasks)
    project = Project(
        tasks=entries,
        bundle=bundle,
        trunk=tasks.project.trunk,
        strategy=way.strategy,
        recipe=way.recipe,
        allocation=way.allocation,
    )
    trained = []
    for entry, declared_entry in zip(project.tasks, tasks.project.tasks, strict=True):
        training, wanted = training_of(project, entry), training_of(tasks.project, declared_entry)
        training = msgspec.structs.replace(
            training, seed=seed, class_weights=wanted.class_weights, precision=wanted.precision
        )
        if epochs is not None and way.runs_layers:
            most = min(epochs, training.most_epochs)
            training = msgspec.structs.replace(training, epochs=most, least_updates=None)
        trained.append(msgspec.structs.replace(entry, training=training))
    return msgspec.structs.replace(project, tasks=tuple(trained))


def _entry(tasks: TaskSet, way: Way, entry: TaskEntry) -> TaskEntry:
    pooled = Pooled() if unfit(way, entry) else None
    pair: Any = tasks.pairs.get(entry.name)
    if pair == "separate" and (way.strategy.is_live or way.trunk_learns):
        pair = None  # these layers read both texts in one input
    return msgspec.structs.replace(entry, strategy=pooled, training=None, pair=pair)


def project_file(project: Project, home: Path) -> str:
    """The project as TOML for any folder; data paths, relative to `home`, become absolute."""
    plain = _without_none(digested(project))
    for table in plain["tasks"]:
        for key in {"train", "validation", "test"} & table.keys():
            table[key] = _placed(table[key], home)
    tables = plain.pop("tasks")
    place = project.trunk.place(home)
    if place != project.trunk.name:
        plain["trunk"] = {**plain.get("trunk", {}), "name": str(Path(place).resolve())}
    head: str = tomli_w.dumps(plain)
    return head + "".join(f"\n{task_text(table)}" for table in tables)


def _placed(file: Any, home: Path) -> Any:
    """A path with the same meaning from any folder."""
    if isinstance(file, dict):
        return {**file, "path": _placed(file["path"], home)}
    if isinstance(file, str) and not file.startswith("datasets:"):
        return str((home / file).resolve())
    return file


def _without_none(value: Any) -> Any:
    """Without None, which TOML cannot write."""
    if isinstance(value, dict):
        return {key: _without_none(item) for key, item in value.items() if item is not None}
    return [_without_none(item) for item in value] if isinstance(value, list) else value
