"""The MT-DNN rows of Wei et al. 2021 at our scale: one trunk for all eight tasks, and trunks that one task is new to.

As Liu et al. 2019 train: every update is one batch of one task, a pass takes every task's batches once in random order,
losses are not scaled, and heads read the first position. `together` keeps the heads that the trunk learned with;
`left-out` freezes the trunk that learned from the other seven tasks and trains an output layer alone. Tasks, rows,
epochs and learning rate are those of the study's other methods.
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
from studies.shared import runs
from studies.shared.runs import Facts, Rows, Say, silent, whole_digest
from studies.shared.steps import head, learn
from studies.wei2021.runs import MAX_TOKENS, SEEDS
from studies.wei2021.tasks import TASKS, TRAINING, Size, entries, prepared_for

if TYPE_CHECKING:
    from polyhead.encoder.data import TrunkData
    from polyhead.project.tables import TaskEntry
    from polyhead.train.data.prepared import Prepared

RECIPE = Joint(
    families=(), sampling=Sampling(kind="shuffled"), weighting=Weighting(scaled=False), scheme="batch", micro_batches=1
)
HEAD = Pooled(layers="last", positions="first", codec="float32")
OUTPUT = Pooled(layers="last", positions="first", hidden=0)
OUTPUT_TRAINING = Training(
    epochs=30, patience=6, learning_rate=1e-3
)  # of the output layer alone, over the frozen trunk


class TogetherRuns(runs.Runs):
    """Both rows, by task and seed, in the form of the study's other runs."""

    max_tokens = MAX_TOKENS

    def __init__(
        self,
        data: FilePath,
        folder: FilePath,
        study: Rows,
        *,
        size: Size | None = None,
        training: Training = TRAINING,
        trunk: TrunkData | None = None,
        tasks: dict[str, TaskEntry] | None = None,
        say: Say = silent,
    ) -> None:
        """`trunk`, `tasks` and `training` stand in for minilm, the study's eight tasks and its numbers."""
        from polyhead.deep.nn.runtime import precision_of

        self.size, self.training = size or Size(), training
        self.entries = entries(str(data)) if tasks is None else tasks
        self.precision = precision_of(training)
        super().__init__(data, folder / self.settings, study, trunk=trunk, say=say)

    @property
    def settings(self) -> str:
        """A short digest of what decides every run."""
        rows = {task: self.size.rows(task) for task in self.entries}
        numbers = [self.training, RECIPE, HEAD, OUTPUT, OUTPUT_TRAINING]
        content = [numbers, rows, self.size.validation, MAX_TOKENS, self.precision]
        return whole_digest(content)

    def together(self, seeds: Iterable[int] = SEEDS) -> None:
        """One trunk for all tasks, with their heads: one training a seed, a row a task."""
        for seed in seeds:
            lacking = [task for task in self.entries if not self.rows_of(self._key("together", task, seed))]
            if not lacking:
                continue
            key: Facts = {"method": "trunk", "seed": seed, "settings": self.settings}
            trunk = self.study.row(partial(self._learn, None, seed), **key)
            scores = trunk["own"]
            assert isinstance(scores, dict)
            for task in lacking:
                self._row("together", task, seed, partial(dict, scores[task], metric=self.entries[task].metric))

    def left_out(self, tasks: Iterable[str] = TASKS, seeds: Iterable[int] = SEEDS) -> None:
        """For each task a trunk that learned from the others, frozen, and an output layer."""
        for seed in seeds:
            for task in tasks:
                self._row("left-out", task, seed, partial(self._left_out, task, seed))

    def prepared(self, task: str, seed: int, strategy: Pooled, training: Training) -> Prepared:
        """The task's rows, as the study's other methods have them."""
        prepared = prepared_for(self.entries[task], self.size)
        training = msgspec.structs.replace(training, seed=seed)
        return msgspec.structs.replace(prepared, strategy=strategy, training=training)

    def _learn(self, without: str | None, seed: int) -> Facts:
        folder = self._place(without, seed)
        facts = learn(
            [self.prepared(t, seed, HEAD, self.training) for t in self.entries if t != without],
            self.plain,
            RECIPE,
            held=[] if without is None else [self.prepared(without, seed, HEAD, self.training)],
            folder=folder,
            label=f"{folder.name}",
            precision=self.precision,
            say=self.say,
            own_heads=without is None,
        )
        if without is None:
            shutil.rmtree(folder, ignore_errors=True)
        return facts

    def _left_out(self, task: str, seed: int) -> Facts:
        from polyhead.bundle.read import Bundle
        from polyhead.train.data.extract import Extractor

        folder, facts = self._place(task, seed), Facts()
        if not (folder / "bundle.json").exists():  # a run that was stopped may have left it
            facts = {"trunk_seconds": self._learn(task, seed)["seconds"]}
        features = self.folder / "features" / folder.name
        extractor = Extractor(Bundle.open(folder).trunk(), folder=features, precision=self.precision)
        training = msgspec.structs.replace(OUTPUT_TRAINING, precision=self.training.precision)
        row = {**head(self.prepared(task, seed, OUTPUT, training), extractor), **facts}
        shutil.rmtree(features, ignore_errors=True)
        shutil.rmtree(folder, ignore_errors=True)
        return row

    def _place(self, without: str | None, seed: int) -> FilePath:
        return self.folder / "trunks" / f"{'all' if without is None else f'without-{without}'}-{seed}"

    def _key(self, method: str, task: str, seed: int) -> Facts:
        run = {"task": task, "seed": seed, "method": method, "init": ""}
        return {**run, "layers": self.plain.architecture.layers, "tap": 0, "settings": self.settings}

    def _row(self, method: str, task: str, seed: int, run: Callable[[], Facts]) -> None:
        row = self.study.row(run, **self._key(method, task, seed))
        self.say(
            f"{method:9s} {task:10s} seed {seed}  validation {100 * float(str(row['validation'])):.1f}  "
            f"test {100 * float(str(row['test'])):.1f}"
        )
