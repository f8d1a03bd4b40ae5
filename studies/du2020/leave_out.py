"""The runs behind Du et al. 2020 at our scale: trunks that learned from all tasks but one, or but one group, or all.

Eight of the paper's fourteen tasks, in its five groups; Amazon and Yelp are not here. Stage 1: every update holds a
batch of every task, weights by size with exponent 0.1, heads read the first position of the last layer. Stage 2: the
trunk is frozen and a pooler and a head learn a task that it never saw. Each run is one row of a study, so that it goes
on where it stopped; learned trunks lie beside the rows, features are deleted as soon as they were used.
"""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path as FilePath
from typing import TYPE_CHECKING

import msgspec

from polyhead.config import Value
from polyhead.project.recipes import Joint, Sampling, Training, Weighting
from polyhead.strategies import Pooled
from studies.shared.data import Set, prepared_of
from studies.shared.runs import Facts, Rows, Say, silent
from studies.shared.steps import fine_tune, head, learn, read_once

if TYPE_CHECKING:
    from polyhead.train.data.prepared import Prepared
    from polyhead.trunk.data import TrunkData

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
        """Rows of other settings are other rows."""
        content = msgspec.json.encode([self, STAGE1, POOLERS], order="sorted")
        return hashlib.sha256(content).hexdigest()[:8]

    @property
    def groups(self) -> dict[str, tuple[Set, ...]]:
        """The sets by group."""
        found: dict[str, list[Set]] = {}
        for one in self.sets:
            found.setdefault(one.group, []).append(one)
        return {group: tuple(several) for group, several in found.items()}


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """Runs that belong together, as they read one trunk; jobs do not depend on each other."""

    name: str
    run: Callable[[], None]


