"""One run of `train`: what it was asked for, the bundles that it makes, and its outcome."""

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
from polyhead.train.record.compared import VersionComparison
from polyhead.train.record.decided import TrainOptions
from polyhead.train.runs import ProcessRank
from polyhead.values import Value

Scores = dict[str, dict[str, dict[str, float]]]
"""task -> split -> metric -> value"""


class CandidateResult(Value):
    """Validation scores of one candidate, or the reason for its failure."""

    candidate: SearchPoint
    score: float | None = None  # of its best epoch, by the task's metric; None: it failed
    best_epoch: int | None = None
    epochs: int | None = None  # that were trained, until patience ran out
    error: str = ""  # what ended it, where a number was not finite


def candidate_name(candidate: SearchPoint) -> str:
    """`rate 0.0001 epsilon 1e-08 dropout 0.1`."""
    return f"rate {candidate.learning_rate:g} epsilon {candidate.epsilon:g} dropout {candidate.dropout:g}"


class TrainingResult(msgspec.Struct, frozen=True, kw_only=True):
    """Result of `train` for one bundle, or for the bundles of one folder."""

    bundle: str  # folder of the bundle, or of `bundles`
    bundles: dict[str, TrainingResult] = {}  # of a recipe that makes several
    trained: Scores = {}  # of the tasks that were trained now
    kept: tuple[str, ...] = ()  # tasks that were trained already, unchanged
    left: dict[str, str] = {}  # tasks that were not trained this way, and stay so: why
    compared: dict[str, VersionComparison] = {}  # tasks that had a live version: it beside the new one
    extraction: Extraction | None = None  # of a frozen trunk
    trunk: str | None = None  # digest of the bundle's trunk, where it learned
    learned_from: str | None = None  # digest of the trunk from which that began
    taught: tuple[str, ...] = ()  # tasks that it learned from
    scores: Scores = {}  # of those tasks, trained now or kept; where a trunk left tasks out, of these
    chosen: SearchPoint | None = None  # by a search
    tried: tuple[CandidateResult, ...] = ()
    seconds: float


class UsedStore(msgspec.Struct, frozen=True, kw_only=True):
    """A store of a corpus that training takes features from."""

    location: str
    facts: TrunkFacts  # of the trunk that the tasks stand on


class TrainingRun(msgspec.Struct, frozen=True, kw_only=True):
    """Input of a run: the project, its prepared tasks, the folders to write to, and the listener."""

    project: Project
    prepared: list[Prepared]
    load: Callable[[], TrunkData]  # the trunk that is frozen, or from which training starts
    folder: FilePath  # where the project's relative paths start
    root: FilePath  # of the bundle, or of a folder of bundles
    cache: FilePath
    events: Events
    place: ProcessRank
    only: tuple[str, ...]
    options: TrainOptions
    store: UsedStore | None = None  # from which features come; no text is then encoded

    @property
    def data(self) -> TrunkData:
        """The trunk with its arrays."""
        return self.load()

    def part(self, name: str) -> TrainingRun:
        """The same for one bundle of a folder of bundles."""
        project = msgspec.structs.replace(self.project, bundle=f"{self.project.bundle}/{name}")
        return msgspec.structs.replace(self, project=project, root=self.root / name, events=self.events.within(name))


class BundleTraining(ABC):
    """Makes a bundle, or several; what is there of it is kept."""

    run: TrainingRun

    @abstractmethod
    def check(self) -> None:
        """Raises what training would, as far as that is known before: of several bundles none is then trained."""

    @abstractmethod
    def train(self) -> TrainingResult:
        """Finds out what is trained already, trains the rest, and writes it."""


class Bundles(BundleTraining):
    """Several bundles in one folder, each a training of its own; `lines` come before, `ending` makes those after."""

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
        """Trains one after the other, once it is known that none is refused."""
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
