"""Training over a frozen trunk: selection of tasks, shared state of trainers, and committing tasks."""

from __future__ import annotations

import shutil
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path as FilePath

import msgspec

from polyhead.bundle.create import write_bundle
from polyhead.bundle.format import BUNDLE, LOCK, TOKENIZER, TRUNK, TRUNK_RECORD, WEIGHTS
from polyhead.bundle.journal import keep_attempts
from polyhead.bundle.lost_labels import check_labels_stay
from polyhead.bundle.read import Bundle
from polyhead.bundle.write import Draft, FamilyDraft, add_tasks
from polyhead.certify import certified
from polyhead.encoder.data import TrunkData, TrunkFacts
from polyhead.errors import ConfigError, TrainError, UnknownTask, WrongTrunk
from polyhead.files import remove_files
from polyhead.plan import Path
from polyhead.progress import duration
from polyhead.project.recipes import Training
from polyhead.project.tables import strategy_of
from polyhead.train.candidates import baseline_path, with_columns
from polyhead.train.data.encoder import encoding_numerics, encoding_precision
from polyhead.train.data.extract import Extractor
from polyhead.train.data.leaks import without_leaks
from polyhead.train.data.prepare import donor_task, wanted
from polyhead.train.data.prepared import Prepared
from polyhead.train.data.source import Extraction, FeatureRequest, FeatureSource
from polyhead.train.data.stored import StoredFeatures
from polyhead.train.data.task_groups import check_readers, prepare_groups, task_groups
from polyhead.train.events import Events
from polyhead.train.heads.baselines import with_baselines
from polyhead.train.record.comparison import VersionComparison, group_is_better, rivals, version_runner
from polyhead.train.record.draft import Trained, drafts_of, labels_without_rows
from polyhead.train.record.estimate import estimating
from polyhead.train.record.held_out import live_answers, new_answers, vectors_wanted, with_profile, write_held_out
from polyhead.train.record.lines import outlook, task_lines, untried
from polyhead.train.record.selection import (
    VersionDecisions,
    fingerprints_of,
    rescored,
    select_tasks,
    skipped_line,
    tag,
    untrained,
)
from polyhead.train.runs import cache_folder, resolved
from polyhead.train.training import BundleTraining, Scores, TrainingResult, TrainingRun


class FrozenTrunk(BundleTraining):
    """Trains tasks over the frozen trunk, and writes each into the bundle as soon as it is done."""

    def __init__(self, run: TrainingRun, prepared: Sequence[Prepared]) -> None:
        self.run, self.prepared = run, prepared

    def check(self) -> None:
        """Raises TrainError and EmptyData if tasks that read each other's arrays cannot be trained together."""
        prepare_groups(self.prepared, Events())

    def train(self) -> TrainingResult:
        """Trains what the bundle lacks; tasks trained the same way are kept, and decisions are respected."""
        began, run, events = time.monotonic(), self.run, self.run.events
        prepared = prepare_groups(self.prepared, events)
        source = feature_source(run, prepared)
        if isinstance(source, StoredFeatures):
            prepared = [with_columns(p, source) for p in prepared]
        job = TrainingJob(run, prepared, source)
        if not run.options.allow_lost_labels:
            _check_labels_stay(job)
        trainers = job.trainers()
        _find_paths(job, trainers)
        kept = tuple(name for name in job.prints if name not in job.todo and name not in job.left)
        todo = [p for p in prepared if p.task.name in job.todo]
        lines = [skipped_line(name, reason) for name, reason in job.left.items()]
        lines += rescored(job.bundle, [p for p in prepared if p.task.name in kept])
        for line in (*lines, *outlook(todo, job.paths, source.facts.architecture, kept=kept, folds=True)):
            events.line(line)
        extraction = _extract(job, trainers)
        for trainer in trainers:
            trainer.train()
        for more, names in job.untried.items():
            if more:
                events.line(f"{more}: {', '.join(names)}")
        seconds = time.monotonic() - began
        left_text = f", {len(job.left)} left as they are" if job.left else ""
        summary = f"{len(job.scores)} trained, {len(kept)} kept{left_text}"
        events.line(f"bundle {run.project.bundle}: {summary}, in {duration(seconds)}")
        return TrainingResult(
            bundle=str(run.root),
            trained=job.scores,
            versions=job.versions,
            kept=kept,
            left=job.left,
            compared=job.compared,
            extraction=extraction,
            seconds=seconds,
        )


