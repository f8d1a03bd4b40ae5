"""The methods of tables 2 and 3 on eight tasks of GLUE: the same rows, updates and reported splits for all of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING

import msgspec

from polyhead.project.recipes import Joint, Training
from polyhead.tasks.kinds import kind_of
from studies.huang2022.methods import SINGLE, Method
from studies.huang2022.runs import RECIPE, Runs, Scale
from studies.shared.data import entry_of
from studies.shared.glue import GLUE, TITLES, prepared_sets
from studies.shared.runs import Facts, short_digest
from studies.shared.steps import own_metric

if TYPE_CHECKING:
    from polyhead.project.tables import TaskEntry
    from polyhead.train.data.prepared import Prepared

SETS = {dataset.task: dataset for dataset in GLUE}


class GlueScale(Scale):
    """How much is trained: 124 updates of 16 rows an epoch for all tasks; about eight epochs read the rows once.

    The rate is the best of the search on NHC. A trunk a task has the updates that its rows are of all rows.
    """

    tasks: tuple[str, ...] = tuple(TITLES)
    train: int = 2000  # training rows, the mean of the sets, which keep the proportions of their files
    held: int = 100  # rows of each train file that are set aside for the choice of the epoch
    steps: int = 124  # an epoch
    trunk: Training = Training(epochs=16, patience=4, batch=16, learning_rate=5e-5, warmup=0.1)


class GlueRuns(Runs):
    """Every method on the same tasks; no text on which one is evaluated is trained on by another."""

    scale: GlueScale
    max_tokens, tokens = 128, 27  # of a training text in the mean, special ones included

    def prepared(self, method: Method, task: str, seed: int) -> Prepared:
        """The task's rows, under the method's strategy and numbers."""
        training = msgspec.structs.replace(self._training(method), seed=seed)
        return msgspec.structs.replace(self.glue[task], strategy=method.strategy_of(task), training=training)

    def size(self, task: str) -> int:
        """The task's training rows."""
        return len(self.glue[task].train.examples.targets)

    def recipe(self, tasks: Sequence[str]) -> Joint:
        """The recipe with the updates of an epoch: these tasks get as large a share of all updates as of all rows."""
        share = sum(map(self.size, tasks)) / sum(map(self.size, self.scale.tasks))
        return msgspec.structs.replace(RECIPE, steps=max(1, round(share * self.scale.steps)))

    def measured(self, task: str, scores: Mapping[str, Mapping[str, float]]) -> Facts:
        """The scores by the task's own metric, and all metrics of the reported split."""
        prepared = self.glue[task]
        metric = kind_of(prepared.task).default_metric(prepared.task)
        facts: Facts = {"metric": metric, **own_metric(prepared, scores), "metrics": dict(scores["test"])}
        return facts

    def _learn(self, method: Method, tasks: Sequence[str], seed: int) -> Facts:
        return {**super()._learn(method, tasks, seed), "epochs": self.scale.trunk.epochs}

    def _entry(self, task: str) -> TaskEntry:
        return entry_of(self.data, SETS[task])

    @cached_property
    def glue(self) -> dict[str, Prepared]:
        """The tasks by name."""
        from polyhead.train.data.leaks import without_leaks

        prepared = prepared_sets(
            self.data,
            [SETS[task] for task in self.scale.tasks],
            rows=self.scale.train,
            validation=self.scale.held,
            test=self.scale.test_rows,
            strategy=SINGLE.strategy,
            training=self.scale.trunk,
        )
        return {one.task.name: one for one in without_leaks(prepared)[0]}

    @cached_property
    def _rows(self) -> str:
        """A digest of what is trained on and evaluated."""
        return short_digest([split.digest for one in self.glue.values() for split in one.splits], size=12)
