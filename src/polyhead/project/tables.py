"""The shape of the project file, a strict TOML file that declares trunk, tasks and strategies, and its defaults."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, Literal

import msgspec

from polyhead.arguments import check_fields, twice_in, typed
from polyhead.data.columns import Columns, Source
from polyhead.data.tables import file_endings, is_address
from polyhead.errors import BadName, ConfigError
from polyhead.project.encoders import ENCODERS, MINILM
from polyhead.project.generation import DecoderChoice
from polyhead.project.names import MEANT
from polyhead.project.numbers import check_least
from polyhead.project.recipes import Donors, Effort, FineTune, Frozen, Joint, LeaveOut, Recipe, SearchPoint, Training
from polyhead.project.strategies import Pooled, Strategy
from polyhead.project.strategies.generating import WRITING_FROM_RANDOM, Generating
from polyhead.tasks.kinds.tagged import is_bio
from polyhead.tasks.task import KINDS, Kind, Task, check_name, kinds_with
from polyhead.values import Value, check_unused, read_toml

LEAST_TOKENS = 8  # for a pair: two pieces of each text, and the special tokens


class TrunkChoice(Value):
    """Which encoder: a short name, a Hugging Face folder, a hub id, or a bundle's folder, for its trunk."""

    name: str = MINILM
    max_tokens: int | None = None  # special tokens included; None: the trunk's own limit

    def __post_init__(self) -> None:
        check_fields(self)
        check_least("trunk.", self, {"max_tokens": LEAST_TOKENS})

    def place(self, folder: Path) -> str:
        """The name for `load_trunk`: a folder's path, relative to the project file's `folder`, or the name."""
        inside = folder / os.path.expanduser(self.name)
        return str(inside) if self.name not in ENCODERS and inside.is_dir() else self.name


class AllocationRule(Value):
    """The rule for the depth of branches: by the value of a layer, or under one budget for all of them."""

    rule: Literal["marginal", "greedy", "budget"] = "marginal"
    c: float = 1.0  # metric points (of 100) that one more private layer must gain
    budget: int | None = None  # budget for the trunk's layers up to the deepest tap and all private ones
    unit: Literal["layers", "flops", "bytes"] = "layers"  # unit of the budget

    def __post_init__(self) -> None:
        check_fields(self)
        check_least("allocation.", self, {"c": 0, "budget": 1})
        if (self.rule == "budget") != (self.budget is not None):
            raise ConfigError(
                "allocation.rule 'budget' and allocation.budget belong together",
                got=f"rule '{self.rule}', budget {self.budget}",
            )
        if self.budget is None:
            check_unused("allocation.", self, {"unit": "only a budget has one"})


class DataFile(Value):
    """A file, and a selection of its rows: those whose columns equal `where`, at most `limit` of them."""

    path: str
    where: dict[str, str | int | bool] | None = None
    limit: int | None = None

    def __post_init__(self) -> None:
        check_fields(self)
        if self.limit is not None and self.limit < 1:
            raise ConfigError(
                f"the 'limit' of {self.path} leaves no row",
                got=self.limit,
                allowed="1 or more",
                do="leave 'limit' out to read all rows",
            )


