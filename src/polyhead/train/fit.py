"""The only training loop: AdamW, linear warm-up and decay, early stopping, a checkpoint an epoch.

Everything random in epoch e comes from (seed, e), so a resumed run is the uninterrupted one, byte for byte.
"""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Protocol

import msgspec
import numpy as np
import torch
from torch import Tensor, nn

from polyhead.errors import NotFinite
from polyhead.project import Training
from polyhead.train.checkpoint import read_checkpoint, write_checkpoint
from polyhead.train.devices import Devices, Done, check_same, from_first
from polyhead.train.events import Events, Meter, Update

SAVE_SECONDS = (
    5.0  # a kill loses at most this much, and an epoch, of a task's training; epochs of small tasks take less
)
STEP_SECONDS = 2.0  # an epoch that takes longer shows its steps
EPSILON = 1e-8  # of Adam


class Batch(msgspec.Struct, frozen=True, kw_only=True):
    """Arguments of the module's call, targets, and which examples they are; `soft`: what a teacher answers."""

    arguments: tuple[object, ...]
    targets: Tensor
    members: np.ndarray
    soft: Tensor | None = None
    tokens: int = 0  # that are read, without padding; 0 where nobody counts


class Examples(Protocol):
    """What the loop reads: the same examples, shuffled or in order of length."""

    count: int

    def steps(self, batch: int) -> int:
        """Batches in one pass."""

    def shuffled(self, batch: int, generator: np.random.Generator) -> Iterator[Batch]:
        """One pass in random order."""

    def in_order(self, batch: int) -> Iterator[Batch]:
        """One pass in any fixed order; every example once."""


class Fitted(msgspec.Struct, frozen=True, kw_only=True):
    """What a training run did."""

    best_epoch: int
    score: float  # best validation score
    history: tuple[dict[str, float], ...]  # one row an epoch: epoch, loss, score, seconds
    examples_seen: int
    seconds: float


class Feed(Protocol):
    """Where updates come from: each is one or several micro-batches, with the name of the task of each."""

    steps: int  # updates an epoch

    def updates(self, epoch: int) -> Iterator[Sequence[tuple[str, Batch | None]]]:
        """One epoch, from 0; all its randomness comes from the seed and the epoch. None: another process's batch."""

    def seen(self, epochs: int) -> int:
        """Examples that were read in so many epochs, which are all so far."""

    def state(self) -> dict[str, list[int]]:
        """What a resumed run must know of the epochs before."""

    def restore(self, state: dict[str, list[int]]) -> None:
        """Goes on after the epochs that gave this state."""


class Passes:
    """One task: an epoch is a pass over its examples, an update one batch."""

    def __init__(self, examples: Examples, training: Training) -> None:
        self._examples, self._training = examples, training
        self.steps = examples.steps(training.batch)

    def updates(self, epoch: int) -> Iterator[Sequence[tuple[str, Batch | None]]]:
        """Every example once, in a random order of the epoch's own."""
        generator = np.random.default_rng(stream(self._training.seed, "order", epoch))
        for batch in self._examples.shuffled(self._training.batch, generator):
            yield (("", batch),)

    def seen(self, epochs: int) -> int:
        """All of them in each."""
        return epochs * self._examples.count

    def state(self) -> dict[str, list[int]]:
        """Nothing: epochs do not depend on those before."""
        return {}

    def restore(self, state: dict[str, list[int]]) -> None:
        """Nothing to go on from."""