class TrainingJob:
    """Bundle, cache, trunk and tasks of one run, and its trained tasks so far."""

    def __init__(self, run: TrainingRun, prepared: Sequence[Prepared], source: FeatureSource) -> None:
        self.root, self.cache, self.events = run.root, run.cache, run.events
        self.prepared, self.source, self.allocation = prepared, source, run.project.allocation
        self.bundle = open_or_create(run.root, source.facts, load=run.load)
        # strategies of all tasks of the project, including those not in this run
        self.declared = {entry.name: strategy_of(run.project, entry) for entry in run.project.tasks}
        self.prints = fingerprints_of(prepared, self.allocation, layers=source.facts.architecture.layers)
        lines = self.bundle.lines
        chosen = select_tasks(
            untrained(self.bundle, self.prints),
            task_groups({p.task.name: p.strategy for p in prepared if p.strategy.is_live}),
            {name: tag(fingerprint) for name, fingerprint in self.prints.items()},
            VersionDecisions.of(self.bundle),
            run.options,
            {p.task.name: (self.bundle.tasks[p.task.name].task, p.task) for p in prepared if p.task.name in lines},
        )
        self.todo = set(chosen.todo)  # names of the tasks to train
        self.left = dict(chosen.left)  # tasks that are kept: the reason
        self.paths: dict[str, list[Path]] = {}  # for each task that is trained or chosen, all candidates
        self.scores, self.versions = Scores(), dict[str, str]()
        self.untried: dict[str, list[str]] = {}  # what more effort would try -> tasks
        self.compared: dict[str, VersionComparison] = {}
        self._if_better, self._actor = run.options.if_better, run.options.actor
        self._runner = version_runner(source)

    def trainers(self) -> list[Trainer]:
        """The trainers that the strategies of tasks to train name, in execution order; others may need torch."""
        tasks: dict[str, list[Prepared]] = {}
        for p in self.prepared:
            tasks.setdefault(p.strategy.trainer, []).append(p)
        trainers = list[Trainer]()
        for name, prepared in tasks.items():
            if self.todo.isdisjoint(p.task.name for p in prepared):
                continue
            trainers.append(resolved(name, f"the strategy of task '{prepared[0].task.name}'")(self, prepared))
        return sorted(trainers, key=lambda trainer: trainer.order)

    def folder(self, kind: str, p: Prepared) -> FilePath:
        """The folder for one way of training over exact paths, trunk included; only the same run resumes from it."""
        settings = {name: value for name, value in self.prints[p.task.name].items() if name != "allocation"}
        paths = [msgspec.to_builtins(path) for path in self.paths[p.task.name]]
        name = tag({**settings, "paths": paths, "precision": self.source.precision})
        return cache_folder(self.cache, kind, name)

    def commit(
        self,
        parts: Sequence[tuple[Prepared, Trained]],
        families: Sequence[FamilyDraft] = (),
        *,
        checkpoints: FilePath | None = None,
    ) -> None:
        """Writes tasks into the bundle in one step; nothing of them is visible before.

        With `if_better`, better live versions stay, and the attempt is recorded; else `checkpoints` are deleted.
        """
        parts = [(p, with_baselines(p, trained, self.source)) for p, trained in parts]
        numerics = encoding_numerics(self.source.precision)
        drafts = drafts_of(parts, self.source.facts, self.prints, numerics)
        pairs = zip(drafts, parts, strict=True)
        drafts = [with_profile(draft, trained.held, self.source, p) for draft, (p, trained) in pairs]
        bundle = Bundle.open(self.root, verify=False)
        tasks = [p for p, _ in parts]
        held = {p.task.name: new_answers(p, trained, numerics) for p, trained in parts}
        both = {name: (live_answers(self.cache, bundle, name), held[name]) for name in held if name in bundle.lines}
        compared = rivals(
            bundle, tasks, drafts, families, self.events, strict=self._if_better, runner=self._runner, held=both
        )
        self.compared |= compared
        if self._if_better and compared and not group_is_better(list(compared.values())):
            self._remember(bundle, [p.task.name for p in tasks], compared)
            return
        for p, trained in parts:
            if (answers := held[p.task.name]) is not None:
                write_held_out(self.cache, p.task.name, trained.arrays, answers)
        is_alone = set(bundle.lines) <= self.todo - self.left.keys()  # this run trains every task of the bundle
        new = write_proven(self.root, drafts, families, is_alone=is_alone, actor=self._actor, events=self.events)
        for p, trained in parts:
            name = p.task.name
            self.scores[name], self.versions[name] = trained.scores, new[name]
            for line in task_lines(p, trained):
                self.events.line(line)
            self.untried.setdefault(untried(p, trained), []).append(name)
            if name in compared:
                self.events.line(f"{name}: {compared[name].line()}")
            if name in bundle.lines and bundle.tasks[name].calibration is not None:
                unfit = f"the calibration of {bundle.version(name)} does not fit other weights"
                self.events.line(f"{name}: {unfit}: run `polyhead calibrate` again")
            self.events.event("task", task=name, scores=trained.scores, history=trained.fitted.history)
        if checkpoints is not None:
            shutil.rmtree(checkpoints, ignore_errors=True)

    def _remember(self, bundle: Bundle, names: list[str], compared: Mapping[str, VersionComparison]) -> None:
        """Records which tasks lost, if all could be compared, and reports them; checkpoints stay for `retrain`."""
        if all(rival.rows for rival in compared.values()):
            lost = {name: (tag(self.prints[name]), bundle.lines[name].record) for name in compared}
            keep_attempts(self.root, {name: compared[name].attempt(*of_live) for name, of_live in lost.items()})
        for name in names:
            shares = f"it shares arrays with {', '.join(compared)}, of which the live version stays"
            self.left[name] = compared[name].kept_line(bundle.version(name)) if name in compared else shares
            self.events.line(skipped_line(name, self.left[name]))