class TaskEntry(Columns, kw_only=True):
    """One `[[tasks]]` table: the task, its columns and files, and its strategy and training."""

    name: str
    kind: str
    train: str | DataFile
    validation: str | float | DataFile = 0.1  # a file, or the share of train to hold out
    test: str | DataFile | None = None  # the reported split; None: only validation is reported
    labels: tuple[str, ...] = ()
    metric: str | None = None
    positive: str | None = None
    range: tuple[float, float] | None = None
    threshold: float | None = None  # multi_label; None: 0.5, or what held-out rows show to be clearly better
    none_below: float = 0.0  # familiarity below which an answer says "none of these"; 0: never
    # None: "none" without `text_b`; else "separate" for frozen features, or "joined"
    pair: Literal["none", "joined", "separate"] | None = None
    long_texts: Literal["cut", "windows"] = "cut"
    null_answers: bool = False  # span: whether a text may have no answer
    decoder: Literal["greedy", "constrained"] | None = None  # tagging; None: "constrained" for BIO labels
    team: str | None = None  # the person responsible for the task, for its card
    generation: DecoderChoice | None = None  # of a kind that generates; None: all defaults
    strategy: Strategy | None = None
    training: Training | None = None

    def __post_init__(self) -> None:
        check_fields(self)
        if self.generation is not None and not self.known_kind.generates:
            raise ConfigError(
                f"task '{self.name}': kind '{self.kind}' writes nothing, so it has no 'generation'",
                got=self.generation,
                allowed=f"kind {kinds_with('generates')}",
                do="leave [tasks.generation] out",
            )

    @property
    def known_kind(self) -> Kind:
        """The task's kind; raises ConfigError with the known names."""
        return KINDS.named(self.kind)

    def pair_mode(self, strategy: Strategy, *, frozen: bool) -> Literal["none", "joined", "separate"]:
        """How a pair is read, if the entry does not say.

        Heads over frozen features are better with separate texts than with one joined input: by 2 to 12 points on two
        sets of pairs (docs/project/log.md). Trained layers read both in one input, and so do questions about a context.
        """
        if self.pair is not None:
            return self.pair
        if self.text_b is None or self.known_kind.context_column is not None:
            return "none"
        compares = self.known_kind.separate_pairs and self.long_texts == "cut"
        return strategy.default_pair if compares and frozen else "joined"

    def task(self) -> Task:
        """The task that the entry declares."""
        shared = {
            name: getattr(self, name)
            for name in Task.__struct_fields__
            if name not in ("pair", "decoder", "transitions", "ends", "generation") and getattr(self, name) is not None
        }
        for name in ("decoder", "threshold"):  # also where one is the default of `Task`
            if getattr(self, name) is not None and name not in self.known_kind.uses:
                raise ConfigError(
                    f"task '{self.name}': kind '{self.kind}' has no use for '{name}'",
                    got=getattr(self, name),
                    do=f"remove '{name}' or choose kind {kinds_with('uses', name)}",
                    task=self.name,
                )
        pair = self.pair_mode(self.strategy or Pooled(), frozen=True)
        task = Task(pair=pair, decoder=self.decoder or "greedy", **shared)
        if self.decoder is None and "decoder" in self.known_kind.uses and is_bio(task):
            return msgspec.structs.replace(task, decoder="constrained")
        return task

    def source(self, file: str | DataFile, folder: Path) -> Source:
        """The rows of a split; paths are relative to the project file's folder."""
        chosen = DataFile(path=file) if isinstance(file, str) else file
        path = chosen.path if is_address(chosen.path) else str((folder / chosen.path).resolve())
        columns = {name: getattr(self, name) for name in Columns.__struct_fields__}
        return Source(path=path, where=chosen.where, limit=chosen.limit, **columns)


JOINT_TRAINING = Training(epochs=3, patience=3, batch=16, learning_rate=2e-4, warmup=0.06)
"""Where nothing is said, a trunk that learns with its tasks reads each example three times on average."""


FINE_TUNING = Training(epochs=10, patience=3, batch=16)
"""Where nothing is said, a trunk that learns one task; its search has the numbers of a `SearchPoint`."""