class Curriculum:
    """A training run of `devices.module`, in place; it may stop after any epoch and go on as if it had never stopped.

    An update steps on the mean over its micro-batches, which `devices` computes. `score` evaluates the module as it
    stands (higher is better). `rate` gives the multiple of the learning rate at which a parameter learns, by its name.
    Parameters that an update gave no gradient are left alone: no decay, no momentum. With `checkpoint`, the state is
    saved there after an epoch, at most every SAVE_SECONDS, and a run that was interrupted goes on after the last epoch
    saved. `meter` hears of every update and epoch. With `last` the last epoch is kept and patience is not asked: for
    epochs that do not all read the same tasks.
    """

    def __init__(
        self,
        devices: Devices,
        feed: Feed,
        *,
        score: Callable[[], float],
        training: Training,
        rate: Callable[[str], float] = lambda name: 1.0,
        checkpoint: Path | None = None,
        events: Events | None = None,
        meter: Meter | None = None,
        label: str = "training",
        epsilon: float = EPSILON,
        last: bool = False,
    ) -> None:
        self._run = _Run(devices, feed, training, rate, checkpoint, epsilon, last)
        self._run.resume()
        self._score, self._meter = score, meter or Meter(Events())
        self._events, self._label, self._seconds = events or Events(), label, 0.0

    @property
    def best(self) -> float:
        """The best validation score so far."""
        return self._run.best_score

    @property
    def done(self) -> int:
        """Epochs trained so far; fewer than asked for where patience ran out."""
        return self._run.done

    def advance(self, epochs: int) -> float:
        """Trains until so many epochs are done, or it is over earlier; gives the best validation score."""
        run, meter, began, steps = self._run, self._meter, time.monotonic(), self._run.feed.steps
        progress = self._progress = self._events.progress(self._label, unit="updates", done=run.done * steps)
        while not run.is_over and run.done < epochs:
            started = time.monotonic()
            meter.start()
            mean_loss = run.epoch(partial(self._step, started))
            meter.tell()
            run.module.eval()
            with run.devices.published():
                score = self._score()
            run.note(mean_loss, score, time.monotonic() - started)
            last = run.history[-1]
            meter.epoch(last, step=run.done * steps)
            said = f"loss {last['loss']:.4f}, validation {last['score']:.4f}"
            progress.update(run.done * steps, run.training.epochs * steps, said)
            run.save()
        progress.finish()
        self._seconds += time.monotonic() - began
        return self.best

    def train(self) -> Fitted:
        """Trains to the end, and leaves the module with the weights of its best validation epoch."""
        self.advance(self._run.training.epochs)
        return self.finish()

    def finish(self) -> Fitted:
        """Leaves the module with its best weights, in evaluation mode."""
        run = self._run
        _restore(run.module, run.best_state)
        run.module.eval()
        return Fitted(
            best_epoch=run.best_epoch,
            score=run.best_score,
            history=tuple(run.history),
            examples_seen=run.feed.seen(run.done),
            seconds=self._seconds,
        )

    def _step(self, started: float, update: Update, mean_loss: float) -> None:
        """Long epochs show where they stand."""
        self._meter.update(update)
        if time.monotonic() - started > STEP_SECONDS:
            tokens = self._meter.tokens_a_second
            note = f"loss {mean_loss:.4f}" + (f", {tokens:,.0f} tokens a second" if tokens else "")
            self._progress.update(update.step, self._run.training.epochs * self._run.feed.steps, note)


class Course(Curriculum):
    """A training run of one task. `loss` gets outputs, targets, `weights` and, where batches carry it, soft targets.

    `run` computes a batch's outputs where the module's own call does not.
    """

    def __init__(
        self,
        module: nn.Module,
        examples: Examples,
        *,
        loss: Callable[..., Tensor],
        score: Callable[[], float],
        training: Training,
        run: Callable[..., Tensor] | None = None,
        weights: Tensor | None = None,
        checkpoint: Path | None = None,
        events: Events | None = None,
        label: str = "training",
    ) -> None:
        def objective(task: str, batch: Batch) -> Tensor:
            taught = () if batch.soft is None else (batch.soft,)
            return loss((run or module)(*batch.arguments), batch.targets, weights, *taught)

        super().__init__(
            Devices(module, objective),
            Passes(examples, training),
            score=score,
            training=training,
            checkpoint=checkpoint,
            events=events,
            label=label,
        )