def write_proven(
    root: FilePath,
    drafts: Sequence[Draft],
    families: Sequence[FamilyDraft] = (),
    *,
    is_alone: bool,
    actor: str,
    events: Events,
) -> dict[str, str]:
    """The versions by task, made live in one step; proves that all others answer as before, unless it `is_alone`."""
    names, versions = [draft.task.name for draft in drafts], dict[str, str]()

    def write() -> None:
        versions.update(add_tasks(root, drafts, families=families, replace=True))

    if is_alone:
        write()
    elif others := len(certified(root, "train", write, changing=names, actor=actor).proven):
        subject = "one other task of the bundle answers its" if others == 1 else f"{others} other tasks answer their"
        events.line(f"{', '.join(names)}: {subject} probes as before")
    return versions


def extractor_of(job: TrainingJob) -> Extractor:
    """The encoder of the run, for trainers that need more of it than kept features."""
    assert isinstance(job.source, Extractor)
    return job.source


class Trainer(ABC):
    """A trainer of tasks over a frozen trunk, for the strategies that name this class.

    `prepared` are all of these tasks, `todo` those to train.
    """

    order = 0  # trainers with lower numbers run first

    def __init__(self, job: TrainingJob, prepared: Sequence[Prepared]) -> None:
        self.job, self.prepared = job, prepared
        self.todo = [p for p in prepared if p.task.name in job.todo]

    @abstractmethod
    def paths(self) -> dict[str, list[Path]]:
        """Every candidate path, by task; tasks that need no training may be omitted."""

    def steps(self) -> list[tuple[str, ...]]:
        """Groups of tasks that are written in one step, in order."""
        return [(p.task.name,) for p in self.todo]

    def readers(self) -> Sequence[Prepared]:
        """The tasks whose kept values the run reads."""
        return self.todo

    def requests(self, prepared: Prepared, path: Path) -> list[FeatureRequest]:
        """The features to encode and keep before a task is trained on this path."""
        return []

    @abstractmethod
    def train(self) -> None:
        """Trains `todo` and commits each step to the bundle."""


def _check_labels_stay(job: TrainingJob) -> None:
    """Raises BundleError for a task to train if its live version knows labels that have no row now."""
    keep = "put rows of these labels into the training file too, of which none is encoded a second time, or "
    keep += "let the labels go with --allow-lost-labels"
    for p in job.prepared:
        if (name := p.task.name) in job.todo and name in job.bundle.lines:
            lost, version = labels_without_rows(p), job.bundle.version(name)
            check_labels_stay(job.bundle.tasks[name], p.task, lost, version=version, do=keep)


def _find_paths(job: TrainingJob, trainers: Sequence[Trainer]) -> None:
    """Paths of all trainers; those of live tasks are checked first, since only they read other owners' arrays."""
    for trainer in trainers:
        if any(p.strategy.is_live for p in trainer.prepared):
            job.paths |= trainer.paths()
    live = {name: paths[0] for name, paths in job.paths.items()}
    check_readers(job.bundle, [step for trainer in trainers for step in trainer.steps()], live)
    for trainer in trainers:
        if not all(p.strategy.is_live for p in trainer.prepared):
            job.paths |= trainer.paths()


def feature_source(run: TrainingRun, prepared: Sequence[Prepared]) -> FeatureSource:
    """The source of the run's features; raises StoreError and TrainError for a store that does not fit."""
    if run.store is None:
        return Extractor.within(run.data, run.cache, precision=_one_precision(prepared, run.root))
    folder = cache_folder(run.cache, "stored")
    source = StoredFeatures(run.store.location, run.store.facts, folder=folder, precision=_one_precision(prepared))
    source.check_fits(prepared)
    cache_folder(run.cache, "stored", source.precision)
    return source