class Project(Value):
    """The whole file. `strategy` and `training` apply to every task without its own."""

    meant: ClassVar[Mapping[str, str]] = MEANT

    tasks: tuple[TaskEntry, ...]
    bundle: str = "bundle"
    trunk: TrunkChoice = TrunkChoice()
    strategy: Strategy = Pooled()
    training: Training | None = None
    allocation: AllocationRule = AllocationRule()
    recipe: Recipe = Frozen()
    donors: str | None = None  # folder of a bundle that recipe `donors` made; None: each run trains its own

    def __post_init__(self) -> None:
        check_fields(self)
        names = [entry.name.casefold() for entry in self.tasks]  # some file systems ignore case in folder names
        alike = {*twice_in(names)}
        twice = sorted({entry.name for entry in self.tasks if entry.name.casefold() in alike})
        if twice:
            raise BadName("two tasks have one name", got=twice, do="give each task a name of its own")
        if not names:
            raise ConfigError("the project declares no task", do="add a [[tasks]] table")
        frozen = isinstance(self.recipe, Frozen)
        settled = tuple(
            msgspec.structs.replace(entry, pair=entry.pair_mode(entry.strategy or self.strategy, frozen=frozen))
            for entry in self.tasks
        )
        msgspec.structs.force_setattr(self, "tasks", settled)
        for entry in self.tasks:
            if isinstance(entry.validation, float) and not 0 < entry.validation < 1:
                raise ConfigError(
                    f"task '{entry.name}': validation is a share of train or a file",
                    got=entry.validation,
                    allowed="a share between 0 and 1, or a path",
                )
        if self.donors is not None and isinstance(self.recipe, Donors | LeaveOut):
            raise ConfigError(
                "a bundle of donors stands on the trunk that this project starts from; it serves recipes that do too",
                got=f"donors = '{self.donors}' with recipe '{self.recipe.__struct_config__.tag}'",
                allowed="recipe 'joint', 'frozen' or 'fine_tune'",
                do="leave 'donors' out",
            )
        if isinstance(self.recipe, LeaveOut):
            _check_rounds(self.recipe, [entry.name for entry in self.tasks])


def _check_rounds(recipe: LeaveOut, tasks: list[str]) -> None:
    """Raises BadName or ConfigError for rounds that could not be named or trained."""
    names = [left_out.name for left_out in recipe.rounds(tasks)]
    for name in names:
        check_name(name, "group")
    if len({name.casefold() for name in names}) < len(names):
        raise BadName("two groups differ in case alone", got=sorted(names), do="give each a name of its own")
    if unknown := recipe.unknown(tasks):
        raise ConfigError(
            "recipe.learn gives weights or shares to tasks that the project does not have",
            got=unknown,
            allowed=tasks,
            do="correct the names in [recipe.learn.weighting] or [recipe.learn.sampling]",
        )


@typed
def read_project(path: Path | str) -> Project:
    """The file as a checked project, with every declared task checked too. Errors name the file."""
    if str(path).lower().endswith(file_endings()) and os.path.exists(path):
        do = f"`polyhead init {path}` first: it writes the project file"
        raise ConfigError(f"{path} is a table or another file of data, and no project file", do=do)
    project = read_toml(path, Project)
    for number, entry in enumerate(project.tasks):
        try:
            entry.task()
        except (ConfigError, BadName) as error:
            place = f"tasks[{number}]"
            raise error.at(f"{path}, {place}", path=f"$.{place}") from None
    try:
        check_strategies(project)
    except ConfigError as error:
        raise error.at(str(path)) from None
    return project


def check_strategies(project: Project) -> None:
    """Raises ConfigError for settings of strategies or of the recipe that nothing reads, or that others replace."""
    recipe = project.recipe.learn if isinstance(project.recipe, LeaveOut) else project.recipe
    place = "recipe.learn." if isinstance(project.recipe, LeaveOut) else "recipe."
    if isinstance(recipe, Joint | FineTune) and not recipe.head_epochs:
        check_unused(place, recipe, {"head_learning_rate": f"it is of {place}head_epochs, and there are none"})
    for training in (project.training, *(e.training for e in project.tasks)) if isinstance(recipe, FineTune) else ():
        tried = {name: f"the search tries recipe.search.{name}s" for name in SearchPoint.__struct_fields__}
        check_unused("training.", training or Training(), tried)
    if isinstance(recipe, Joint) and recipe.sampling.kind == "all":
        check_unused(place, recipe, {"micro_batches": "with sampling 'all' there is one of each task"})
    if project.donors is not None and not any(strategy_of(project, e).donor_arrays() for e in project.tasks):
        raise ConfigError(
            "'donors' would change nothing: no task starts from one",
            got=project.donors,
            do="set init or pooler_init = 'donors' in a strategy with prompts, or leave 'donors' out",
        )
    dropouts = {Joint: "recipe.layer_dropout", FineTune: "recipe.search.dropouts"}.get(type(project.recipe))
    strategies = {entry.name: entry.strategy or project.strategy for entry in project.tasks}
    for task, strategy in strategies.items():
        try:
            strategy.check_used(dropouts)
        except ConfigError as error:
            raise error.at(f"task '{task}'") from None
    starts = {t: getattr(s, "pooler_init", "") for t, s in strategies.items() if getattr(s, "pooler", "") == "shared"}
    if not isinstance(project.recipe, FineTune) and len(set(starts.values())) > 1:
        raise ConfigError(
            "tasks that share a pooler have one strategy.pooler_init",
            got=starts,
            do="give them the same, or set strategy.pooler = 'private'",
        )


