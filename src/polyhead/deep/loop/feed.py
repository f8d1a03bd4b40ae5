"""Input of a training run: batches, the order of examples in a pass, and the source of updates."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from itertools import chain, count, islice
from typing import Protocol

import msgspec
import numpy as np
from torch import Tensor

from polyhead.project.recipes import Training
from polyhead.text.words import GOES_ON
from polyhead.train.data.windows import WindowedExamples
from polyhead.train.runs import stream


class TrainingBatch(msgspec.Struct, frozen=True, kw_only=True):
    """Arguments of the module's call, targets, and the indices of the examples; `soft`: a teacher's outputs."""

    arguments: tuple[object, ...]
    targets: Tensor
    members: np.ndarray
    soft: Tensor | None = None
    tokens: int = 0  # tokens read, without padding; 0 if not counted


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

    def __init__(self, examples: LengthSorted, training: Training, *, steps: int | None = None) -> None:
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
        """All of them in each whole pass, and those of the last one's batches."""
        passes, rest = divmod(epochs * self.steps, self._in_a_pass)
        return passes * self._examples.count + sum(map(len, islice(self._order(passes), rest)))

    def _order(self, number: int) -> Iterator[np.ndarray]:
        """The members of each batch of this pass."""
        generator = np.random.default_rng(stream(self._training.seed, "order", number))
        return self._examples.drawn(self._training.batch, generator)

    def state(self) -> dict[str, list[int]]:
        """Empty: epochs do not depend on earlier ones."""
        return {}

    def restore(self, state: dict[str, list[int]]) -> None:
        """Does nothing: there is no state."""


SORTED_CHUNK = 64  # batches whose examples are sorted by length together: less padding, but still a random order


class LengthSorted(ABC):
    """Examples of different lengths. `lengths` (examples,) are in tokens.

    For texts read in windows each window is an example: `count`, `steps` and members are in windows.
    """

    windows: WindowedExamples | None = None  # set if texts are read in windows

    def __init__(
        self, lengths: np.ndarray, *, options: np.ndarray | None = None, words: Sequence[np.ndarray] | None = None
    ) -> None:
        """`options` (examples,): each one's number; `lengths` are then of all options, and the longest one counts.

        `words` are each example's `first_subtokens` of its words.
        """
        self._lengths, self.options, self._words = lengths, options, words
        if options is not None:
            self._lengths = np.asarray(np.maximum.reduceat(lengths, np.cumsum(options) - options))
        self.count = len(self._lengths)

    def steps(self, batch: int) -> int:
        """Batches in one pass."""
        return -(-self.count // batch)

    def drawn(self, batch: int, generator: np.random.Generator, *, tokens: int | None = None) -> Iterator[np.ndarray]:
        """The members of each batch of one pass in random order; every example once.

        With `tokens` a batch ends before its rows times its longest would exceed it: it has fewer examples, and a
        longer one is alone. An example with options has one row for each.
        """
        order = generator.permutation(self.count)
        for start in range(0, self.count, batch * SORTED_CHUNK):
            chunk = order[start : start + batch * SORTED_CHUNK]
            chunk = chunk[np.argsort(self._lengths[chunk], kind="stable")]
            pieces = self._pieces(chunk, batch, tokens)
            for index in generator.permutation(len(pieces)):
                yield pieces[index]

    def _pieces(self, chunk: np.ndarray, batch: int, tokens: int | None) -> list[np.ndarray]:
        """Cuts examples that are sorted by length, shortest first."""
        if tokens is None:
            return [chunk[i : i + batch] for i in range(0, len(chunk), batch)]
        rows = np.ones(len(chunk), np.int64) if self.options is None else self.options[chunk]
        lengths, starts, several = self._lengths[chunk], [0], 0
        for index, (own, longest) in enumerate(zip(rows.tolist(), lengths.tolist(), strict=True)):
            full = index - starts[-1] == batch or (several + own) * longest > tokens
            if index and full:
                starts.append(index)
                several = 0
            several += own
        return np.split(chunk, starts[1:])

    def in_order(self, batch: int, *, tokens: int | None = None) -> Iterator[TrainingBatch]:
        """One pass by length; `tokens` as in `drawn`."""
        for members in self._pieces(np.argsort(self._lengths, kind="stable"), batch, tokens):
            yield self.batch(members)

    @abstractmethod
    def batch(self, members: np.ndarray) -> TrainingBatch:
        """These examples, padded to the longest of them."""

    def goes_on(self, member: int) -> np.ndarray | None:
        """Which words of an example share the token of the word before; None if unknown."""
        return None if self._words is None else self._words[member] == GOES_ON

    def unread(self, member: int) -> np.ndarray | None:
        """For each word of an example, whether no token represents it; None for tasks that do not read words."""
        return None if self._words is None else self._words[member] < 0
