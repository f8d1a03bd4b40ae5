"""One run of training over a frozen trunk: what its trainers share, and how trained tasks are committed."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path as FilePath
from pkgutil import resolve_name

import msgspec

from polyhead.bundle.attempts import keep_attempts
from polyhead.bundle.families import FamilyDraft
from polyhead.bundle.read import Bundle
from polyhead.bundle.write import Draft, add_tasks
from polyhead.certify import certified
from polyhead.files import remove_tree
from polyhead.plan import Path
from polyhead.project.tables import Choice
from polyhead.strategies import Strategy
from polyhead.train.data.extract import Extractor, FeatureRequest
from polyhead.train.data.prepared import Prepared
from polyhead.train.heads.baseline import with_baselines
from polyhead.train.loop.checkpoint import cache_folder
from polyhead.train.loop.events import Events
from polyhead.train.loop.numerics import numerics
from polyhead.train.record.compared import VersionComparison, rivals, unit_is_better
from polyhead.train.record.decided import Fingerprint, left_line, tag
from polyhead.train.record.draft import Trained, drafts_of
from polyhead.train.record.lines import task_lines


class Job:
    """Bundle, cache, trunk and tasks of one run, and what it has trained so far.

    `declared` are the strategies of all tasks of the project, also of those that this run leaves out; `todo` names
    the tasks to train.
    """

    def __init__(
        self,
        *,
        root: FilePath,
        cache: FilePath,
        bundle: Bundle,
        extractor: Extractor,
        events: Events,
        prepared: Sequence[Prepared],
        prints: Mapping[str, Fingerprint],
        todo: set[str],
        declared: Mapping[str, Strategy],
        allocation: Choice,
        if_better: bool,
    ) -> None:
        self.root, self.cache, self.bundle, self.extractor, self.events = root, cache, bundle, extractor, events
        self.prepared, self.todo, self.declared, self.allocation = prepared, todo, declared, allocation
        self.paths: dict[str, list[Path]] = {}  # of each task that is trained or chosen, all that are tried
        self.scores: dict[str, dict[str, dict[str, float]]] = {}
        self.left: dict[str, str] = {}  # tasks that lost to their live version: why
        self.compared: dict[str, VersionComparison] = {}
        self._prints, self._if_better = prints, if_better

    def trainers(self) -> list[Trainer]:
        """The trainers that the tasks' strategies name, in the order in which they run."""
        tasks: dict[str, list[Prepared]] = {}
        for p in self.prepared:
            tasks.setdefault(p.strategy.trainer, []).append(p)
        trainers: list[Trainer] = [resolve_name(name)(self, several) for name, several in tasks.items()]
        return sorted(trainers, key=lambda trainer: trainer.order)

    def folder(self, kind: str, p: Prepared) -> FilePath:
        """For one way of training over exact paths, trunk digest included: no other run resumes from it."""
        settings = {name: value for name, value in self._prints[p.task.name].items() if name != "allocation"}
        paths = [msgspec.to_builtins(path) for path in self.paths[p.task.name]]
        name = tag({**settings, "paths": paths, "precision": self.extractor.precision})
        return cache_folder(self.cache, kind, name)

    def commit(
        self,
        several: Sequence[tuple[Prepared, Trained]],
        families: Sequence[FamilyDraft] = (),
        *,
        checkpoints: FilePath | None = None,
    ) -> None:
        """Writes tasks into the bundle in one step, until which nothing of them is visible there.

        With `if_better` live versions that are better stay, and the attempt is remembered; else `checkpoints` go.
        """
        several = [(p, with_baselines(p, trained, self.extractor)) for p, trained in several]
        drafts = drafts_of(several, self.extractor.data, self._prints, numerics(self.extractor.precision))
        bundle = Bundle.open(self.root, verify=False)
        tasks = [p for p, _ in several]
        compared = rivals(bundle, tasks, drafts, families, self.events, strict=self._if_better)
        self.compared |= compared
        if self._if_better and compared and not unit_is_better(list(compared.values())):
            self._remember(bundle, [p.task.name for p in tasks], compared)
            return
        self._write(bundle, drafts, families)
        for p, trained in several:
            name = p.task.name
            self.scores[name] = trained.scores
            for line in task_lines(p, trained):
                self.events.line(line)
            if name in compared:
                self.events.line(f"{name}: {compared[name].line()}")
            self.events.event("task", task=name, scores=trained.scores, history=trained.fitted.history)
        if checkpoints is not None:
            remove_tree(checkpoints, root=self.cache)

    def _write(self, bundle: Bundle, drafts: list[Draft], families: Sequence[FamilyDraft]) -> None:
        names = [draft.record.task.name for draft in drafts]

        def write() -> None:
            add_tasks(self.root, drafts, families=families, replace=True)

        if set(bundle.lines) <= self.todo - self.left.keys():
            write()  # every task of the bundle is trained by this run
            return
        others = len(certified(self.root, "train", write, changing=names).before)
        subject = "one other task of the bundle answers its" if others == 1 else f"{others} other tasks answer their"
        self.events.line(f"{', '.join(names)}: {subject} probes as before")

    def _remember(self, bundle: Bundle, names: list[str], compared: Mapping[str, VersionComparison]) -> None:
        """Notes which tasks lost, and says so; checkpoints stay, so that `retrain` is quick."""
        attempts = {
            name: rival.attempt(tag(self._prints[name]), bundle.lines[name].record) for name, rival in compared.items()
        }
        keep_attempts(self.root, attempts)
        for name in names:
            shares = f"it shares arrays with {', '.join(compared)}, of which the live version stays"
            self.left[name] = compared[name].kept_line(bundle.version(name)) if name in compared else shares
            self.events.line(left_line(name, self.left[name]))


class Trainer(ABC):
    """How a run over a frozen trunk trains the tasks whose strategies name this class.

    `prepared` are all of these tasks, `todo` those that are to be trained.
    """

    order = 0  # trainers of a lower number run first

    def __init__(self, job: Job, prepared: Sequence[Prepared]) -> None:
        self.job, self.prepared = job, prepared
        self.todo = [p for p in prepared if p.task.name in job.todo]

    @abstractmethod
    def paths(self) -> dict[str, list[Path]]:
        """Every path that is tried, by task; of tasks that need no training they may be left out."""

    def steps(self) -> list[tuple[str, ...]]:
        """Tasks that are written in one step, in the order of the steps."""
        return [(p.task.name,) for p in self.todo]

    def readers(self) -> Sequence[Prepared]:
        """The tasks whose kept values the run reads."""
        return self.todo

    def requests(self, prepared: Prepared, path: Path) -> list[FeatureRequest]:
        """What is to be encoded and kept before a task is trained on this path."""
        return []

    @abstractmethod
    def train(self) -> None:
        """Trains `todo` and commits each step to the bundle."""
