"""`polyhead train`: a project file becomes a bundle, task by task; what is finished is never done again."""

from __future__ import annotations

import hashlib
import shutil
import time
from collections.abc import Mapping, Sequence
from pathlib import Path as FilePath

import msgspec

from polyhead import __version__
from polyhead.arguments import typed
from polyhead.bundle.families import FamilyDraft
from polyhead.bundle.manifest import TaskRecord
from polyhead.bundle.read import Bundle
from polyhead.bundle.write import Draft, add_tasks
from polyhead.engine.isolation import certified
from polyhead.errors import ConfigError, TrainError
from polyhead.plan import Path, merge
from polyhead.progress import duration
from polyhead.project import Choice, Project, strategy_of
from polyhead.sharing.branch import private_layers
from polyhead.strategy import Branch, Pooled
from polyhead.tasks.kinds import kind_of
from polyhead.train.branch_task import (
    Grove,
    branch_paths,
    choose,
    chosen_part,
    grow,
    grown_lines,
    kept_grove,
    write_options,
)
from polyhead.train.card import card_of
from polyhead.train.codecs import pooled_paths
from polyhead.train.events import Events
from polyhead.train.extract import Extraction, Extractor
from polyhead.train.lineage import load_any_trunk
from polyhead.train.live import is_live, live_paths, train_unit
from polyhead.train.numerics import numerics, precision_of
from polyhead.train.opened import opened
from polyhead.train.outlook import outlook
from polyhead.train.prepare import Prepared, prepare
from polyhead.train.probes import probes_of
from polyhead.train.summarize_run import has_summaries, train_with_summaries
from polyhead.train.taps import wanted_taps
from polyhead.train.task_run import Trained, train_task, wanted
from polyhead.train.units import check_readers, check_whole, prepared_units, units_of

FEW = 20  # rows of a split of which a score says little


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """What a run of `train` did."""

    bundle: str
    trained: dict[str, dict[str, dict[str, float]]]  # task -> split -> metric -> value
    kept: tuple[str, ...]  # tasks that were trained already, unchanged
    extraction: Extraction
    seconds: float


@typed
def train_project(
    project: Project,
    *,
    folder: FilePath | str,
    cache: FilePath | str | None = None,
    events: Events | None = None,
    only: tuple[str, ...] = (),
    given: Sequence[Prepared] | None = None,
) -> Outcome:
    """Trains every declared task over the frozen trunk and writes each into the bundle as soon as it is done.

    `folder` is where relative paths start; with `given` no file is read. Features and checkpoints are kept in `cache`
    (default: beside the bundle), so an interrupted run goes on where it stopped, and another task over the same texts
    encodes nothing."""
    folder, cache = FilePath(folder), FilePath(cache) if cache else None
    if has_summaries(project):
        return train_with_summaries(
            train_project, project, folder=folder, cache=cache, events=events, only=only
        )
    began, events = time.monotonic(), events or Events()
    root = (folder / project.bundle).resolve()
    cache = cache or root.with_name(root.name + "-cache")
    branches = {e.name for e in project.tasks if isinstance(strategy_of(project, e), Branch)}
    if only:
        _check_only(project, only)
        if project.donors is not None and given is None:  # held out together, as the donors did
            given = [p for p in prepare(project, folder) if p.task.name in only]
        check_whole({entry.name: strategy_of(project, entry) for entry in project.tasks}, only)
        entries = tuple(entry for entry in project.tasks if entry.name in only)
        project = msgspec.structs.replace(project, tasks=entries)
    prepared = prepared_units(given or prepare(project, folder), events)
    data = load_any_trunk(project, folder)
    extractor = Extractor(data, folder=cache / "features", precision=_one_precision(prepared))
    bundle = opened(root, data, [p.task.name for p in prepared])
    prints = fingerprints_of(prepared, project.allocation)
    units = units_of({p.task.name: p.strategy for p in prepared if is_live(p)})
    todo = _todo(bundle, prepared, prints, units)
    pooled = [p for p in todo if isinstance(p.strategy, Pooled)]
    branched = [p for p in prepared if isinstance(p.strategy, Branch)]
    live = live_paths(prepared, extractor.data)
    check_readers(bundle, _changes(todo, units), live)
    paths = pooled_paths(pooled, prepared, extractor, bundle)
    paths |= {p.task.name: branch_paths(p, extractor) for p in branched}
    paths |= {name: [path] for name, path in live.items()}
    kept = tuple(p.task.name for p in prepared if p not in todo)
    for line in outlook(todo, paths, extractor.data.architecture, kept=kept):
        events.line(line)
    extraction = _extract(_read(prepared, todo, project.allocation), paths, extractor, events)
    run = _Run(root, cache, extractor, events, prints, paths, {p.task.name for p in todo}, branches)
    for p in pooled:
        run.train_pooled(p)
    run.train_branches(branched, project.allocation)
    for unit in units:
        run.train_unit([p for p in todo if p.task.name in unit])
    seconds = time.monotonic() - began
    events.line(f"bundle {project.bundle}: {len(todo)} trained, {len(kept)} kept, in {duration(seconds)}")
    return Outcome(bundle=str(root), trained=run.scores, kept=kept, extraction=extraction, seconds=seconds)


