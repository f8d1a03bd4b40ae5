"""Training of a stack: epochs, a validation behind each, patience; a lane that has ended leaves the stack at once."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from studies.gpu.adam import LaneAdam
from studies.gpu.feed import CardExamples, orders, outputs_of
from studies.gpu.packed import PackedSet
from studies.gpu.scores import score
from studies.gpu.stack import Stack

WARMUP, FLOOR = 0.1, 0.05  # shares: of the updates until the rate falls, and of the rate at last
TEMPERATURE = 2.0  # of distillation


@dataclass(frozen=True, kw_only=True)
class Lane:
    """What one run of a stack has of its own."""

    seed: int
    rate: float
    init: str = ""  # of a student: teacher or pretrained


@dataclass(frozen=True, kw_only=True)
class LaneSchedule:
    """How long lanes learn: at most `epochs`, fewer where `patience` of them bring nothing."""

    epochs: int
    patience: int
    batch: int = 32

    def share(self, step: int, steps: int) -> float:
        """Of the rate: linear up and down over the first half of all epochs, then a floor.

        A run whose rate had come to 0 would end at its last epoch, and nobody could tell whether it was done.
        """
        most = self.epochs * steps / 2
        rising = max(1, round(most * WARMUP))
        return (step + 1) / rising if step < rising else max(FLOOR, (most - step) / max(1, most - rising))


@dataclass(frozen=True, kw_only=True, eq=False)
class Ended:
    """A lane that has ended, at its best epoch: its scores and its model."""

    lane: Lane
    validation: float
    test: float
    best_epoch: int
    epochs: int
    flops: float
    model: Stack  # of one lane
    flops_per_second: float  # of the whole stack until then, padding not counted


class TimeIsUp(Exception):
    """The time that was given has passed."""


@dataclass(frozen=True, kw_only=True)
class Deadline:
    """When to stop."""

    until: float  # of time.monotonic

    def check(self) -> None:
        """Raises TimeIsUp."""
        if time.monotonic() > self.until:
            raise TimeIsUp


@dataclass(frozen=True, kw_only=True, eq=False)
class Splits:
    """A task's examples on the device."""

    train: CardExamples
    validation: CardExamples
    test: CardExamples


