"""The only training loop: AdamW, linear warm-up and decay, early stopping, a checkpoint an epoch.

Everything random in epoch e comes from (seed, e), so a resumed run is the uninterrupted one, byte for byte.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Protocol

import msgspec
import numpy as np
import torch
from torch import Tensor, nn

from polyhead.errors import TrainError
from polyhead.project import Training
from polyhead.train.events import Events

SAVE_SECONDS = (
    5.0  # a kill loses at most this much, and an epoch, of a task's training; epochs of small tasks take less
)


class Batch(msgspec.Struct, frozen=True, kw_only=True):
    """Arguments of the module's call, targets, and which examples they are; `soft`: what a teacher answers."""

    arguments: tuple[object, ...]
    targets: Tensor
    members: np.ndarray
    soft: Tensor | None = None


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


class Course:
    """A training run of `module`, in place; it may stop after any epoch and go on as if it had never stopped.

    `loss` gets outputs, targets, `weights` and, where batches carry it, what a teacher answers. `score` evaluates the
    module as it stands (higher is better). With `checkpoint`, the state is saved there after an epoch, at most every
    SAVE_SECONDS, and a run that was interrupted goes on after the last epoch saved.
    """

    def __init__(
        self,
        module: nn.Module,
        examples: Examples,
        *,
        loss: Callable[..., Tensor],
        score: Callable[[], float],
        training: Training,
        weights: Tensor | None = None,
        checkpoint: Path | None = None,
        events: Events | None = None,
        label: str = "training",
    ) -> None:
        self._run = _Run(module, examples, training, checkpoint)
        self._run.resume()
        self._loss, self._score, self._weights = loss, score, weights
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
        run, began = self._run, time.monotonic()
        progress = self._events.progress(self._label, unit="epochs")
        while not run.is_over and run.done < epochs:
            started = time.monotonic()
            mean_loss = run.epoch(self._loss, self._weights)
            run.module.eval()
            run.note(mean_loss, self._score(), time.monotonic() - started)
            last = run.history[-1]
            said = f"loss {last['loss']:.4f}, validation {last['score']:.4f}"
            progress.update(run.done, run.training.epochs, said)
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
        run.module.load_state_dict(run.best_state)
        run.module.eval()
        return Fitted(
            best_epoch=run.best_epoch,
            score=run.best_score,
            history=tuple(run.history),
            examples_seen=len(run.history) * run.examples.count,
            seconds=self._seconds,
        )


class _Run:
    """State of one training run; everything that a resumed run needs is in `state`."""

    def __init__(
        self, module: nn.Module, examples: Examples, training: Training, checkpoint: Path | None
    ) -> None:
        self.module, self.examples, self.training, self.checkpoint = module, examples, training, checkpoint
        self.parameters = [p for p in module.parameters() if p.requires_grad]
        self.optimizer = torch.optim.AdamW(
            _groups(module, training.weight_decay), lr=training.learning_rate, fused=True
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
        stale = self.done - self.best_epoch >= self.training.patience
        return self.done >= self.training.epochs or (self.done > 0 and stale)

    def epoch(self, loss: Callable[..., Tensor], weights: Tensor | None) -> float:
        """One pass; gives the mean loss over its batches."""
        training, number = self.training, self.done
        torch.manual_seed(stream(training.seed, "dropout", number))
        generator = np.random.default_rng(stream(training.seed, "order", number))
        steps = self.examples.steps(training.batch)
        total, self_steps = 0.0, number * steps
        self.module.train()
        for index, batch in enumerate(self.examples.shuffled(training.batch, generator)):
            rate = _rate(self_steps + index, training.epochs * steps, training.warmup)
            for group in self.optimizer.param_groups:
                group["lr"] = training.learning_rate * rate
            taught = () if batch.soft is None else (batch.soft,)
            value = loss(self.module(*batch.arguments), batch.targets, weights, *taught)
            if not torch.isfinite(value):
                raise TrainError(
                    f"the loss is not finite in epoch {number + 1}, step {index + 1}",
                    got=float(value.detach()),
                    do="lower learning_rate",
                )
            self.optimizer.zero_grad(set_to_none=True)
            value.backward()  # type: ignore[no-untyped-call]
            nn.utils.clip_grad_norm_(self.parameters, training.clip)
            self.optimizer.step()
            total += float(value.detach())
        return total / max(steps, 1)

    def note(self, mean_loss: float, score: float, seconds: float) -> None:
        """Writes the epoch down, and keeps the weights if it is the best so far (ties: the earlier epoch)."""
        self.history.append({"epoch": self.done + 1, "loss": mean_loss, "score": score, "seconds": seconds})
        if score > self.best_score:
            self.best_score, self.best_epoch, self.best_state = score, self.done, _copy(self.module)

    def save(self) -> None:
        """Writes the checkpoint under a temporary name, then renames it; not more often than SAVE_SECONDS."""
        if self.checkpoint is None or time.monotonic() - self.saved < SAVE_SECONDS:
            return
        self.saved = time.monotonic()
        state = {
            "module": self.module.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "history": self.history,
            "best": [self.best_state, self.best_score, self.best_epoch],
        }
        temporary = self.checkpoint.with_name(self.checkpoint.name + ".tmp")
        try:
            self.checkpoint.parent.mkdir(parents=True, exist_ok=True)
            with temporary.open("wb") as out:
                torch.save(state, out)
                out.flush()
                os.fsync(out.fileno())
            temporary.replace(self.checkpoint)
        except OSError as error:
            temporary.unlink(missing_ok=True)
            raise TrainError(
                f"cannot write the checkpoint {self.checkpoint}",
                got=error.strerror,
                do="free some disk space and run the same command again; finished tasks and epochs are kept",
            ) from None

    def resume(self) -> None:
        """Goes on from the checkpoint, if there is a readable one."""
        if self.checkpoint is None or not self.checkpoint.exists():
            return
        try:
            state = torch.load(self.checkpoint, weights_only=True)
        except Exception as error:  # torch raises many types for a file it cannot read
            raise TrainError(
                f"the checkpoint {self.checkpoint} cannot be read",
                got=str(error).splitlines()[0],
                do="delete it; the task then starts anew, and finished tasks are kept",
            ) from None
        self.module.load_state_dict(state["module"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.history = state["history"]
        self.best_state, self.best_score, self.best_epoch = state["best"]


def stream(seed: int, *names: object) -> int:
    """A seed of its own for each use, the same on every machine."""
    content = ":".join(str(part) for part in (seed, *names))
    return int.from_bytes(hashlib.sha256(content.encode()).digest()[:4], "big")


def _rate(step: int, steps: int, warmup: float) -> float:
    """Linear from 0 to 1 over the warm-up, then linear to 0."""
    rising = max(1, round(steps * warmup))
    return (step + 1) / rising if step < rising else max(0.0, (steps - step) / max(1, steps - rising))


def _groups(module: nn.Module, decay: float) -> list[dict[str, object]]:
    """Weight decay on matrices only: not on biases, norms, queries and mixes."""
    named = [p for p in module.parameters() if p.requires_grad]
    return [
        {"params": [p for p in named if p.ndim >= 2], "weight_decay": decay},
        {"params": [p for p in named if p.ndim < 2], "weight_decay": 0.0},
    ]


def _copy(module: nn.Module) -> dict[str, Tensor]:
    return {name: value.detach().clone() for name, value in module.state_dict().items()}