def _one_precision(prepared: Sequence[Prepared]) -> str:
    precisions = sorted({precision_of(p.training) for p in prepared})
    if len(precisions) > 1:
        raise TrainError(
            "tasks of one run must read the trunk in one precision",
            got=precisions,
            do="set one [training] precision",
        )
    return precisions[0]


def _check_only(project: Project, only: tuple[str, ...]) -> None:
    """One budget is for all branches together, so a choice among some of them would be another one."""
    left = [
        entry.name
        for entry in project.tasks
        if entry.name not in only and isinstance(strategy_of(project, entry), Branch)
    ]
    if project.allocation.rule == "budget" and left:
        raise ConfigError(
            "the project's [allocation] has one budget for all branches, so all are trained together",
            got=f"tasks {list(only)}, without {left}",
            do="leave --tasks out; what is trained already is not trained again",
        )


def fingerprints_of(several: Sequence[Prepared], choice: Choice) -> dict[str, dict[str, object]]:
    """What decides each trained part; for a branch that is one of several to choose from, the choice too.

    Under one budget a choice depends on all branches, so each names every other's own way of training.
    """
    found = {p.task.name: p.fingerprint() for p in several}
    among = {p.task.name: _tag(found[p.task.name]) for p in several if isinstance(p.strategy, Branch)}
    said: dict[str, object] = msgspec.to_builtins(choice)
    if choice.rule == "budget":
        said["among"] = among
    for unit in units_of({p.task.name: p.strategy for p in several if is_live(p)}):
        if len(unit) > 1:  # whoever else learns decides what each learns
            tags = {name: _tag(found[name]) for name in unit}
            for name in unit:
                found[name]["among"] = tags
    for p in several:
        if isinstance(p.strategy, Branch) and (p.strategy.layers is None or p.strategy.students):
            found[p.task.name]["allocation"] = said
    return found


def _tag(fingerprint: dict[str, object]) -> str:
    """A short name for one exact way of training. How values are computed is left out: a trained task stays."""
    named = {name: value for name, value in fingerprint.items() if name != "numerics"}
    return hashlib.sha256(msgspec.json.encode(named, order="sorted")).hexdigest()[:16]


def _is_done(bundle: Bundle, prepared: Prepared, fingerprint: dict[str, object]) -> bool:
    record = bundle.tasks.get(prepared.task.name)
    return record is not None and record.trained_with.get("fingerprint") == _tag(fingerprint)


def _todo(
    bundle: Bundle,
    prepared: Sequence[Prepared],
    prints: Mapping[str, dict[str, object]],
    units: Sequence[tuple[str, ...]],
) -> list[Prepared]:
    """What is not trained yet; of a unit all tasks, if one is missing."""
    new = {p.task.name for p in prepared if not _is_done(bundle, p, prints[p.task.name])}
    new.update(name for unit in units if not new.isdisjoint(unit) for name in unit)
    return [p for p in prepared if p.task.name in new]


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
    ) -> None:
        """`branches`: all tasks of the project that have them, also where this run leaves some out."""
        self._root, self._cache, self._extractor, self._events = root, cache, extractor, events
        self._prints, self._paths, self._todo, self._branches = prints, paths, todo, branches
        self.scores: dict[str, dict[str, dict[str, float]]] = {}

    def train_pooled(self, p: Prepared) -> None:
        """A task on kept features; its checkpoints go when it is in the bundle."""
        folder = self._folder("checkpoints", p)
        paths = self._paths[p.task.name]
        trained = train_task(p, paths, self._extractor, checkpoints=folder, events=self._events)
        self._commit([(p, trained)])
        shutil.rmtree(folder, ignore_errors=True)

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
        groves: dict[str, Grove] = {}
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
            trained = chosen_part(
                p, groves[name], chosen[name], extractor, precision=precision, folder=folder
            )
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
            checkpoint=folder / "unit.pt",
            events=self._events,
        )
        self._commit([(p, found.trained[p.task.name]) for p in unit], found.families)
        shutil.rmtree(folder, ignore_errors=True)

    def _folder(self, kind: str, p: Prepared) -> FilePath:
        """For one way of training over exact paths, trunk digest included: no other run resumes from it."""
        ways = {name: v for name, v in self._prints[p.task.name].items() if name != "allocation"}
        paths = [msgspec.to_builtins(path) for path in self._paths[p.task.name]]
        return self._cache / kind / _tag({**ways, "paths": paths, "precision": self._extractor.precision})

    def _commit(self, several: list[tuple[Prepared, Trained]], families: Sequence[FamilyDraft] = ()) -> None:
        names = [p.task.name for p, _ in several]

        def act() -> None:
            label = numerics(self._extractor.precision)
            prints = {name: {**self._prints[name], "numerics": label} for name in names}
            _commit(self._root, several, families, self._extractor, prints)

        if set(Bundle.open(self._root, verify=False).tasks) <= self._todo:
            act()  # every task of the bundle is trained by this run
        else:
            found = certified(self._root, "train", act, changing=names)
            others = len(found.before)
            said = (
                "one other task of the bundle answers its"
                if others == 1
                else f"{others} other tasks answer their"
            )
            self._events.line(f"{', '.join(names)}: {said} probes as before")
        for p, trained in several:
            name = p.task.name
            self.scores[name] = trained.scores
            self._events.line(_score_line(p, trained))
            self._events.event("task", task=name, scores=trained.scores, history=trained.fitted.history)