def strategy_of(project: Project, entry: TaskEntry) -> Strategy:
    """The entry's strategy, or the project's; for a task that writes, with its decoder."""
    strategy = entry.strategy or project.strategy
    if entry.known_kind.generates:
        return Generating(under=strategy, choice=entry.generation or DecoderChoice())
    return strategy


def training_of(project: Project, entry: TaskEntry) -> Training:
    """The entry's training numbers, or the project's, or the defaults of its recipe and strategy."""
    defaults = strategy_of(project, entry).default_training
    if entry.generation is not None and entry.generation.start == "random":
        defaults = WRITING_FROM_RANDOM
    defaults = JOINT_TRAINING if isinstance(project.recipe, Joint | Donors) else defaults
    defaults = FINE_TUNING if isinstance(project.recipe, FineTune) else defaults
    return entry.training or project.training or defaults


def with_effort(project: Project, effort: Effort | None = None, minutes: float | None = None) -> Project:
    """The same project with another effort and limit of minutes for every task; None leaves it as it is."""
    changes = {name: value for name, value in (("effort", effort), ("minutes", minutes)) if value is not None}
    return msgspec.structs.replace(project, tasks=_trained_with(project, **changes)) if changes else project


def _trained_with(project: Project, **numbers: Any) -> tuple[TaskEntry, ...]:
    """The tasks with these training numbers."""
    return tuple(
        msgspec.structs.replace(e, training=msgspec.structs.replace(training_of(project, e), **numbers))
        for e in project.tasks
    )


def with_seed(project: Project, seed: int) -> Project:
    """The same project under another seed."""
    entries = _trained_with(project, seed=seed)
    if isinstance(recipe := project.recipe, LeaveOut):
        training = msgspec.structs.replace(recipe.training or JOINT_TRAINING, seed=seed)
        project = msgspec.structs.replace(project, recipe=msgspec.structs.replace(recipe, training=training))
    return msgspec.structs.replace(project, tasks=entries)


def data_files(project: Project, folder: Path) -> dict[Path, str]:
    """The files that the project's tasks read, each with the first task and split that reads it."""
    files: dict[Path, str] = {}
    for entry in project.tasks:
        for split, file in (("train", entry.train), ("validation", entry.validation), ("test", entry.test)):
            if isinstance(file, str | DataFile) and (source := entry.source(file, folder)).is_file:
                files.setdefault(Path(source.path), f"{split} of task '{entry.name}'")
    return files


def bundles_of(project: Project) -> dict[str, tuple[str, ...]]:
    """The bundles that the project's recipe makes, each with its tasks; paths are relative like `bundle`."""
    names, recipe = tuple(entry.name for entry in project.tasks), project.recipe
    if isinstance(recipe, LeaveOut):
        return {f"{project.bundle}/{left_out.name}": left_out.tasks for left_out in recipe.rounds(names)}
    if isinstance(recipe, FineTune):
        return {f"{project.bundle}/{name}": (name,) for name in names}
    return {project.bundle: names}
