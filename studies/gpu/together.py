"""One trunk learns all tasks (Stickland and Murray 2019): shared alone, or with projected attention of each task.

An update reads rows of one task, drawn by sizes to a power that falls from 1 to 0.2; all lanes read the same task, each
its own rows, so that texts of a batch are about equally long. All tasks share a pooler.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from studies.gpu.feed import CardExamples, orders, outputs_of
from studies.gpu.fit import Deadline, Ended, Lane, LaneSchedule, RunningLanes, Splits, hard_loss
from studies.gpu.packed import PackedSet
from studies.gpu.scores import score
from studies.gpu.stack import Stack


@dataclass(frozen=True, kw_only=True, eq=False)
class CardTask:
    """A task, its splits, and its outputs among those of all tasks."""

    task: PackedSet
    splits: Splits
    number: int
    first: int


def fit_together(
    stack: Stack,
    tasks: Sequence[CardTask],
    lanes: Sequence[Lane],
    schedule: LaneSchedule,
    *,
    deadline: Deadline,
    ended: Callable[[Ended, str], None],
) -> None:
    """Trains every lane on all tasks; the epoch with the best mean on validation counts for all of them.

    Tells each lane's scores of each task as it ends; raises TimeIsUp in between.
    """
    running, began = RunningLanes(stack, lanes), time.monotonic()
    sizes = [len(one.splits.train) for one in tasks]
    steps = max(1, sum(sizes) // schedule.batch)
    feeds = [TaskFeed(one.splits.train, schedule.batch, one.number) for one in tasks]
    random = np.random.default_rng(len(tasks))
    torch.manual_seed(lanes[0].seed)
    for epoch in range(1, schedule.epochs + 1):
        shares = annealed(sizes, epoch, schedule.epochs)
        for step, number in enumerate(random.choice(len(tasks), steps, p=shares), (epoch - 1) * steps):
            deadline.check()
            one = tasks[number]
            members = feeds[number].next([lane.seed for lane in lanes])[running.places]
            running.optimizer.step(task_loss(stack, one, members), schedule.share(step, steps))
            running.count(one.splits.train.lengths[members])
        scores = [task_scores(stack, one, one.splits.validation) for one in tasks]
        running.note(epoch, [float(np.mean(several)) for several in zip(*scores, strict=True)])
        over = running.over(epoch, schedule)
        if over:
            speed = running.flops / (time.monotonic() - began)
            _tell(running, tasks, over, epoch, speed, ended)
        if not running.drop(over):
            return


def annealed(sizes: Sequence[int], epoch: int, epochs: int) -> np.ndarray:
    """Each task's share of an epoch's updates: `p ~ N^a`, `a = 1 - 0.8 (e - 1) / (E - 1)`."""
    power = 1 - 0.8 * (epoch - 1) / max(1, epochs - 1)
    weights = np.array(sizes, float) ** power
    shares: np.ndarray = weights / weights.sum()
    return shares


class TaskFeed:
    """One task's batches for all lanes, pass after pass."""

    def __init__(self, train: CardExamples, batch: int, number: int) -> None:
        self._train, self._batch, self._number, self._pass = train, batch, number, 0
        self._open: Iterator[np.ndarray] = iter(())

    def next(self, seeds: Sequence[int]) -> np.ndarray:
        """(lanes, batch) row numbers."""
        found = next(self._open, None)
        if found is None:
            self._pass += 1
            own = [(seed, self._number) for seed in seeds]
            self._open = orders(self._train.lengths, batch=self._batch, seeds=own, epoch=self._pass)
            found = next(self._open)
        return found


def task_loss(stack: Stack, one: CardTask, members: np.ndarray) -> Tensor:
    """The sum over lanes of the task's mean loss."""
    outputs = stack.answers(of_task(stack, one, one.splits.train).batch(members), training=True)
    targets = one.splits.train.targets[torch.from_numpy(members).to(stack.device)]
    return hard_loss(_own(outputs, one), targets)


def task_scores(stack: Stack, one: CardTask, examples: CardExamples) -> list[float]:
    """Every lane's score of a split."""
    outputs = outputs_of(stack, of_task(stack, one, examples))
    targets = examples.targets.cpu().numpy()
    return [score(one.task.metric, targets, own) for own in _own(torch.from_numpy(outputs), one).numpy()]


def of_task(stack: Stack, one: CardTask, examples: CardExamples) -> CardExamples:
    """The same, said to be of this task where the stack has functions of tasks."""
    if not stack.form.tasks:
        return examples
    return replace(examples, task=torch.full((stack.lanes,), one.number, device=stack.device))


def _own(outputs: Tensor, one: CardTask) -> Tensor:
    return outputs[..., one.first : one.first + one.task.outputs]


def _tell(
    running: RunningLanes,
    tasks: Sequence[CardTask],
    over: Sequence[int],
    epoch: int,
    speed: float,
    ended: Callable[[Ended, str], None],
) -> None:
    models = running.best_of(over)
    for one in tasks:
        validation, test = (task_scores(models, one, split) for split in (one.splits.validation, one.splits.test))
        for index, lane in enumerate(over):
            found = running.ended(lane, epoch, test[index], speed, models.taken([index]))
            ended(replace(found, validation=validation[index]), one.task.name)
