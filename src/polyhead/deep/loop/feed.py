"""Input of a training run: batches, the order of examples in a pass, and the source of updates."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import chain, count, islice
from typing import Protocol

import msgspec
import numpy as np
import torch
from torch import Tensor

from polyhead.project.recipes import Training
from polyhead.train.data.batches import LengthSorted
from polyhead.train.runs import stream


class TrainingBatch(msgspec.Struct, frozen=True, kw_only=True):
    """Arguments of the module's call, targets, and the indices of the examples; `soft`: a teacher's outputs."""

    arguments: tuple[object, ...]
    targets: Tensor
    members: np.ndarray
    soft: Tensor | None = None
    tokens: int = 0  # tokens read, without padding; 0 if not counted
    windows: tuple[int, ...] = ()  # how many rows each example has, whose outputs are averaged; (): one each

    def answered(self, module: Callable[..., Tensor]) -> Tensor:
        """The module's outputs for the examples, those of a text's windows averaged."""
        outputs = module(*self.arguments)
        if not self.windows:
            return outputs
        return torch.stack([part.mean(dim=0) for part in torch.split(outputs, list(self.windows))])


class Feed(Protocol):
    """A source of updates: each is one or several micro-batches, with the name of each one's task.

    An epoch here is the time between two validations: a round of the run's schedule.
    """

    steps: int  # updates per epoch

    def updates(self, epoch: int) -> Iterator[Sequence[tuple[str, TrainingBatch | None]]]:
        """One epoch, from 0; its randomness depends only on the seed and the epoch. None: another process's batch."""

    def seen(self, epochs: int) -> int:
        """The number of examples read in this many epochs, which are all so far."""

    def state(self) -> dict[str, list[int]]:
        """State after the earlier epochs, for a resumed run."""

    def restore(self, state: dict[str, list[int]]) -> None:
        """Resumes after the epochs that gave this state."""


class TaskSchedule:
    """One task: an update is one batch, an epoch `steps` of them, in pass after pass over the examples."""

    def __init__(self, examples: LengthSorted[TrainingBatch], training: Training, *, steps: int | None = None) -> None:
        """`steps` None: those of one pass."""
        self._examples, self._training = examples, training
        self._in_a_pass = max(1, examples.steps(training.batch))
        self.steps = steps or self._in_a_pass

    def updates(self, epoch: int) -> Iterator[Sequence[tuple[str, TrainingBatch | None]]]:
        """In each pass every example once, in a random order for the pass."""
        number, start = divmod(epoch * self.steps, self._in_a_pass)
        passes = chain.from_iterable(map(self._order, count(number)))
        for members in islice(passes, start, start + self.steps):
            yield (("", self._examples.batch(members)),)

    def seen(self, epochs: int) -> int:
        """Examples seen in so many epochs: all of each whole pass, and those of the last pass's batches."""
        passes, last_batches = divmod(epochs * self.steps, self._in_a_pass)
        return passes * self._examples.count + sum(map(len, islice(self._order(passes), last_batches)))

    def _order(self, number: int) -> Iterator[np.ndarray]:
        """The members of each batch of this pass."""
        generator = np.random.default_rng(stream(self._training.seed, "order", number))
        return self._examples.drawn(self._training.batch, generator)

    def state(self) -> dict[str, list[int]]:
        """Empty: epochs do not depend on earlier ones."""
        return {}

    def restore(self, state: dict[str, list[int]]) -> None:
        """Does nothing: there is no state."""
