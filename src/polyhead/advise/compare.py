"""The comparison of all ways of sharing on one set of tasks: priced, trained, scored, timed; finished runs are kept."""

from __future__ import annotations

import math
import shutil
import statistics
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path

import msgspec

from polyhead.advise.measure import COUNTS, WayCosts, counted_costs, measured_speed
from polyhead.advise.rows import FinishedRun, Kept, TaskScore, data_digest, key_of
from polyhead.advise.sharing_ways import TaskSet, Way, chosen_ways, declared, project_file, unfit, ways_of
from polyhead.bundle.read import Bundle
from polyhead.deep.training_time import STOPPED, UPDATE, Rates, Sizes, frozen_seconds, rates_of, sizes_of, work_on_path
from polyhead.encoder.shape import Architecture as Shape
from polyhead.errors import ConfigError, TrainError
from polyhead.files import replace_file
from polyhead.machine import Clock, processor
from polyhead.progress import counted, duration
from polyhead.project.recipes import FineTune
from polyhead.project.tables import Project, bundles_of
from polyhead.tasks.kinds import kind_of
from polyhead.train.data.encoder import load_any_trunk
from polyhead.train.data.prepare import prepare
from polyhead.train.data.prepared import Prepared
from polyhead.train.events import Events
from polyhead.train.run import train_project
from polyhead.values import Value

PROJECTS, BUNDLES, CACHE = "projects", "bundles", "cache"
AT = 8  # numbers of tasks for which the plot and the frontier count the cost


class Settings(Value):
    """The ways to compare, and the limits of time."""

    only: tuple[str, ...] = ()  # names of ways or strategies; (): all
    seeds: tuple[int, ...] = (1,)
    minutes: float | None = None  # a run is not started if it would end later, by its estimate
    epochs: int | None = None  # maximum passes for ways that run layers in training
    counts: tuple[int, ...] = COUNTS
    keep_bundles: bool = False
    backend: str | None = None  # timed numbers of tasks
    timed: bool = True  # False: costs are counted, and nothing is timed


class Compared(Value):
    """One way: its quality over seeds, and its costs."""

    name: str
    title: str
    kind: str
    quality: float  # points, mean over seeds of the mean over tasks
    spread: float  # standard deviation over seeds; 0 for one seed
    seeds: int
    validation: float
    tasks: dict[str, float]  # each one's mean over seeds, points
    seconds: float  # to train once, mean
    retrained: str
    costs: WayCosts | None
    on_frontier: bool = False
    stood_in: dict[str, str] = {}

    @property
    def gflop(self) -> float:
        """Of `AT` tasks on one text; infinite if not counted."""
        return float("inf") if self.costs is None else (self.costs.counted_for(AT) or self.costs.of_set).flops / 1e9

    @property
    def group(self) -> str:
        """The ways with the same colour and mark in the plot."""
        joint = self.name.endswith("-joint")
        return "the trunk learns too" if joint else "a trunk a task" if self.kind == "fine_tune" else self.kind


class WayComparison(Value):
    """All ways that have a row, by cost."""

    project: str
    trunk: str
    tasks: dict[str, str]  # each one's metric
    left: tuple[str, ...]
    ways: tuple[Compared, ...]
    lacking: dict[str, tuple[str, ...]]  # by seed, the ways that were not run
    refused: dict[str, str]  # ways that cannot be trained on these tasks: the reason
    seconds: float  # of all rows together


class Run(Value, eq=False):
    """One possible run."""

    way: Way
    seed: int
    project: Project
    key: str
    estimated: float