class LeaveOut:
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
        self.data, self.study, self.settings, self.say = data, study, settings or Settings(), say
        self.folder = folder / self.settings.digest
        self._plain = trunk

    @property
    def plain(self) -> TrunkData:
        """The pre-trained trunk."""
        from polyhead.nn.load import load_trunk

        if self._plain is None:
            self._plain = load_trunk("minilm", max_tokens=self.settings.max_tokens)
        return self._plain

    def jobs(self) -> tuple[Job, ...]:
        """Everything, block by block: the plain trunk, each task left out, each group of several left out, none."""
        groups = self.settings.groups
        found = [Job(name=f"plain trunk, {one.task}", run=partial(self.of_plain, one)) for one in self.settings.sets]
        for one in self.settings.sets:
            is_alone = len(groups[one.group]) == 1
            found.append(Job(name=f"without {one.task}", run=partial(self.without_task, one, is_group=is_alone)))
        for group, several in groups.items():
            if len(several) > 1:
                found.append(Job(name=f"without group {group}", run=partial(self.without_group, several)))
        return (*found, Job(name="all tasks", run=self.of_all))

    def of_plain(self, one: Set) -> None:
        """Blocks a and b."""
        self._full(one, FULL, lambda: self.plain)
        self._frozen("b", OF_PLAIN, one, lambda: self.plain)

    def without_task(self, one: Set, *, is_group: bool) -> None:
        """Block c and its fine-tuning in block a; block d too where the task is a group of its own."""
        left = self._trunk_later([one])
        self._frozen("c", tuple(POOLERS), one, left)
        if is_group:
            for name in OF_GROUP:
                (row,) = [r for r in self.study.rows if self._key("c", name, one).items() <= r.items()]
                facts = {key: value for key, value in row.items() if key not in self._key("c", name, one)}
                self._row("d", name, one, partial(dict, facts, same_as="c"))
        self._full(one, FULL_LEARNED, left)

    def without_group(self, several: Iterable[Set]) -> None:
        """Block d."""
        left = self._trunk_later(several)
        for one in several:
            self._frozen("d", OF_GROUP, one, left)

    def of_all(self) -> None:
        """Block e: the heads that the trunk learned with, no further training."""
        lacking = [one for one in self.settings.sets if not self._is_there(self._key("e", OWN, one))]
        if lacking:
            scores = self._learned([])[1]["own"]
            assert isinstance(scores, dict)
            for one in lacking:
                self._row("e", OWN, one, partial(dict, scores[one.task]))

    def prepared(self, one: Set, strategy: Pooled, training: Training) -> Prepared:
        """A set's rows, the reported split cut to evenly spaced ones."""
        settings = self.settings
        return prepared_of(
            self.data,
            one,
            train=settings.rows,
            validation=settings.validation,
            test=settings.test,
            strategy=strategy,
            training=msgspec.structs.replace(training, seed=settings.seed),
        )

    def trunks(self) -> tuple[tuple[Set, ...], ...]:
        """What each learned trunk leaves out: one task, a group of several, nothing."""
        groups = [several for several in self.settings.groups.values() if len(several) > 1]
        return (*((one,) for one in self.settings.sets), *groups, ())

    def trained_on(self, without: Iterable[Set]) -> tuple[Set, ...]:
        """The sets that a trunk learns from."""
        return tuple(one for one in self.settings.sets if one not in tuple(without))

    def _trunk_later(self, without: Iterable[Set]) -> Callable[[], TrunkData]:
        """The learned trunk, made when it is first asked for."""
        from polyhead.bundle.read import Bundle

        several = tuple(without)
        return lambda: Bundle.open(self._learned(several)[0]).trunk()

    def _learned(self, without: Iterable[Set]) -> tuple[FilePath, Facts]:
        """The bundle of the trunk that learned from the other tasks, made now if it is not there, and its row."""
        several = tuple(without)
        name = "without-" + "-".join(one.task for one in several) if several else "all"
        folder = self.folder / "trunks" / name
        key: Facts = {"stage": "trunk", "name": name, "digest": self.settings.digest, "seed": self.settings.seed}
        if not (folder / "bundle.json").exists():
            self.study.rows[:] = [row for row in self.study.rows if not key.items() <= row.items()]
        row = self.study.row(partial(self._learn, several, folder), **key)
        self.say(f"trunk  {name:24s} {row['seconds']} s  mean validation {row['score']}")
        return folder, row

    def _learn(self, without: tuple[Set, ...], folder: FilePath) -> Facts:
        learning = self.settings.learning
        return learn(
            [self.prepared(one, STAGE1, learning) for one in self.trained_on(without)],
            self.plain,
            self.settings.recipe,
            held=[self.prepared(one, STAGE1, learning) for one in without],
            folder=folder,
            label=folder.name,
            precision=self._precision,
            say=self.say,
            own_heads=not without,
        )

    def _frozen(self, block: str, names: Iterable[str], one: Set, trunk: Callable[[], TrunkData]) -> None:
        """Poolers and heads of a task over a frozen trunk; its texts are read once for all that are lacking."""
        from polyhead.train.data.extract import Extractor

        lacking = [name for name in names if not self._is_there(self._key(block, name, one))]
        if not lacking:
            return
        folder = self.folder / "features" / f"{block}-{one.task}"
        extractor = Extractor(trunk(), folder=folder, precision=self._precision)
        prepared = {name: self.prepared(one, POOLERS[name], self.settings.heads) for name in lacking}
        read_once(list(prepared.values()), extractor)
        for name in lacking:
            self._row(block, name, one, partial(head, prepared[name], extractor))
        shutil.rmtree(folder, ignore_errors=True)

    def _full(self, one: Set, name: str, trunk: Callable[[], TrunkData]) -> None:
        if not self._is_there(self._key("a", name, one)):
            prepared = self.prepared(one, STAGE1, self.settings.full)
            self._row("a", name, one, lambda: fine_tune(prepared, trunk(), precision=self._precision))

    def _row(self, block: str, name: str, one: Set, run: Callable[[], Facts]) -> None:
        row = self.study.row(run, **self._key(block, name, one))
        self.say(f"{block}      {name:32s} {one.task:8s} {row['test']:.4f}")

    def _key(self, block: str, name: str, one: Set) -> Facts:
        settings = self.settings
        said = {"block": block, "name": name, "task": one.task, "rows": settings.rows}
        return {"stage": "task", **said, "seed": settings.seed, "digest": settings.digest}

    def _is_there(self, key: Facts) -> bool:
        return any(key.items() <= row.items() for row in self.study.rows)

    @property
    def _precision(self) -> str:
        from polyhead.train.loop.numerics import precision_of

        return precision_of(self.settings.heads)
