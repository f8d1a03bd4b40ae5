"""`polyhead train`: a project file becomes a bundle, task by task; what is finished is never done again."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path as FilePath

import msgspec

from polyhead.arguments import typed
from polyhead.bundle.read import Bundle
from polyhead.errors import TrainError
from polyhead.nn.runtime import within_limits
from polyhead.progress import duration
from polyhead.project.tables import Project, strategy_of
from polyhead.seq2seq.run import has_summaries, train_with_summaries
from polyhead.strategies import Strategy
from polyhead.train.data.extract import Extraction, Extractor, FeatureRequest
from polyhead.train.data.features import wanted
from polyhead.train.data.prepare import prepare
from polyhead.train.data.prepared import Prepared
from polyhead.train.data.units import check_budget, check_readers, check_whole, prepared_units, units_of
from polyhead.train.heads.baseline import baseline_path
from polyhead.train.job import Job, Trainer
from polyhead.train.loop.checkpoint import cache_folder
from polyhead.train.loop.events import Events
from polyhead.train.loop.numerics import precision_of
from polyhead.train.outcome import Outcome
from polyhead.train.recipes.learned import load_any_trunk
from polyhead.train.record.decided import (
    Choices,
    Decisions,
    Fingerprint,
    TrainOptions,
    choices,
    fingerprints_of,
    rescored,
    tag,
    untrained,
)
from polyhead.train.record.lines import outlook
from polyhead.train.record.opened import opened


@typed
def train_project(
    project: Project,
    *,
    folder: FilePath | str,
    cache: FilePath | str | None = None,
    events: Events | None = None,
    only: tuple[str, ...] = (),
    given: Sequence[Prepared] | None = None,
    retrain: tuple[str, ...] = (),
    if_better: bool = False,
) -> Outcome:
    """Trains every declared task over the frozen trunk and writes each into the bundle as soon as it is done.

    `folder` is where relative paths start; with `given` no file is read. Features and checkpoints are kept in `cache`
    (default: beside the bundle), so an interrupted run goes on where it stopped, and another task over the same texts
    encodes nothing. What was rolled back or removed stays so but for the tasks to `retrain`, which are trained whatever
    was decided; with `if_better` a live version stays unless the new one scores better on the same validation rows."""
    folder, cache = FilePath(folder), FilePath(cache) if cache else None
    wish = TrainOptions(retrain=retrain, if_better=if_better)
    wish.check([entry.name for entry in project.tasks], only)
    if has_summaries(project):
        return train_with_summaries(
            train_project, project, folder=folder, cache=cache, events=events, only=only, wish=wish
        )
    began, events = time.monotonic(), events or Events()
    within_limits()
    root = (folder / project.bundle).resolve()
    cache = cache or root.with_name(root.name + "-cache")
    declared = {entry.name: strategy_of(project, entry) for entry in project.tasks}
    if only:
        check_budget(project, only)
        if project.donors is not None and given is None:  # held out together, as the donors did
            given = [p for p in prepare(project, folder) if p.task.name in only]
        check_whole(declared, only)
        entries = tuple(entry for entry in project.tasks if entry.name in only)
        project = msgspec.structs.replace(project, tasks=entries)
    prepared = prepared_units(given or prepare(project, folder), events)
    data = load_any_trunk(project, folder)
    precision = _one_precision(prepared)
    extractor = Extractor(data, folder=cache_folder(cache, "features", precision).parent, precision=precision)
    outcome = _train(project, prepared, extractor, root, cache, declared, events, wish)
    outcome = msgspec.structs.replace(outcome, seconds=time.monotonic() - began)
    left = f", {len(outcome.left)} left as they are" if outcome.left else ""
    summary = f"{len(outcome.trained)} trained, {len(outcome.kept)} kept{left}"
    events.line(f"bundle {project.bundle}: {summary}, in {duration(outcome.seconds)}")
    return outcome


def _train(
    project: Project,
    prepared: Sequence[Prepared],
    extractor: Extractor,
    root: FilePath,
    cache: FilePath,
    declared: Mapping[str, Strategy],
    events: Events,
    wish: TrainOptions,
) -> Outcome:
    """Trains what is to be trained and writes it; `declared` are the strategies of all tasks of the project."""
    bundle = opened(root, extractor.data, [p.task.name for p in prepared])
    prints = fingerprints_of(prepared, project.allocation)
    units = units_of({p.task.name: p.strategy for p in prepared if p.strategy.is_live})
    chosen = _chosen(bundle, prepared, prints, units, wish)
    todo = [p for p in prepared if p.task.name in chosen.todo]
    job = Job(
        root=root,
        cache=cache,
        bundle=bundle,
        extractor=extractor,
        events=events,
        prepared=prepared,
        prints=prints,
        todo=set(chosen.todo),
        declared=declared,
        allocation=project.allocation,
        if_better=wish.if_better,
    )
    trainers = job.trainers()
    _find_paths(job, trainers)
    kept = tuple(name for name in prints if name not in chosen.todo and name not in chosen.left)
    for line in (*chosen.lines(), *rescored(bundle, [p for p in prepared if p.task.name in kept])):
        events.line(line)
    for line in outlook(todo, job.paths, extractor.data.architecture, kept=kept, folds=True):
        events.line(line)
    extraction = _extract(job, trainers)
    for trainer in trainers:
        trainer.train()
    return Outcome(
        bundle=str(root),
        trained=job.scores,
        kept=kept,
        left={**chosen.left, **job.left},
        compared=job.compared,
        extraction=extraction,
        seconds=0.0,
    )


def _find_paths(job: Job, trainers: Sequence[Trainer]) -> None:
    """Paths of all trainers; those of live tasks come first, as only they read arrays of others, which is checked."""
    for trainer in trainers:
        if any(p.strategy.is_live for p in trainer.prepared):
            job.paths |= trainer.paths()
    live = {name: paths[0] for name, paths in job.paths.items()}
    check_readers(job.bundle, [step for trainer in trainers for step in trainer.steps()], live)
    for trainer in trainers:
        if not all(p.strategy.is_live for p in trainer.prepared):
            job.paths |= trainer.paths()


def _chosen(
    bundle: Bundle,
    prepared: Sequence[Prepared],
    prints: Mapping[str, Fingerprint],
    units: Sequence[tuple[str, ...]],
    wish: TrainOptions,
) -> Choices:
    """What is to be trained, after all that was decided before."""
    return choices(
        untrained(bundle, prints),
        units,
        {name: tag(fingerprint) for name, fingerprint in prints.items()},
        Decisions.of(bundle),
        wish,
        {p.task.name: (bundle.tasks[p.task.name].task, p.task) for p in prepared if p.task.name in bundle.lines},
    )


def _one_precision(prepared: Sequence[Prepared]) -> str:
    precisions = sorted({precision_of(p.training) for p in prepared})
    if len(precisions) > 1:
        raise TrainError(
            "tasks of one run must read the trunk in one precision", got=precisions, do="set one [training] precision"
        )
    return precisions[0]


def _extract(job: Job, trainers: Sequence[Trainer]) -> Extraction:
    """Encodes and keeps what the trainers read, and what the linear baselines of these tasks read."""
    extractor, events = job.extractor, job.events
    progress = events.progress("encoding", unit="texts")
    readers = {p.task.name: trainer for trainer in trainers for p in trainer.readers()}
    requests: list[FeatureRequest] = []
    for p in job.prepared:
        if p.task.name not in readers:
            continue
        paths = job.paths[p.task.name]
        for path in paths:
            requests += readers[p.task.name].requests(p, path)
        compared = baseline_path(p, paths[0], extractor)
        requests += [] if compared is None else wanted(p, compared, extractor)
    extraction = extractor.fill(requests, update=progress.update)
    progress.finish()
    rate = extraction.passes / extraction.seconds if extraction.seconds else 0.0
    if requests:
        events.line(
            f"encoded {extraction.passes:,} inputs once ({rate:,.0f} a second), "
            f"{extraction.reused:,} stored values reused, {extraction.cut:,} inputs cut to the trunk's limit"
        )
    events.event("extraction", **msgspec.structs.asdict(extraction))
    return extraction