class Comparing:
    """A comparison over a set of tasks, in its own folder."""

    def __init__(self, tasks: TaskSet, name: str, folder: Path, settings: Settings, events: Events) -> None:
        self.tasks, self.name, self.folder, self.settings, self.events = tasks, name, folder, settings, events
        self.home, self.kept = Path(tasks.folder), Kept(folder)
        self.data = load_any_trunk(tasks.project, self.home)
        self.ways = chosen_ways(ways_of(self.data.architecture.layers), settings.only)
        self.digest = data_digest(tasks) + self.data.digest
        self.refused: dict[str, str] = {}  # ways that cannot be trained on these tasks: the reason
        self._prepared: dict[str, list[Prepared]] = {}

    def run(self) -> WayComparison:
        """Makes the missing runs, the cheapest first and seed by seed, within the limit of minutes."""
        clock, runs = Clock(), self.runs()
        missing = [run for run in runs if self.kept.row(run.way.name, run.seed, run.key) is None]
        names = {way.name for way in self.ways}
        corrections = Corrections((r.way, r.estimated, r.seconds) for r in self.kept.rows() if r.way in names)
        for line in self.price_lines(runs, missing, corrections):
            self.events.line(line)
        for number, run in enumerate(missing, 1):
            expected = corrections.corrected(run.way.name, run.estimated)
            if self.settings.minutes is not None and clock.seconds + expected > 60 * self.settings.minutes:
                self.events.line(f"{run.way.name}, seed {run.seed}: not begun, it would take {duration(expected)}")
                continue
            self.events.line(f"{number} of {len(missing)}: {run.way.name}, seed {run.seed}, about {duration(expected)}")
            try:
                row = self.trained(run)
            except (ConfigError, TrainError) as error:  # a setting that one way cannot use does not stop the others
                self.refused[run.way.name] = str(error)
                self.events.line(f"{run.way.name}, seed {run.seed}: it cannot be trained: {error}")
                continue
            corrections.add(run.way.name, run.estimated, row.seconds)
            self.events.line(f"{run.way.name}, seed {run.seed}: {row.quality:.2f} points, in {duration(row.seconds)}")
        return self.comparison(runs)

    def known(self) -> WayComparison:
        """The result of existing rows; nothing is priced or run."""
        return self.comparison(self._planned(dict.fromkeys((way.name for way in self.ways), 0.0)))

    @cached_property
    def sizes(self) -> dict[str, Sizes]:
        """The size of each task."""
        return {p.task.name: sizes_of(self.data, p) for p in self.prepared(self.ways[0])}

    @property
    def tokens(self) -> int:
        """Average tokens of a training text: the text for which costs are counted."""
        sizes = self.sizes.values()
        return max(1, round(sum(size.train for size in sizes) / sum(size.rows for size in sizes)))

    def runs(self) -> list[Run]:
        """Every run, by seed, then the cheapest first."""
        rates = rates_of(self.data, self.prepared(self.ways[0]))
        sizes = self.sizes
        priced = sorted(
            ((seconds_of(way, self.prepared(way), sizes, rates, self.data.architecture), way) for way in self.ways),
            key=lambda pair: pair[0],
        )
        return self._planned({way.name: round(estimated, 1) for estimated, way in priced})

    def _planned(self, estimated: Mapping[str, float]) -> list[Run]:
        """The runs, seed by seed, by their estimates."""
        ways, runs = {way.name: way for way in self.ways}, []
        for seed in self.settings.seeds:
            for name, seconds in estimated.items():
                project = self.declared(ways[name], seed)
                key = key_of(project, self.digest)
                runs.append(Run(way=ways[name], seed=seed, project=project, key=key, estimated=seconds))
        return runs

    def declared(self, way: Way, seed: int) -> Project:
        """The project of a run; its bundle is in the comparison's folder, separate for other data."""
        project = declared(self.tasks, way, seed=seed, bundle="", epochs=self.settings.epochs)
        bundle = self.folder / BUNDLES / f"{way.name}-{seed}-{key_of(project, self.digest)[:8]}"
        return msgspec.structs.replace(project, bundle=str(bundle.resolve()))

    def prepared(self, way: Way) -> list[Prepared]:
        """The tasks in the form in which the way trains them, read once."""
        if way.name not in self._prepared:
            self._prepared[way.name] = prepare(self.declared(way, self.settings.seeds[0]), self.home)
        return self._prepared[way.name]

    def price_lines(self, runs: Sequence[Run], missing: Sequence[Run], corrections: Corrections) -> list[str]:
        """The estimated cost of all runs, reported beforehand."""
        seconds = sum(corrections.corrected(run.way.name, run.estimated) for run in missing)
        within = "" if self.settings.minutes is None else f"; at most {self.settings.minutes:g} minutes were given"
        done = f", {len(runs) - len(missing)} are there" if len(missing) < len(runs) else ""
        names = ", ".join(
            f"{run.way.name} {duration(corrections.corrected(run.way.name, run.estimated))}"
            for run in runs[: len(self.ways)]
        )
        price = f"price: {counted(len(missing), 'run')} in about {duration(seconds)}{done}{within}"
        return [price, f"of one seed: {names}"]

    def trained(self, run: Run) -> FinishedRun:
        """Trains and scores a run, counts and times its way if that is missing, and stores its row."""
        clock, way = Clock(), run.way
        projects = self.folder / PROJECTS
        projects.mkdir(exist_ok=True)
        shown = msgspec.structs.replace(run.project, bundle=way.name)
        replace_file(projects / f"{way.name}.toml", project_file(shown, self.home).encode())
        train_project(run.project, folder=self.home, cache=(self.folder / CACHE).resolve(), events=Events())
        seconds = clock.seconds
        roots = [self.home / bundle for bundle in bundles_of(run.project)]
        row = FinishedRun(
            way=way.name,
            seed=run.seed,
            key=run.key,
            tasks=trained_scores(roots),
            seconds=round(seconds, 1),
            estimated=run.estimated,
            stood_in={e.name: why for e in self.tasks.project.tasks if (why := unfit(way, e))},
            processor=processor().model,
        )
        if self.known_costs(way) is None:
            self.keep_costs(way, roots)
        self.kept.keep(row)
        bundle = Path(run.project.bundle)
        if not self.settings.keep_bundles and bundle.is_relative_to(self.folder.resolve()):
            shutil.rmtree(bundle, ignore_errors=True)
        return row

    def known_costs(self, way: Way) -> WayCosts | None:
        """The cost of the way over this trunk and these texts, if known."""
        return self.kept.costs(way.name, self._key(way))

    def keep_costs(self, way: Way, roots: Sequence[Path]) -> None:
        """Counts and times a trained set, and stores its cost."""
        self.kept.keep_costs(way.name, self._key(way), self.costs(way, roots))

    def _key(self, way: Way) -> str:
        """The key of the way, independent of its seed."""
        return key_of(self.declared(way, 0), self.digest)

    def costs(self, way: Way, roots: Sequence[Path]) -> WayCosts:
        """Counted and measured costs of a trained set."""
        apart = way.kind == "fine_tune"
        counted = counted_costs(roots, self.tokens, self.settings.counts, apart=apart)
        if not self.settings.timed:
            return counted
        inputs = {p.task.name: (p.test or p.validation).examples.inputs for p in self.prepared(way)}
        speeds, label = measured_speed(
            roots, inputs, counts=self.settings.counts, apart=apart, backend=self.settings.backend, say=self.events.line
        )
        measured = {str(count): speed for count, speed in speeds.items()}
        return msgspec.structs.replace(counted, measured=measured, backend=label)

    def comparison(self, runs: Sequence[Run]) -> WayComparison:
        """The result of the existing rows."""
        rows: dict[str, list[FinishedRun]] = {}
        lacking: dict[str, tuple[str, ...]] = {}
        for run in runs:
            row = self.kept.row(run.way.name, run.seed, run.key)
            if row is None:
                seed = str(run.seed)
                lacking[seed] = (*lacking.get(seed, ()), run.way.name)
            else:
                rows.setdefault(run.way.name, []).append(row)
        ways = [compare_ways(way, rows[way.name], self.known_costs(way)) for way in self.ways if way.name in rows]
        first = self.prepared(self.ways[0])
        return WayComparison(
            project=self.name,
            trunk=self.tasks.project.trunk.name,
            tasks={p.task.name: kind_of(p.task).default_metric(p.task) for p in first},
            left=self.tasks.left,
            ways=with_frontier(ways),
            lacking=lacking,
            refused=self.refused,
            seconds=round(sum(row.seconds for way_rows in rows.values() for row in way_rows), 1),
        )