def _read(prepared: list[Prepared], todo: list[Prepared], choice: Choice) -> list[Prepared]:
    """The tasks whose kept values the run reads; under one budget every branch, as the choice is among all."""
    among_all = choice.rule == "budget" and any(isinstance(p.strategy, Branch) for p in todo)
    names = {p.task.name for p in todo}
    return [p for p in prepared if p.task.name in names or (among_all and isinstance(p.strategy, Branch))]


def _extract(
    todo: list[Prepared], paths: dict[str, list[Path]], extractor: Extractor, events: Events
) -> Extraction:
    progress = events.progress("encoding", unit="texts")
    requests = []
    for p in (p for p in todo if not is_live(p)):
        for path in paths[p.task.name]:
            if isinstance(p.strategy, Branch):
                requests += wanted_taps(p, path, extractor)
            else:
                requests += wanted(p, path, extractor)
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


def _commit(
    root: FilePath,
    several: Sequence[tuple[Prepared, Trained]],
    families: Sequence[FamilyDraft],
    extractor: Extractor,
    prints: Mapping[str, dict[str, object]],
) -> None:
    """Writes the tasks into the bundle; until then nothing of them is visible there."""
    drafts = []
    plan = merge({p.task.name: trained.path for p, trained in several})
    for p, trained in several:
        fingerprint = prints[p.task.name]
        record = TaskRecord(
            task=p.task,
            path=trained.path,
            trunk=extractor.digest,
            trained_with={"fingerprint": _tag(fingerprint), "polyhead": __version__, **fingerprint},
        )
        draft = Draft(
            record=record,
            arrays=trained.arrays,
            scores={"splits": trained.scores, "tried": trained.tried, "history": _untimed(trained)},
            probes=probes_of(p),
            card=card_of(p, trained, extractor.data, plan),
        )
        drafts.append(draft)
    add_tasks(root, drafts, families=families, replace=True)


def _untimed(trained: Trained) -> list[dict[str, float]]:
    """The epochs without their seconds: what a bundle holds is the same for the same seed.

    Branches that were found again come from a file, where an epoch's number has become a float.
    """
    return [
        {"epoch": int(row["epoch"]), **{n: v for n, v in row.items() if n not in ("epoch", "seconds")}}
        for row in trained.fitted.history
    ]


def _score_line(prepared: Prepared, trained: Trained) -> str:
    task = prepared.task
    metric = kind_of(task).default_metric(task)
    rows = {split.name: len(split.examples.inputs) for split in prepared.splits}
    shown = ", ".join(
        f"{split} {metric} {scores[metric]:.4f}"
        + (f" (of {n} rows)" if (n := rows.get(split, FEW)) < FEW else "")
        for split, scores in trained.scores.items()
    )
    pooler = ""
    if trained.tried and isinstance(prepared.strategy, Pooled):
        pooler = f" ({trained.path.pool.positions} chosen of {', '.join(trained.tried)})"
    if isinstance(prepared.strategy, Branch):
        own = private_layers(trained.path)
        pooler = f" ({len(own)} private layers above tap {own.start})"
    fitted = trained.fitted
    epochs = f"best of {len(fitted.history)} epochs is {fitted.best_epoch}"
    return f"{task.name}: {shown}{pooler}, {epochs}, {duration(fitted.seconds)}"
