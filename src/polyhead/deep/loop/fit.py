"""The only training loop: epochs of updates, early stopping, checkpoints between epochs and inside long ones.

An epoch ends with a validation. It is one pass over the examples, several if these are few, or a part of one if these
are many (`Training.schedule`). All randomness in epoch e comes from (seed, e), so a resumed run equals the
uninterrupted one, byte for byte.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from itertools import islice
from pathlib import Path

import msgspec
import torch
from torch import Tensor, nn

from polyhead.deep.loop.checkpoint import (
    copied,
    draw_on,
    generator_state,
    learned_state,
    read_checkpoint,
    restore,
    write_checkpoint,
)
from polyhead.deep.loop.devices import Devices, check_same, from_first, gathered
from polyhead.deep.loop.feed import Feed, TaskSchedule, TrainingBatch
from polyhead.deep.loop.optimizer import adamw, clipped, rate_at
from polyhead.deep.nn import dropout
from polyhead.errors import NotFinite
from polyhead.project.recipes import Schedule, Training
from polyhead.train.data.batches import LengthSorted
from polyhead.train.events import Events, Meter
from polyhead.train.runs import Fitted, stream

SAVE_SECONDS = 5.0  # a kill loses little more of a training run than this,
SAVE_COST = 0.1  # multiplied if a checkpoint takes longer than this many seconds to write
ASKED_EVERY = 64  # updates after which several processes agree on whether to save
STEP_SECONDS = 2.0  # a longer epoch shows its steps


class TrainingLoop:
    """Trains `devices.module` in place; the run may stop after any epoch and resume as if it had never stopped.

    An update steps on the mean over its micro-batches, which `devices` computes. `score` evaluates the current module
    (higher is better). `rate` returns a parameter's factor of the learning rate, by its name. Parameters without a
    gradient in an update are unchanged: no decay, no momentum. With `checkpoint`, the state is saved there after
    updates and epochs, at most every SAVE_SECONDS, and an interrupted run resumes from it. `meter` is called for every
    update and epoch. With `last` the last epoch is kept and patience is ignored: for epochs that do not all read the
    same tasks, or if `score` is None and nothing is evaluated.
    """

    def __init__(
        self,
        devices: Devices,
        feed: Feed,
        *,
        score: Callable[[], float | None],
        training: Training,
        schedule: Schedule | None = None,
        rate: Callable[[str], float] = lambda name: 1.0,
        checkpoint: Path | None = None,
        events: Events | None = None,
        meter: Meter | None = None,
        label: str = "training",
        last: bool = False,
    ) -> None:
        """`schedule` None: the epochs of `training`, however few updates they have."""
        self.devices, self.module, self.feed = devices, devices.module, feed
        self.training, self.checkpoint, self.last = training, checkpoint, last
        self.schedule = schedule or training.schedule(feed.steps, passes=1)
        self.parameters = [p for p in self.module.parameters() if p.requires_grad]
        self.optimizer = adamw(self.module, training, rate)
        self.history: list[dict[str, float]] = []
        self.best_state = copied(self.module)
        self.best_score, self.best_epoch = -float("inf"), 0
        self._score, self._meter = score, meter or Meter(Events())
        self._events, self._label, self._seconds = events or Events(), label, 0.0
        self._begun: _EpochPosition | None = None  # position of a resumed run inside an epoch
        self._saved, self._cost = time.monotonic(), 0.0  # time of the last checkpoint, and the seconds it took
        self._epoch_began, self._spent = time.monotonic(), 0.0  # of this epoch: its start here, and earlier seconds
        self._resume()

    @property
    def done(self) -> int:
        """Epochs trained so far; fewer than requested if patience ran out."""
        return len(self.history)

    @property
    def is_over(self) -> bool:
        """Whether all epochs are trained, or patience ran out."""
        stale = not self.last and self.done - self.best_epoch >= self.schedule.patience
        return self.done >= self.most or (self.done > 0 and stale)

    def passed(self, epochs: int) -> bool:
        """Whether the run continued after this many epochs."""
        return self.done > epochs or (self.done == epochs and self._begun is not None)

    @property
    def most(self) -> int:
        """The maximum number of epochs."""
        return self.schedule.rounds

    @property
    def steps(self) -> int:
        """Updates per epoch."""
        return self.feed.steps

    def advance(self, epochs: int | None = None) -> float:
        """Trains up to this many epochs, or to the end if earlier; returns the best validation score."""
        epochs = self.most if epochs is None else min(epochs, self.most)
        meter, began, steps = self._meter, time.monotonic(), self.steps
        before = self.done * steps + (self._begun.updates if self._begun else 0)
        progress = self._progress = self._events.progress(
            self._label, unit="updates", done=before, at_most=not self.last
        )
        while not self.is_over and self.done < epochs:
            self._epoch_began = started = time.monotonic()
            meter.start()
            mean_loss = self.epoch()
            meter.tell()
            self.module.eval()
            with self.devices.published():
                score = self._score()
            self._note(mean_loss, score, self._spent + time.monotonic() - started)
            self._spent = 0.0
            row = self.history[-1]
            meter.epoch(row, step=self.done * steps)
            line = f"loss {row['loss']:.4f}"
            if "score" in row:
                line += f", validation {row['score']:.4f}, best {self.best_score:.4f} in epoch {self.best_epoch}"
            progress.update(self.done * steps, (epochs if self.last else self.most) * steps, note=line)
            progress.lap("epoch", self.done, epochs if self.last else self.most, line)
            self.save()
        progress.finish()
        self._seconds += time.monotonic() - began
        return self.best_score

    def train(self) -> Fitted:
        """Trains to the end, and sets the module to the weights of its best validation epoch."""
        self.advance()
        return self.finish()

    def finish(self, epochs: int | None = None) -> Fitted:
        """Sets the module to its best weights, in evaluation mode; the result describes the first `epochs`, or all."""
        restore(self.module, self.best_state)
        self.module.eval()
        self.optimizer.zero_grad(set_to_none=True)  # the module lives on
        return Fitted(
            best_epoch=self.best_epoch,
            score=self.best_score,
            history=tuple(self.history[:epochs]),
            examples_seen=self.feed.seen(self.done if epochs is None else min(epochs, self.done)),
            seconds=self._seconds,
            steps=self.steps,
        )

    def epoch(self) -> float:
        """One epoch of updates; returns their mean loss."""
        training, number, steps = self.training, self.done, self.feed.steps
        begun, self._begun = self._begun, None
        if begun is None:
            begun = _EpochPosition(feed=self.feed.state())
            dropout.seed(self._stream(number))
        total = begun.total
        self.module.train()
        updates = self.feed.updates(number)
        for update in islice(updates, begun.updates):
            self._meter.read([task for task, _ in update])
        if begun.updates:  # before the feed makes the next batch, which may draw too
            dropout.seed(self._stream(number, begun.updates))
            draw_on(begun.random, self.devices.place)  # unless processes or devices have changed
        for index, update in enumerate(updates, begun.updates):
            tasks = [task for task, _ in update]
            share = rate_at(number * steps + index, self.schedule.rounds * steps, training.warmup)
            for group in self.optimizer.param_groups:
                group["lr"] = training.learning_rate * share * group["scale"]
            self.optimizer.zero_grad(set_to_none=True)
            losses, tokens = self.devices.learn(update)
            when = f"epoch {number + 1}, step {index + 1}"
            _check_finite(losses, tasks, when=when)
            clipped(self.parameters, training.clip, when=when)
            self.optimizer.step()
            total += sum(losses)
            each = tuple((task, value * len(tasks)) for task, value in zip(tasks, losses, strict=True))
            step, rate = number * steps + index + 1, training.learning_rate * share
            self._meter.update(step=step, losses=each, learning_rate=rate, tokens=tokens)
            self._show_step(step, total / (index + 1))
            if index + 1 < steps and (self.devices.place.world == 1 or (index + 1) % ASKED_EVERY == 0):
                self.save_inside(_EpochPosition(feed=begun.feed, updates=index + 1, total=total))
        return total / max(steps, 1)

    def _note(self, mean_loss: float, score: float | None, seconds: float) -> None:
        """Records the epoch, and keeps the weights if it is the best so far (ties: the earlier epoch)."""
        if not all(bool(torch.isfinite(parameter).all()) for parameter in self.parameters):
            raise NotFinite(f"a weight is not finite after epoch {self.done + 1}", do="lower learning_rate, or clip")
        scored = {} if score is None else {"score": score}
        self.history.append({"epoch": self.done + 1, "loss": mean_loss, **scored, "seconds": seconds})
        score = 0.0 if score is None else score
        if self.last or score > self.best_score:
            self.best_score, self.best_epoch, self.best_state = score, self.done, copied(self.module)

    def save(self) -> None:
        """Writes the checkpoint after an epoch."""
        self._save(None)

    def save_inside(self, begun: _EpochPosition) -> None:
        """Writes the checkpoint inside an epoch."""
        self._save(begun)

    def set_aside(self) -> bool:
        """Writes the state to the checkpoint, from which an equal run can resume; False without a checkpoint."""
        if self._begun is None:  # else the checkpoint is ahead: inside the next epoch, as are the weights
            self._save(None, in_any_case=True)
        return self.checkpoint is not None

    def _save(self, begun: _EpochPosition | None, *, in_any_case: bool = False) -> None:
        """Writes a checkpoint, within the limits of SAVE_SECONDS and SAVE_COST; only the first process writes."""
        if self.checkpoint is None:
            return
        devices, started = self.devices, time.monotonic()
        is_due = in_any_case or started - self._saved >= SAVE_SECONDS * max(1, self._cost / SAVE_COST)
        if not from_first(devices.place, is_due):
            return
        state = {
            "module": devices.whole(learned_state(self.module)),
            "optimizer": devices.whole_optimizer(self.optimizer),
            "feed": begun.feed if begun else self.feed.state(),
            "history": self.history,
            "seconds": self._seconds,
            "best": [devices.whole(self.best_state), self.best_score, self.best_epoch],
        }
        if begun is not None:
            seconds = self._spent + started - self._epoch_began
            random = gathered(devices.place, generator_state(devices.place.device))
            state["begun"] = [begun.updates, begun.total, seconds, random]
        if devices.place.is_first:
            write_checkpoint(self.checkpoint, state)
        self._saved = time.monotonic()
        self._cost = self._saved - started

    def _resume(self) -> None:
        """Resumes from the checkpoint, if there is a readable one; all processes from the same."""
        if self.checkpoint is not None and self.checkpoint.exists():
            state, devices = read_checkpoint(self.checkpoint), self.devices
            restore(self.module, devices.split(state["module"]))
            self.optimizer.load_state_dict(devices.split_optimizer(self.optimizer, state["optimizer"]))
            self.feed.restore(state["feed"])
            self.history, self._seconds = state["history"], state.get("seconds", 0.0)
            best, self.best_score, self.best_epoch = state["best"]
            self.best_state = devices.split(best)
            if "begun" in state:
                updates, total, self._spent, random = state["begun"]
                self._begun = _EpochPosition(feed=state["feed"], updates=updates, total=total, random=random)
        begun = self._begun.updates if self._begun else 0
        check_same(self.devices.place, f"after {self.done} epochs and {begun} updates")

    def _stream(self, *numbers: int) -> int:
        """The seed of this process's random draws there."""
        place = self.devices.place
        return stream(self.training.seed, "dropout", *numbers, *(() if place.world == 1 else (place.rank,)))

    def _show_step(self, step: int, mean_loss: float) -> None:
        """Shows the progress inside a long epoch."""
        if time.monotonic() - self._epoch_began > STEP_SECONDS:
            tokens = self._meter.tokens_a_second
            note = f"loss {mean_loss:.4f}" + (f", {tokens:,.0f} tokens a second" if tokens else "")
            if self.history and "score" in self.history[-1]:
                note += f", validation {self.history[-1]['score']:.4f} after epoch {self.done}"
            self._progress.update(step, self.most * self.steps, note=note)