def trained_scores(roots: Sequence[Path]) -> dict[str, TaskScore]:
    """Each task's own metric, in points, from trained bundles."""
    scores = {}
    for root in roots:
        bundle = Bundle.open(root, verify=False)
        for name, record in bundle.tasks.items():
            metric, splits = kind_of(record.task).default_metric(record.task), bundle.split_scores(name)
            test = splits.get("test", {}).get(metric)
            scores[name] = TaskScore(
                metric=metric,
                validation=round(100 * splits["validation"].get(metric, 0.0), 4),
                test=None if test is None else round(100 * test, 4),
            )
    return scores


def compare_ways(way: Way, rows: Sequence[FinishedRun], costs: WayCosts | None) -> Compared:
    """A way's rows of all seeds, combined."""
    qualities = [row.quality for row in rows]
    return Compared(
        name=way.name,
        title=way.title,
        kind=way.kind,
        quality=round(statistics.mean(qualities), 3),
        spread=round(statistics.stdev(qualities), 3) if len(rows) > 1 else 0.0,
        seeds=len(rows),
        validation=round(statistics.mean(row.validation for row in rows), 3),
        tasks={name: round(statistics.mean(row.tasks[name].value for row in rows), 3) for name in rows[0].tasks},
        seconds=round(statistics.mean(row.seconds for row in rows), 1),
        retrained=way.retrained,
        costs=costs,
        stood_in=rows[0].stood_in,
    )