class _Run:
    """State of one training run; everything that a resumed run needs is in `state`."""

    def __init__(
        self,
        devices: Devices,
        feed: Feed,
        training: Training,
        rate: Callable[[str], float],
        checkpoint: Path | None,
        epsilon: float,
        last: bool,
    ) -> None:
        module, self.last = devices.module, last
        self.devices, self.module, self.feed = devices, module, feed
        self.training, self.checkpoint = training, checkpoint
        self.parameters = [p for p in module.parameters() if p.requires_grad]
        self.optimizer = torch.optim.AdamW(
            _groups(module, training.weight_decay, rate), lr=training.learning_rate, eps=epsilon, fused=True
        )
        self.history: list[dict[str, float]] = []
        self.best_state = _copy(module)
        self.best_score, self.best_epoch = -float("inf"), 0
        self.saved = time.monotonic()

    @property
    def done(self) -> int:
        return len(self.history)

    @property
    def is_over(self) -> bool:
        stale = not self.last and self.done - self.best_epoch >= self.training.patience
        return self.done >= self.training.epochs or (self.done > 0 and stale)

    def epoch(self, told: Callable[[Update, float], None]) -> float:
        """One epoch of updates; gives the mean loss over them. `told` hears each update and the mean loss so far."""
        training, number, steps, place = self.training, self.done, self.feed.steps, self.devices.place
        own = () if place.world == 1 else (place.rank,)
        torch.manual_seed(stream(training.seed, "dropout", number, *own))
        total = 0.0
        self.module.train()
        for index, update in enumerate(self.feed.updates(number)):
            share = _rate(number * steps + index, training.epochs * steps, training.warmup)
            for group in self.optimizer.param_groups:
                group["lr"] = training.learning_rate * share * group["scale"]
            self.optimizer.zero_grad(set_to_none=True)
            done = self.devices.learn(update)
            tasks = [task for task, _ in update]
            _check_finite(tasks, done, epoch=number + 1, step=index + 1)
            _check_norm(self._clip(), epoch=number + 1, step=index + 1)
            self.optimizer.step()
            total += sum(done.losses)
            losses = tuple((task, value * len(tasks)) for task, value in zip(tasks, done.losses, strict=True))
            step, rate = number * steps + index + 1, training.learning_rate * share
            fact = Update(step=step, losses=losses, learning_rate=rate, tokens=done.tokens)
            told(fact, total / (index + 1))
        return total / max(steps, 1)

    def _clip(self) -> float:
        """Brings the norm of all gradients down to `training.clip`; gives what it was. Smaller ones are not touched."""
        norm = nn.utils.get_total_norm([p.grad for p in self.parameters if p.grad is not None])
        norm = norm.full_tensor() if hasattr(norm, "full_tensor") else norm  # of slices
        if norm > self.training.clip:
            nn.utils.clip_grads_with_norm_(self.parameters, self.training.clip, norm)
        return float(norm)

    def note(self, mean_loss: float, score: float, seconds: float) -> None:
        """Writes the epoch down, and keeps the weights if it is the best so far (ties: the earlier epoch)."""
        if not all(bool(torch.isfinite(parameter).all()) for parameter in self.parameters):
            raise NotFinite(
                f"a weight is not finite after epoch {self.done + 1}", do="lower learning_rate, or clip"
            )
        self.history.append({"epoch": self.done + 1, "loss": mean_loss, "score": score, "seconds": seconds})
        if self.last or score > self.best_score:
            self.best_score, self.best_epoch, self.best_state = score, self.done, _copy(self.module)

    def save(self) -> None:
        """Writes the checkpoint, not more often than SAVE_SECONDS; the first process does, with what all hold."""
        if self.checkpoint is None:
            return
        devices = self.devices
        if not from_first(devices.place, time.monotonic() - self.saved >= SAVE_SECONDS):
            return
        self.saved = time.monotonic()
        state = {
            "module": devices.whole(_learned(self.module)),
            "optimizer": devices.whole_optimizer(self.optimizer),
            "feed": self.feed.state(),
            "history": self.history,
            "best": [devices.whole(self.best_state), self.best_score, self.best_epoch],
        }
        if devices.place.is_first:
            write_checkpoint(self.checkpoint, state)

    def resume(self) -> None:
        """Goes on from the checkpoint, if there is a readable one; all processes from the same."""
        if self.checkpoint is not None and self.checkpoint.exists():
            state, devices = read_checkpoint(self.checkpoint), self.devices
            _restore(self.module, devices.split(state["module"]))
            self.optimizer.load_state_dict(devices.split_optimizer(self.optimizer, state["optimizer"]))
            self.feed.restore(state["feed"])
            self.history = state["history"]
            best, self.best_score, self.best_epoch = state["best"]
            self.best_state = devices.split(best)
        check_same(self.devices.place, self.done)


def _check_finite(tasks: Sequence[str], done: Done, *, epoch: int, step: int) -> None:
    for task, value in zip(tasks, done.losses, strict=True):
        if not math.isfinite(value):
            of = f" of task '{task}'" if task else ""
            raise NotFinite(
                f"the loss{of} is not finite in epoch {epoch}, step {step}",
                got=value,
                do="lower learning_rate",
            )


def _check_norm(norm: float, *, epoch: int, step: int) -> None:
    if not math.isfinite(norm):
        raise NotFinite(
            f"the gradient is not finite in epoch {epoch}, step {step}", got=norm, do="lower learning_rate"
        )


def stream(seed: int, *names: object) -> int:
    """A seed of its own for each use, the same on every machine."""
    content = ":".join(str(part) for part in (seed, *names))
    return int.from_bytes(hashlib.sha256(content.encode()).digest()[:4], "big")


def _rate(step: int, steps: int, warmup: float) -> float:
    """Linear from 0 to 1 over the warm-up, then linear to 0."""
    rising = max(1, round(steps * warmup))
    return (step + 1) / rising if step < rising else max(0.0, (steps - step) / max(1, steps - rising))


def _groups(module: nn.Module, decay: float, rate: Callable[[str], float]) -> list[dict[str, object]]:
    """Weight decay on matrices alone: not on biases, norms, queries, mixes, prompts. A group for each learning rate."""
    groups: dict[tuple[float, bool], list[nn.Parameter]] = {(1.0, True): [], (1.0, False): []}
    for name, parameter in module.named_parameters():
        if parameter.requires_grad:
            decays = parameter.ndim >= 2 and not name.endswith("prompt.weight")
            groups.setdefault((rate(name), decays), []).append(parameter)
    return [
        {"params": several, "weight_decay": decay if matrices else 0.0, "scale": scale}
        for (scale, matrices), several in groups.items()
    ]


def _learned(module: nn.Module) -> dict[str, Tensor]:
    """The module's state without parameters that do not learn, such as a frozen trunk's."""
    frozen = {name for name, p in module.named_parameters(remove_duplicate=False) if not p.requires_grad}
    return {name: value for name, value in module.state_dict().items() if name not in frozen}


def _restore(module: nn.Module, state: dict[str, Tensor]) -> None:
    """The inverse of `_learned`; what does not learn stays as it is."""
    module.load_state_dict({**module.state_dict(), **state})


def _copy(module: nn.Module) -> dict[str, Tensor]:
    return {name: value.detach().clone() for name, value in _learned(module).items()}