def _one_precision(prepared: Sequence[Prepared], root: FilePath | None = None) -> str:
    precisions = sorted({encoding_precision(p.training, root) for p in prepared})
    if len(precisions) > 1:
        raise TrainError(
            "tasks of one run must read the trunk in one precision", got=precisions, do="set one [training] precision"
        )
    return precisions[0]


def _extract(job: TrainingJob, trainers: Sequence[Trainer]) -> Extraction:
    """Encodes and keeps the values that the trainers and these tasks' linear baselines read."""
    source, events = job.source, job.events
    progress = events.progress(source.doing, unit="texts")
    readers = {p.task.name: trainer for trainer in trainers for p in trainer.readers()}
    requests: list[FeatureRequest] = []
    for p in job.prepared:
        if p.task.name not in readers:
            continue
        paths = job.paths[p.task.name]
        for path in paths:
            requests += readers[p.task.name].requests(p, path)
        compared = baseline_path(p, paths[0], source)
        requests += [] if compared is None else wanted(p, compared, source)
        requests += vectors_wanted(p, source) if p.task.name in job.todo else []
    todo = [p for p in job.prepared if p.task.name in job.todo]
    filled = estimating(progress, events, todo, job.paths, source)
    extraction = source.fill(requests, update=filled)
    progress.finish()
    if requests:
        events.line(source.summary(extraction))
    events.event("extraction", **msgspec.structs.asdict(extraction))
    return extraction


def open_or_create(root: FilePath, trunk: TrunkFacts, *, load: Callable[[], TrunkData]) -> Bundle:
    """The existing bundle, if it has the same trunk; else a new one, with the trunk that `load` returns.

    Raises WrongTrunk for a bundle on another trunk, unless an interrupted run left it
    without tasks.
    """
    if not (root / BUNDLE).exists():
        return write_bundle(root, load())
    bundle = Bundle.open(root)
    if bundle.digest != trunk.digest and _holds_nothing_more(root):
        remove_files(root, [BUNDLE])  # the rest belongs to an unfinished bundle
        return write_bundle(root, load())
    if bundle.digest != trunk.digest:
        raise WrongTrunk(
            f"the bundle {root.name} stands on another trunk",
            got=f"this project's trunk {trunk_line(trunk)}, the bundle's {trunk_line(bundle.trunk_facts())}",
            do="name another bundle in the project file, or give the bundle's own trunk and max_tokens",
        )
    return bundle


def _holds_nothing_more(root: FilePath) -> bool:
    """Whether no task was ever written there, the trunk was not trained, and there are no foreign files."""
    names = {entry.name for entry in root.iterdir()} | {entry.name for entry in (root / TRUNK).iterdir()}
    return names <= {BUNDLE, LOCK, TRUNK, TRUNK_RECORD, WEIGHTS, TOKENIZER}


def trunk_line(trunk: TrunkFacts) -> str:
    """A trunk's digest and description, for messages."""
    return f"{trunk.digest[:16]} ({trunk.name}, max_tokens {trunk.settings.max_tokens})"


def donors(run: TrainingRun) -> FrozenTrunk:
    """The donor stage of paper 002 (section 3, single-task prompts over a frozen backbone) as a separate bundle.

    Each task trains prompt, pooler and head in its own input, for its strategy's `donor_epochs` at its
    `donor_learning_rate`. As with a joint recipe, no text on which one of the project's tasks is evaluated is trained
    on; tasks without prompts are read only for this. On the processor a joint run of the same tasks, seed and
    `[training]` then starts as if it had trained the donors itself. Raises ConfigError if no task has prompts.
    """
    project = run.project
    prompted = [e.name for e in project.tasks if strategy_of(project, e).donor(e.name, Training()) is not None]
    if not prompted:
        raise ConfigError(
            "recipe 'donors' trains prompts and the poolers that read them",
            got="no task with prompts",
            allowed="tasks with strategy 'prompted'",
            do="give a task this strategy, or leave the recipe out",
        )
    if unknown := sorted({*run.only, *run.options.retrain} - set(prompted)):
        raise UnknownTask("the project declares no such task with prompts", got=unknown, allowed=prompted)
    prepared, leaks = without_leaks(run.prepared)
    for line in leaks.lines():
        run.events.line(line)
    if others := [p.task.name for p in prepared if p.task.name not in prompted]:
        run.events.line(f"{', '.join(others)}: without prompts, so read for their texts alone")
    names = run.only or prompted
    tasks = tuple(entry for entry in project.tasks if entry.name in names)
    run = msgspec.structs.replace(run, project=msgspec.structs.replace(project, tasks=tasks))
    return FrozenTrunk(run, [donor_task(p) for p in prepared if p.task.name in names])