class TaskLoop(TrainingLoop):
    """The training loop of a task. `loss` gets outputs, targets, `weights` and, where batches have them, soft targets.

    `run` computes a batch's outputs if the module's own call does not. `whole`: an epoch is at least a
    whole pass, for validations that take long.
    """

    def __init__(
        self,
        module: nn.Module,
        examples: LengthSorted[TrainingBatch],
        *,
        loss: Callable[..., Tensor],
        score: Callable[[], float | None],
        training: Training,
        run: Callable[..., Tensor] | None = None,
        weights: Tensor | None = None,
        checkpoint: Path | None = None,
        events: Events | None = None,
        label: str = "training",
        last: bool = False,
        whole: bool = False,
    ) -> None:
        def objective(task: str, batch: TrainingBatch) -> Tensor:
            taught = () if batch.soft is None else (batch.soft,)
            return loss(batch.answered(run or module), batch.targets, weights, *taught)

        schedule = training.schedule(examples.steps(training.batch), whole=whole)
        super().__init__(
            Devices(module, objective),
            TaskSchedule(examples, training, steps=schedule.updates),
            score=score,
            training=training,
            schedule=schedule,
            checkpoint=checkpoint,
            events=events,
            label=label,
            last=last,
        )


def _check_finite(losses: Sequence[float], tasks: Sequence[str], *, when: str) -> None:
    """Raises NotFinite, with its task, for a loss that is not a number; `when` names the position in training."""
    for task, value in zip(tasks, losses, strict=True):
        if not math.isfinite(value):
            of = f" of task '{task}'" if task else ""
            raise NotFinite(f"the loss{of} is not finite in {when}", got=value, do="lower learning_rate")


class _EpochPosition(msgspec.Struct, frozen=True, kw_only=True):
    """Position of a run inside an epoch."""

    feed: dict[str, list[int]]  # the feed's state at the beginning of the epoch
    updates: int = 0  # updates made
    total: float = 0.0  # sum of their losses
    random: Sequence[Tensor] = ()  # each process's generator, by rank; empty at an epoch's start
