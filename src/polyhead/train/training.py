"""One run of `train`: its input, the bundles that it makes, and its outcome."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path as FilePath

import msgspec

from polyhead.bundle.format import BUNDLE
from polyhead.encoder.data import TrunkData, TrunkFacts
from polyhead.errors import BundleError
from polyhead.progress import duration
from polyhead.project.recipes import SearchPoint
from polyhead.project.tables import Project
from polyhead.train.data.prepared import Prepared
from polyhead.train.data.source import Extraction
from polyhead.train.events import Events
from polyhead.train.record.comparison import VersionComparison
from polyhead.train.record.selection import TrainOptions
from polyhead.train.runs import ProcessRank
from polyhead.values import Value

Scores = dict[str, dict[str, dict[str, float]]]
"""task -> split -> metric -> value"""


class CandidateResult(Value):
    """Validation scores of one candidate, or the reason for its failure."""

    candidate: SearchPoint
    score: float | None = None  # of its best epoch, by the task's metric; None: it failed
    best_epoch: int | None = None
    epochs: int | None = None  # epochs trained, until patience ran out
    error: str = ""  # the cause of the end, if a number was not finite


def candidate_name(candidate: SearchPoint) -> str:
    """`rate 0.0001 epsilon 1e-08 dropout 0.1`."""
    return f"rate {candidate.learning_rate:g} epsilon {candidate.epsilon:g} dropout {candidate.dropout:g}"


class TrainingResult(msgspec.Struct, frozen=True, kw_only=True):
    """The result of `train` for one bundle, or for the bundles of one folder."""

    bundle: str  # folder of the bundle, or of `bundles`
    bundles: dict[str, TrainingResult] = {}  # for a recipe that makes several
    trained: Scores = {}  # of the tasks trained now
    versions: dict[str, str] = {}  # the new version of each, over a frozen trunk
    kept: tuple[str, ...] = ()  # tasks already trained, unchanged
    left: dict[str, str] = {}  # tasks that were not trained this way, and are kept: the reason
    compared: dict[str, VersionComparison] = {}  # tasks with a live version: its comparison with the new one
    extraction: Extraction | None = None  # of a frozen trunk
    trunk: str | None = None  # digest of the bundle's trunk, if it was trained
    learned_from: str | None = None  # digest of the trunk that training started from
    taught: tuple[str, ...] = ()  # tasks it was trained on
    scores: Scores = {}  # of those tasks, trained now or kept; if a trunk left tasks out, of these
    chosen: SearchPoint | None = None  # by a search
    tried: tuple[CandidateResult, ...] = ()
    seconds: float
    report: str | None = None  # the page of answers to rows held out


class UsedStore(msgspec.Struct, frozen=True, kw_only=True):
    """A corpus store that training takes features from."""

    location: str
    facts: TrunkFacts  # of the trunk below the tasks


class TrainingRun(msgspec.Struct, frozen=True, kw_only=True):
    """The input of a run: the project, its prepared tasks, the folders to write to, and the listener."""

    project: Project
    prepared: list[Prepared]
    load: Callable[[], TrunkData]  # the frozen trunk, or the one that training starts from
    folder: FilePath  # the base of the project's relative paths
    root: FilePath  # of the bundle, or of a folder of bundles
    cache: FilePath
    events: Events
    place: ProcessRank
    only: tuple[str, ...]
    options: TrainOptions
    store: UsedStore | None = None  # the source of features; no text is then encoded

    @property
    def data(self) -> TrunkData:
        """The trunk with its arrays."""
        return self.load()

    def part(self, name: str) -> TrainingRun:
        """The same for one bundle of a folder of bundles."""
        project = msgspec.structs.replace(self.project, bundle=f"{self.project.bundle}/{name}")
        return msgspec.structs.replace(self, project=project, root=self.root / name, events=self.events.within(name))


class BundleTraining(ABC):
    """Makes a bundle, or several; existing parts are kept."""

    run: TrainingRun

    @abstractmethod
    def check(self) -> None:
        """Raises the foreseeable errors of training: of several bundles none is then trained."""

    @abstractmethod
    def train(self) -> TrainingResult:
        """Determines what is trained already, trains the rest, and writes it."""


class Bundles(BundleTraining):
    """Several bundles in one folder, each with its own training; `lines` come before, `ending` makes those after."""

    def __init__(
        self,
        run: TrainingRun,
        trainings: Mapping[str, BundleTraining],
        lines: Sequence[str],
        ending: Callable[[Mapping[str, TrainingResult]], list[str]],
    ) -> None:
        self.run, self.trainings, self._lines, self._ending = run, trainings, lines, ending
        if (run.root / BUNDLE).exists():
            raise BundleError(
                f"{run.root} is a bundle, and this recipe makes a folder of several",
                got=BUNDLE,
                do="name another folder as the project's bundle",
            )

    def check(self) -> None:
        """Checks all of them."""
        for training in self.trainings.values():
            training.check()

    def train(self) -> TrainingResult:
        """Trains one after the other, after all have been checked."""
        began, outcomes, say = time.monotonic(), dict[str, TrainingResult](), self.run.events.line
        self.check()
        for line in self._lines:
            say(line)
        for number, (name, training) in enumerate(self.trainings.items(), 1):
            say(f"{number} of {len(self.trainings)}: {name}")
            outcomes[name] = training.train()
        seconds = time.monotonic() - began
        *lines, last = self._ending(outcomes)
        for line in (*lines, f"{last} in {duration(seconds)}"):
            say(line)
        return TrainingResult(bundle=str(self.run.root), bundles=outcomes, seconds=seconds)
