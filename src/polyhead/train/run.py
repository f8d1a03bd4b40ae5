"""`polyhead train`: a project file becomes a bundle, task by task; what is finished is never done again."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path as FilePath

import msgspec

from polyhead.arguments import typed
from polyhead.bundle.attempts import keep_attempts
from polyhead.bundle.families import FamilyDraft
from polyhead.bundle.read import Bundle
from polyhead.bundle.write import Draft, add_tasks
from polyhead.certify import certified
from polyhead.errors import TrainError
from polyhead.files import remove_tree
from polyhead.nn.threads import within_limits
from polyhead.plan import Path
from polyhead.progress import duration
from polyhead.project.strategies import Branch, Pooled
from polyhead.project.tables import Choice, Project, strategy_of
from polyhead.seq2seq.run import has_summaries, train_with_summaries
from polyhead.train.branch.task import (
    BranchSearch,
    branch_paths,
    choose,
    chosen_part,
    grow,
    grown_lines,
    kept_grove,
    write_options,
)
from polyhead.train.data.codecs import pooled_paths
from polyhead.train.data.extract import Extraction, Extractor
from polyhead.train.data.inputs import wanted
from polyhead.train.data.prepare import prepare
from polyhead.train.data.prepared import Prepared
from polyhead.train.data.taps import wanted_taps
from polyhead.train.data.units import check_budget, check_readers, check_whole, prepared_units, units_of
from polyhead.train.heads.baseline import baseline_path, with_baselines
from polyhead.train.heads.run import train_task
from polyhead.train.heads.trained import Trained
from polyhead.train.loop.checkpoint import SUFFIX, cache_folder
from polyhead.train.loop.events import Events
from polyhead.train.loop.numerics import numerics, precision_of
from polyhead.train.outcome import Outcome
from polyhead.train.recipes.lineage import load_any_trunk
from polyhead.train.recipes.live import is_live, live_paths, train_unit
from polyhead.train.record.compared import VersionComparison, rivals, unit_is_better
from polyhead.train.record.decided import Choices, Decisions, TrainOptions, choices, left_line
from polyhead.train.record.drafts import drafts_of
from polyhead.train.record.fingerprints import Fingerprint, fingerprints_of, rescored, tag, untrained
from polyhead.train.record.lines import task_lines
from polyhead.train.record.opened import opened
from polyhead.train.record.outlook import outlook


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
    branches = {e.name for e in project.tasks if isinstance(strategy_of(project, e), Branch)}
    if only:
        check_budget(project, only)
        if project.donors is not None and given is None:  # held out together, as the donors did
            given = [p for p in prepare(project, folder) if p.task.name in only]
        check_whole({entry.name: strategy_of(project, entry) for entry in project.tasks}, only)
        entries = tuple(entry for entry in project.tasks if entry.name in only)
        project = msgspec.structs.replace(project, tasks=entries)
    prepared = prepared_units(given or prepare(project, folder), events)
    data = load_any_trunk(project, folder)
    precision = _one_precision(prepared)
    extractor = Extractor(data, folder=cache_folder(cache, "features", precision).parent, precision=precision)
    outcome = _train(project, prepared, extractor, root, cache, branches, events, wish)
    outcome = msgspec.structs.replace(outcome, seconds=time.monotonic() - began)
    left = f", {len(outcome.left)} left as they are" if outcome.left else ""
    told = f"{len(outcome.trained)} trained, {len(outcome.kept)} kept{left}"
    events.line(f"bundle {project.bundle}: {told}, in {duration(outcome.seconds)}")
    return outcome


def _train(
    project: Project,
    prepared: Sequence[Prepared],
    extractor: Extractor,
    root: FilePath,
    cache: FilePath,
    branches: set[str],
    events: Events,
    wish: TrainOptions,
) -> Outcome:
    """Trains what is to be trained and writes it; `branches` are all tasks of the project that have them."""
    bundle = opened(root, extractor.data, [p.task.name for p in prepared])
    prints = fingerprints_of(prepared, project.allocation)
    units = units_of({p.task.name: p.strategy for p in prepared if is_live(p)})
    chosen = _chosen(bundle, prepared, prints, units, wish)
    todo = [p for p in prepared if p.task.name in chosen.todo]
    pooled = [p for p in todo if isinstance(p.strategy, Pooled)]
    branched = [p for p in prepared if isinstance(p.strategy, Branch)]
    live = live_paths(prepared, extractor.data)
    check_readers(bundle, _changes(todo, units), live)
    paths = pooled_paths(pooled, prepared, extractor, bundle)
    paths |= {p.task.name: branch_paths(p, extractor) for p in branched}
    paths |= {name: [path] for name, path in live.items()}
    kept = tuple(name for name in prints if name not in chosen.todo and name not in chosen.left)
    for line in (*chosen.lines(), *rescored(bundle, [p for p in prepared if p.task.name in kept])):
        events.line(line)
    for line in outlook(todo, paths, extractor.data.architecture, kept=kept, folds=True):
        events.line(line)
    extraction = _extract(_read(prepared, todo, project.allocation), paths, extractor, events)
    run = _Run(root, cache, extractor, events, prints, paths, set(chosen.todo), branches, wish.if_better)
    for p in pooled:
        run.train_pooled(p)
    run.train_branches(branched, project.allocation)
    for unit in units:
        run.train_unit([p for p in todo if p.task.name in unit])
    return Outcome(
        bundle=str(root),
        trained=run.scores,
        kept=kept,
        left={**chosen.left, **run.left},
        compared=run.compared,
        extraction=extraction,
        seconds=0.0,
    )


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
        {name: tag(one) for name, one in prints.items()},
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


def _changes(todo: Sequence[Prepared], units: Sequence[tuple[str, ...]]) -> list[tuple[str, ...]]:
    """Tasks that are written in one step, in the order of the steps."""
    alone = sorted((p for p in todo if not is_live(p)), key=lambda p: isinstance(p.strategy, Branch))
    names = {p.task.name for p in todo}
    return [(p.task.name,) for p in alone] + [unit for unit in units if not names.isdisjoint(unit)]


class _Run:
    """Trains tasks one by one and commits each."""

    def __init__(
        self,
        root: FilePath,
        cache: FilePath,
        extractor: Extractor,
        events: Events,
        prints: dict[str, dict[str, object]],
        paths: dict[str, list[Path]],
        todo: set[str],
        branches: set[str],
        if_better: bool,
    ) -> None:
        """`branches`: all tasks of the project that have them, also where this run leaves some out."""
        self._if_better = if_better
        self._root, self._cache, self._extractor, self._events = root, cache, extractor, events
        self._prints, self._paths, self._todo, self._branches = prints, paths, todo, branches
        self.scores: dict[str, dict[str, dict[str, float]]] = {}
        self.left: dict[str, str] = {}  # what lost to its live version
        self.compared: dict[str, VersionComparison] = {}

    def train_pooled(self, p: Prepared) -> None:
        """A task on kept features; its checkpoints go when it is in the bundle."""
        folder = self._folder("checkpoints", p)
        paths = self._paths[p.task.name]
        trained = train_task(p, paths, self._extractor, checkpoints=folder, events=self._events)
        if self._commit([(p, trained)]):
            remove_tree(folder, root=self._cache)

    def train_branches(self, branched: list[Prepared], choice: Choice) -> None:
        """Every task's branches first, then the choice between them; both are kept in the cache.

        `branched` are all tasks of branches, those that are trained already too: their options are written down, and
        under one budget the choice is among all.
        """
        todo = self._todo
        if not any(p.task.name in todo for p in branched):
            return
        extractor, events = self._extractor, self._events
        shape, precision = extractor.data.architecture, extractor.precision
        groves: dict[str, BranchSearch] = {}
        for p in branched:
            name, folder = p.task.name, self._folder("branches", p)
            if name in todo or choice.rule == "budget":
                groves[name] = grow(p, extractor, precision=precision, folder=folder, events=events)
                for line in grown_lines(groves[name]):
                    events.line(line)
            elif (known := kept_grove(folder)) is not None:
                groves[name] = known
        left = self._branches - {p.task.name for p in branched}
        write_options(self._cache / "options.json", list(groves.values()), shape, left)
        chosen = choose(list(groves.values()), choice, shape)
        for p in (p for p in branched if p.task.name in todo):
            name, folder = p.task.name, self._folder("branches", p)
            trained = chosen_part(p, groves[name], chosen[name], extractor, precision=precision, folder=folder)
            self._commit([(p, trained)])

    def train_unit(self, unit: list[Prepared]) -> None:
        """Tasks whose arrays read each other, or one alone, over the live trunk; they are in the bundle all at once."""
        if not unit:
            return
        folder = self._folder("live", unit[0])
        found = train_unit(
            unit,
            {p.task.name: self._paths[p.task.name][0] for p in unit},
            self._extractor.data,
            precision=self._extractor.precision,
            checkpoint=folder / f"unit{SUFFIX}",
            events=self._events,
        )
        if self._commit([(p, found.trained[p.task.name]) for p in unit], found.families):
            remove_tree(folder, root=self._cache)

    def _folder(self, kind: str, p: Prepared) -> FilePath:
        """For one way of training over exact paths, trunk digest included: no other run resumes from it."""
        ways = {name: v for name, v in self._prints[p.task.name].items() if name != "allocation"}
        paths = [msgspec.to_builtins(path) for path in self._paths[p.task.name]]
        name = tag({**ways, "paths": paths, "precision": self._extractor.precision})
        return cache_folder(self._cache, kind, name)

    def _commit(self, several: list[tuple[Prepared, Trained]], families: Sequence[FamilyDraft] = ()) -> bool:
        """Writes tasks into the bundle in one step, until which nothing of them is visible there.

        False where their live versions stay, since they are better and that was asked; what was tried is remembered.
        """
        label = numerics(self._extractor.precision)
        several = [(p, with_baselines(p, trained, self._extractor)) for p, trained in several]
        drafts = drafts_of(several, self._extractor.data, self._prints, label)
        bundle = Bundle.open(self._root, verify=False)
        tasks, strict = [p for p, _ in several], self._if_better
        found = rivals(bundle, tasks, drafts, families, self._events, strict=strict)
        if self._if_better and found and not unit_is_better(list(found.values())):
            self._remember(bundle, [p.task.name for p, _ in several], found)
            return False
        self._add(bundle, drafts, families)
        for p, trained in several:
            name = p.task.name
            self.scores[name] = trained.scores
            for line in task_lines(p, trained):
                self._events.line(line)
            if name in found:
                self._events.line(f"{name}: {found[name].line()}")
            self._events.event("task", task=name, scores=trained.scores, history=trained.fitted.history)
        self.compared |= found
        return True

    def _add(self, bundle: Bundle, drafts: list[Draft], families: Sequence[FamilyDraft]) -> None:
        names = [draft.record.task.name for draft in drafts]

        def act() -> None:
            add_tasks(self._root, drafts, families=families, replace=True)

        if set(bundle.lines) <= self._todo - self.left.keys():
            act()  # every task of the bundle is trained by this run
            return
        others = len(certified(self._root, "train", act, changing=names).before)
        said = "one other task of the bundle answers its" if others == 1 else f"{others} other tasks answer their"
        self._events.line(f"{', '.join(names)}: {said} probes as before")

    def _remember(self, bundle: Bundle, names: list[str], found: Mapping[str, VersionComparison]) -> None:
        """Notes what lost, and says so; its checkpoints stay, so that it can be had by `retrain`."""
        attempts = {
            name: one.attempt(tag(self._prints[name]), bundle.lines[name].record) for name, one in found.items()
        }
        keep_attempts(self._root, attempts)
        for name in names:
            lost = f"it shares arrays with {', '.join(found)}, of which the live version stays"
            self.left[name] = found[name].kept_line(bundle.version(name)) if name in found else lost
            self._events.line(left_line(name, self.left[name]))
        self.compared |= found


def _read(prepared: Sequence[Prepared], todo: list[Prepared], choice: Choice) -> list[Prepared]:
    """The tasks whose kept values the run reads; under one budget every branch, as the choice is among all."""
    among_all = choice.rule == "budget" and any(isinstance(p.strategy, Branch) for p in todo)
    names = {p.task.name for p in todo}
    return [p for p in prepared if p.task.name in names or (among_all and isinstance(p.strategy, Branch))]


def _extract(todo: list[Prepared], paths: dict[str, list[Path]], extractor: Extractor, events: Events) -> Extraction:
    progress = events.progress("encoding", unit="texts")
    requests = []
    for p in todo:
        for path in paths[p.task.name] if not is_live(p) else ():
            if isinstance(p.strategy, Branch):
                requests += wanted_taps(p, path, extractor)
            else:
                requests += wanted(p, path, extractor)
        compared = baseline_path(p, paths[p.task.name][0], extractor)
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