def fit(
    stack: Stack,
    task: PackedSet,
    splits: Splits,
    lanes: Sequence[Lane],
    schedule: LaneSchedule,
    *,
    deadline: Deadline,
    ended: Callable[[Ended], None],
) -> None:
    """Trains every lane and tells each as it ends, with its best weights; raises TimeIsUp in between."""
    running = RunningLanes(stack, lanes)
    steps = max(1, len(splits.train) // schedule.batch)
    torch.manual_seed(lanes[0].seed)  # of dropout, which all lanes draw from one stream
    began = time.monotonic()
    for epoch in range(1, schedule.epochs + 1):
        seeds = [(running.lanes[place].seed, len(splits.train)) for place in running.places]
        batches = orders(splits.train.lengths, batch=schedule.batch, seeds=seeds, epoch=epoch)
        for step, members in enumerate(batches, (epoch - 1) * steps):
            deadline.check()
            loss = loss_of(stack, task, splits.train, members, running.places)
            running.optimizer.step(loss, schedule.share(step, steps))
            running.count(splits.train.lengths[members])
        outputs = outputs_of(stack, splits.validation)
        targets = splits.validation.targets.cpu().numpy()
        running.note(epoch, [score(task.metric, targets, own) for own in outputs])
        speed = running.flops / (time.monotonic() - began)
        over = running.over(epoch, schedule)
        if over:
            models = running.best_of(over)
            tests = [
                score(task.metric, splits.test.targets.cpu().numpy(), own) for own in outputs_of(models, splits.test)
            ]
            for index, lane in enumerate(over):
                ended(running.ended(lane, epoch, tests[index], speed, models.taken([index])))
        if not running.drop(over):
            return


def loss_of(stack: Stack, task: PackedSet, train: CardExamples, members: np.ndarray, places: Sequence[int]) -> Tensor:
    """The sum over lanes of each one's mean loss; with a teacher's outputs that of Wei et al. 2021, 3.2, beside it."""
    outputs = stack.answers(train.batch(members), training=True)
    index = torch.from_numpy(members).to(outputs.device)
    loss = hard_loss(outputs, train.targets[index])
    if train.soft is None:
        return loss
    taught = train.soft[torch.tensor(places, device=outputs.device)[:, None], index]
    return loss + soft_loss(outputs, taught, numbers=not task.labels)


def hard_loss(outputs: Tensor, targets: Tensor) -> Tensor:
    """Over lanes the sum of mean cross entropies, or of mean squared errors of numbers."""
    if targets.is_floating_point():
        return (outputs[..., 0] - targets).square().mean(1).sum()
    shares = torch.log_softmax(outputs, -1).gather(-1, targets[..., None])
    return -shares[..., 0].mean(1).sum()


def soft_loss(outputs: Tensor, taught: Tensor, *, numbers: bool) -> Tensor:
    """Over lanes the sum of `tau^2 CE(softmax(z_t / tau), z_s / tau)`, or of mean squared distances of numbers."""
    if numbers:
        return (outputs - taught).square().mean((1, 2)).sum()
    wanted = torch.softmax(taught / TEMPERATURE, -1)
    return -(TEMPERATURE**2) * (wanted * torch.log_softmax(outputs / TEMPERATURE, -1)).sum(-1).mean(1).sum()


class RunningLanes:
    """The lanes that are left, by their places among all, and the best weights of each."""

    def __init__(self, stack: Stack, lanes: Sequence[Lane]) -> None:
        self.stack, self.lanes, self.places = stack, list(lanes), list(range(len(lanes)))
        self.optimizer = LaneAdam(stack, [lane.rate for lane in lanes])
        self.flops, self._own = 0.0, np.zeros(len(lanes))
        self._best = {kind: flat.clone() for kind, flat in stack.buffers.items()}
        self._scores = np.full(len(lanes), -np.inf)
        self._epochs = np.zeros(len(lanes), int)

    def count(self, lengths: np.ndarray) -> None:
        """Adds an update's operations: a forward pass, and twice as many for gradients."""
        for place, own in zip(self.places, lengths, strict=True):
            spent = 3 * self.stack.form.flops(float(own.sum()), len(own), float(own.mean()))
            self.flops += spent
            self._own[place] += spent

    def note(self, epoch: int, scores: Sequence[float]) -> None:
        """Keeps the weights of lanes that are better than ever; of equals the earlier."""
        better = [lane for lane, value in enumerate(scores) if value > self._scores[self.places[lane]]]
        for lane in better:
            self._scores[self.places[lane]], self._epochs[self.places[lane]] = scores[lane], epoch
            for kind, flat in self.stack.buffers.items():
                self._best[kind][lane] = flat[lane]

    def over(self, epoch: int, schedule: LaneSchedule) -> list[int]:
        """Lanes of the stack that end behind this epoch."""
        if epoch == schedule.epochs:
            return list(range(len(self.places)))
        return [lane for lane, place in enumerate(self.places) if epoch - self._epochs[place] >= schedule.patience]

    def best_of(self, over: Sequence[int]) -> Stack:
        """These lanes with their best weights."""
        return self.stack.taken(over, self._best)

    def ended(self, lane: int, epoch: int, test: float, speed: float, model: Stack) -> Ended:
        """What there is to tell of a lane that ends behind this epoch."""
        place = self.places[lane]
        return Ended(
            lane=self.lanes[place],
            validation=float(self._scores[place]),
            test=test,
            best_epoch=int(self._epochs[place]),
            epochs=epoch,
            flops=float(self._own[place]),
            flops_per_second=speed,
            model=model,
        )

    def drop(self, over: Sequence[int]) -> int:
        """The stack goes on with the other lanes; how many these are."""
        left = [lane for lane in range(len(self.places)) if lane not in over]
        if over and left:
            self.stack.keep(left)
            self.optimizer.keep(left)
            self._best = {kind: flat[left] for kind, flat in self._best.items()}
        self.places = [self.places[lane] for lane in left]
        return len(left)