def with_frontier(ways: Sequence[Compared]) -> tuple[Compared, ...]:
    """The ways by cost, marked if no cheaper way equals them."""
    ordered = sorted(ways, key=lambda way: (way.gflop, -way.quality, way.name))
    best, marked = -float("inf"), []
    for way in ordered:
        marked.append(msgspec.structs.replace(way, on_frontier=way.costs is not None and way.quality > best))
        best = max(best, way.quality)
    return tuple(marked)


def seconds_of(way: Way, prepared: Sequence[Prepared], sizes: Mapping[str, Sizes], rates: Rates, shape: Shape) -> float:
    """Seconds of training the way, evaluation included; kept states are charged in part, since ways share them."""
    total = 0.0
    for p in prepared:
        for strategy in (p.strategy, *way.besides):
            with_strategy, size = msgspec.structs.replace(p, strategy=strategy), sizes[p.task.name]
            if way.trunk_learns:
                total += _learned_seconds(way, with_strategy, size, rates, shape)
            else:
                total += frozen_seconds(with_strategy, size, rates, shape)
    return total


def _learned_seconds(way: Way, p: Prepared, size: Sizes, rates: Rates, shape: Shape) -> float:
    """The same of one task, where the trunk learns with it."""
    work, steps = work_on_path(p, shape), max(1, math.ceil(size.rows / p.training.batch))
    passes = p.training.schedule(steps).most_updates / steps
    stopped = passes * (STOPPED if isinstance(way.recipe, FineTune) else 1.0)
    learned = size.train * rates.learn + size.held * rates.encode
    ended = (size.held + size.test) * rates.encode * work.run
    return stopped * (learned * work.run + steps * 4 * UPDATE) + 2 * ended


class Corrections:
    """Ratios of actual to estimated durations, by way, and over all for ways that never ran."""

    def __init__(self, done: Iterable[tuple[str, float, float]] = ()) -> None:
        self._done: dict[str, list[tuple[float, float]]] = {}
        for way, estimated, seconds in done:
            self.add(way, estimated, seconds)

    def add(self, way: str, estimated: float, seconds: float) -> None:
        """Records a finished run; `estimated` is without corrections."""
        self._done.setdefault(way, []).append((estimated, seconds))

    def corrected(self, way: str, estimated: float) -> float:
        """The estimate times measured over estimated seconds of this way's runs, or of all runs if it has none."""
        runs = self._done.get(way) or [pair for pairs in self._done.values() for pair in pairs]
        if not runs:
            return estimated
        return estimated * sum(taken for _, taken in runs) / max(1e-9, sum(estimate for estimate, _ in runs))
