"""The runs behind Du et al. 2020 at our scale: trunks that learned from all tasks but one, or but one group, or all.

Eight of the paper's fourteen tasks, in its five groups; Amazon and Yelp are not here. Stage 1: every update holds a
batch of every task, weights by size with exponent 0.1, heads read the first position of the last layer. Stage 2: the
trunk is frozen and a pooler and a head learn a task that it never saw. Each run is one row of a study, so that it goes
on where it stopped; learned trunks lie beside the rows, features are deleted as soon as they were used.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path as FilePath
from typing import TYPE_CHECKING

import msgspec

from polyhead.project.recipes import Joint, Sampling, Training, Weighting
from polyhead.project.strategies import Pooled
from polyhead.values import Value
from studies.shared import runs
from studies.shared.data import Set, prepared_of
from studies.shared.runs import Facts, Rows, Say, silent, whole_digest
from studies.shared.steps import fine_tune, head, learn, read_once

if TYPE_CHECKING:
    from polyhead.encoder.data import TrunkData
    from polyhead.train.data.prepared import Prepared

SETS = (
    Set(folder="glue_sst2", name="sst2", group="SA", metric="accuracy"),
    Set(folder="imdb", group="SA", metric="accuracy"),
    Set(folder="glue_mnli", name="mnli", test="validation", group="NLI", metric="accuracy"),
    Set(folder="glue_rte", name="rte", test="validation", group="NLI", metric="accuracy"),
    Set(folder="glue_mrpc", name="mrpc", group="PP", metric="accuracy"),
    Set(folder="ag_news", group="DOC", metric="accuracy"),
    Set(folder="dbpedia14", name="dbpedia", group="DOC", metric="accuracy"),
    Set(folder="glue_cola", name="cola", test="validation", group="LA", metric="accuracy"),
)
MORE = (
    Set(folder="glue_qnli", name="qnli", test="validation", group="NLI", metric="accuracy"),
    Set(folder="glue_qqp", name="qqp", group="PP", metric="accuracy"),
    Set(folder="tweeteval_sentiment", name="tweets", group="SA", metric="accuracy"),
)
# Rows of the paper's table 4, as layers/positions; codecs stand behind the layer mean, where they are smallest.
POOLERS = {
    "LAST/CLS": Pooled(layers="last", positions="first"),
    "LAST/POSAVG": Pooled(layers="last", positions="mean"),
    "LAST/MHA": Pooled(layers="last", positions="attention"),
    "AVG/MHA": Pooled(layers="mean", of=4, positions="attention"),
    "COMB/MHA": Pooled(layers="learned", positions="attention"),
    "AVG/MHA u8": Pooled(layers="mean", of=4, positions="attention", codec="uint8"),
    "AVG/MHA 1bit": Pooled(layers="mean", of=4, positions="attention", codec="sign"),
}
OF_PLAIN, OF_GROUP = tuple(POOLERS)[:5], ("AVG/MHA",)
FULL, FULL_LEARNED = "plain trunk, fine-tuned", "leave-one-out trunk, fine-tuned"
OWN = "LAST/CLS"

STAGE1 = Pooled(layers="last", positions="first", codec="float32")
RECIPE = Joint(
    sampling=Sampling(kind="all"),
    weighting=Weighting(kind="size", exponent=0.1, scaled=False),
    families=(),
    validation_rows=100,
)


class Settings(Value):
    """What decides every run; the learning rates and epochs are ours, as the paper has none."""

    sets: tuple[Set, ...] = SETS
    rows: int = 1000  # training rows of each set
    validation: int = 300  # rows of train set aside for every choice
    test: int = 10_000  # rows of the reported split at most: all of them, of the eight sets
    max_tokens: int = 128
    learning: Training = Training(epochs=2, patience=2, batch=16, learning_rate=2e-4, warmup=0.06)
    heads: Training = Training(epochs=30, patience=6)
    full: Training = Training(epochs=3, patience=3, batch=16, learning_rate=2e-4, warmup=0.1)
    recipe: Joint = RECIPE
    seed: int = 1

    @property
    def digest(self) -> str:
        """Rows of other settings are other rows; seeds of the same settings have one digest."""
        return whole_digest([msgspec.structs.replace(self, seed=0), STAGE1, POOLERS])

    @property
    def groups(self) -> dict[str, tuple[Set, ...]]:
        """The sets by group."""
        groups: dict[str, list[Set]] = {}
        for dataset in self.sets:
            groups.setdefault(dataset.group, []).append(dataset)
        return {group: tuple(sets) for group, sets in groups.items()}


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """Runs that belong together, as they read one trunk; jobs do not depend on each other."""

    name: str
    run: Callable[[], None]


class LeaveOut(runs.Runs):
    """All runs, and what they share: the data, the plain trunk, the rows."""

    def __init__(
        self,
        data: FilePath,
        folder: FilePath,
        study: Rows,
        settings: Settings | None = None,
        *,
        trunk: TrunkData | None = None,
        say: Say = silent,
    ) -> None:
        self.settings = settings or Settings()
        self.max_tokens = self.settings.max_tokens
        folder = folder / self.settings.digest / f"seed-{self.settings.seed}"
        super().__init__(data, folder, study, trunk=trunk, say=say)

    def jobs(self) -> tuple[Job, ...]:
        """Everything, block by block: the plain trunk, each task left out, each group of several left out, none."""
        groups, sets = self.settings.groups, self.settings.sets
        jobs = [
            Job(name=f"plain trunk, {dataset.task}", run=partial(self.of_plain, dataset))
            for dataset in self.settings.sets
        ]
        for dataset in sets:
            is_alone = len(groups[dataset.group]) == 1
            jobs.append(Job(name=f"without {dataset.task}", run=partial(self.without_task, dataset, is_group=is_alone)))
        for group, members in groups.items():
            if len(members) > 1:
                jobs.append(Job(name=f"without group {group}", run=partial(self.without_group, members)))
        return (*jobs, Job(name="all tasks", run=self.of_all))

    def of_plain(self, dataset: Set) -> None:
        """Blocks a and b."""
        self._full(dataset, FULL, lambda: self.plain)
        self._frozen("b", OF_PLAIN, dataset, lambda: self.plain)

    def without_task(self, dataset: Set, *, is_group: bool) -> None:
        """Block c and its fine-tuning in block a; block d too where the task is a group of its own."""
        trunk = self._trunk_later([dataset])
        self._frozen("c", tuple(POOLERS), dataset, trunk)
        if is_group:
            for name in OF_GROUP:
                (row,) = self.rows_of(self._key("c", name, dataset))
                facts = {key: value for key, value in row.items() if key not in self._key("c", name, dataset)}
                self._row("d", name, dataset, partial(dict, facts, same_as="c"))
        self._full(dataset, FULL_LEARNED, trunk)

    def without_group(self, sets: Iterable[Set]) -> None:
        """Block d."""
        trunk = self._trunk_later(sets)
        for dataset in sets:
            self._frozen("d", OF_GROUP, dataset, trunk)

    def of_all(self) -> None:
        """Block e: the heads that the trunk learned with, no further training."""
        lacking = [dataset for dataset in self.settings.sets if not self.rows_of(self._key("e", OWN, dataset))]
        if lacking:
            scores = self._learned([])[1]["own"]
            assert isinstance(scores, dict)
            for dataset in lacking:
                self._row("e", OWN, dataset, partial(dict, scores[dataset.task]))

    def prepared(self, dataset: Set, strategy: Pooled, training: Training) -> Prepared:
        """A set's rows, the reported split cut to evenly spaced ones."""
        settings = self.settings
        return prepared_of(
            self.data,
            dataset,
            train=settings.rows,
            validation=settings.validation,
            test=settings.test,
            strategy=strategy,
            training=msgspec.structs.replace(training, seed=settings.seed),
        )

    def trunks(self) -> tuple[tuple[Set, ...], ...]:
        """What each learned trunk leaves out: one task, a group of several, nothing."""
        groups = [sets for sets in self.settings.groups.values() if len(sets) > 1]
        return (*((dataset,) for dataset in self.settings.sets), *groups, ())

    def trained_on(self, without: Iterable[Set]) -> tuple[Set, ...]:
        """The sets that a trunk learns from."""
        return tuple(dataset for dataset in self.settings.sets if dataset not in tuple(without))

    def _trunk_later(self, without: Iterable[Set]) -> Callable[[], TrunkData]:
        """The learned trunk, made when it is first asked for."""
        from polyhead.bundle.read import Bundle

        left_out = tuple(without)
        return lambda: Bundle.open(self._learned(left_out)[0]).trunk()

    def _learned(self, without: Iterable[Set]) -> tuple[FilePath, Facts]:
        """The bundle of the trunk that learned from the other tasks, made now if it is not there, and its row."""
        left_out = tuple(without)
        name = "without-" + "-".join(dataset.task for dataset in left_out) if left_out else "all"
        folder = self.folder / "trunks" / name
        key: Facts = {"stage": "trunk", "name": name, "digest": self.settings.digest, "seed": self.settings.seed}
        row = self.learned(folder, key, partial(self._learn, left_out, folder))
        self.say(f"trunk  {name:24s} {row['seconds']} s  mean validation {row['score']}")
        return folder, row

    def _learn(self, without: tuple[Set, ...], folder: FilePath) -> Facts:
        learning = self.settings.learning
        return learn(
            [self.prepared(dataset, STAGE1, learning) for dataset in self.trained_on(without)],
            self.plain,
            self.settings.recipe,
            held=[self.prepared(dataset, STAGE1, learning) for dataset in without],
            folder=folder,
            label=folder.name,
            precision=self._precision,
            say=self.say,
            own_heads=not without,
        )

    def _frozen(self, block: str, names: Iterable[str], dataset: Set, trunk: Callable[[], TrunkData]) -> None:
        """Poolers and heads of a task over a frozen trunk; its texts are read once for all that are lacking."""
        from polyhead.train.data.extract import Extractor

        lacking = [name for name in names if not self.rows_of(self._key(block, name, dataset))]
        if not lacking:
            return
        folder = self.folder / "features" / f"{block}-{dataset.task}"
        extractor = Extractor(trunk(), folder=folder, precision=self._precision)
        prepared = {name: self.prepared(dataset, POOLERS[name], self.settings.heads) for name in lacking}
        read_once(list(prepared.values()), extractor)
        for name in lacking:
            self._row(block, name, dataset, partial(head, prepared[name], extractor))
        shutil.rmtree(folder, ignore_errors=True)

    def _full(self, dataset: Set, name: str, trunk: Callable[[], TrunkData]) -> None:
        if not self.rows_of(self._key("a", name, dataset)):
            prepared = self.prepared(dataset, STAGE1, self.settings.full)
            self._row("a", name, dataset, lambda: fine_tune(prepared, trunk(), precision=self._precision))

    def _row(self, block: str, name: str, dataset: Set, run: Callable[[], Facts]) -> None:
        row = self.study.row(run, **self._key(block, name, dataset))
        self.say(f"{block}      {name:32s} {dataset.task:8s} {row['test']:.4f}")

    def _key(self, block: str, name: str, dataset: Set) -> Facts:
        settings = self.settings
        cell = {"block": block, "name": name, "task": dataset.task, "rows": settings.rows}
        return {"stage": "task", **cell, "seed": settings.seed, "digest": settings.digest}

    @property
    def _precision(self) -> str:
        from polyhead.deep.nn.runtime import precision_of

        return precision_of(self.settings.heads)
