"""CA-MTL's sampler (Pilault et al. 2021): of a batch of every task the rows of which the model is least sure.

A row counts with its entropy over that of a uniform guess, times the mean of its task over the highest mean of a task.
An update reads the `batch` rows that count most, from whichever tasks, and its loss is their mean. A task without
labels has no entropy: STS-B takes MRPC's, of the same update, which is our choice.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from polyhead.deep.examples import TextExamples
from polyhead.deep.loop.feed import TrainingBatch
from polyhead.deep.recipes.joint_model import JointLoss
from polyhead.deep.recipes.sampling import MixedFeed, Mixture
from polyhead.errors import TrainError
from polyhead.project.recipes import Training

LENDERS = {"stsb": "mrpc"}  # task without labels -> the task whose entropies it takes
Uncertainty = Callable[[str, TrainingBatch], np.ndarray]  # of each row, 0 to 1


class UncertainFeed(MixedFeed):
    """Updates of so many rows as a batch has, of all tasks; as many updates in an epoch as by size."""

    def __init__(
        self, examples: Mapping[str, TextExamples], mixture: Mixture, training: Training, *, uncertainty: Uncertainty
    ) -> None:
        super().__init__(examples, mixture, training)
        self._uncertainty = uncertainty
        self.rows, self.parts = training.batch, 1  # of an update; the tasks of the one that was last told

    def updates(self, epoch: int) -> Iterator[Sequence[tuple[str, TrainingBatch | None]]]:
        """One epoch; what an update reads depends on what the updates before it have learned."""
        for _ in self._mixture.updates(epoch):
            drawn = {name: self._next(name) for name in self._examples}
            sure = {
                name: self._uncertainty(lender, self._examples[lender].batch(drawn[lender]))
                for name in drawn
                for lender in [LENDERS.get(name, name)]
            }
            sure = {name: np.resize(values, len(drawn[name])) for name, values in sure.items()}
            chosen = most_uncertain(sure, self.rows)
            self.parts = len(chosen)
            yield [(name, self._examples[name].batch(drawn[name][places])) for name, places in chosen.items()]


class RowsLoss(JointLoss):
    """The loss of an update's part, in proportion to its rows: parts together are the mean over all rows."""

    feed: UncertainFeed

    def forward(self, task: str, batch: TrainingBatch, *, drawn: Collection[str] = ()) -> Tensor:
        """The part's mean loss, times its share of the rows, times the parts, over whose number a mean is taken."""
        share = len(batch.members) / self.feed.rows
        return super().forward(task, batch, drawn=drawn) * share * self.feed.parts


def entropies(outputs: Tensor) -> np.ndarray:
    """Of rows (rows, labels): the entropy of their softmax over that of a uniform guess; TrainError without labels."""
    if outputs.shape[-1] < 2:
        raise TrainError("only tasks with labels can be drawn by uncertainty", got=f"{outputs.shape[-1]} output")
    shares = torch.log_softmax(outputs.float(), dim=-1)
    found: np.ndarray = (-(shares.exp() * shares).sum(-1) / math.log(outputs.shape[-1])).cpu().numpy()
    return found


def most_uncertain(by_task: Mapping[str, np.ndarray], count: int) -> dict[str, np.ndarray]:
    """Places of the rows that count most, by task; of equal ones the earlier tasks' first."""
    means = {task: float(values.mean()) for task, values in by_task.items()}
    most = max(means.values()) or 1.0
    weighed = np.concatenate([values * means[task] / most for task, values in by_task.items()])
    tasks = np.concatenate([np.full(len(values), index) for index, values in enumerate(by_task.values())])
    places = np.concatenate([np.arange(len(values)) for values in by_task.values()])
    best = np.sort(np.argsort(-weighed, kind="stable")[:count])
    chosen = {task: places[best[tasks[best] == index]] for index, task in enumerate(by_task)}
    return {task: rows for task, rows in chosen.items() if len(rows)}
