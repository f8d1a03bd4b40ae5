"""The order of examples in a pass: random, with near neighbours in length batched together."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator

import numpy as np

from polyhead.train.data.windows import WindowedExamples
from polyhead.train.loop.feed import Batch

SORTED_CHUNK = 64  # batches whose examples are sorted by length together: less padding, still random order


class LengthSorted(ABC):
    """Examples that differ in length. `lengths` (examples,) are tokens.

    Of texts that are read in windows each window is an example: `count`, `steps` and members are in windows.
    """

    options: np.ndarray | None = None  # how many each example has (examples,), where a pair is read for each
    windows: WindowedExamples | None = None  # where texts are read in windows

    def __init__(self, lengths: np.ndarray) -> None:
        self._lengths = lengths
        self.count = len(lengths)

    def steps(self, batch: int) -> int:
        """Batches in one pass."""
        return -(-self.count // batch)

    def shuffled(self, batch: int, generator: np.random.Generator) -> Iterator[Batch]:
        """One pass in random order."""
        for members in self.drawn(batch, generator):
            yield self.batch(members)

    def drawn(self, batch: int, generator: np.random.Generator, *, tokens: int | None = None) -> Iterator[np.ndarray]:
        """The members of each batch of one pass in random order; every example once.

        With `tokens` a batch ends before its rows times its longest would be more: it has fewer examples, and a longer
        one stands alone. An example with options has a row for each.
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

    def in_order(self, batch: int, *, tokens: int | None = None) -> Iterator[Batch]:
        """One pass by length; `tokens` as in `drawn`."""
        for members in self._pieces(np.argsort(self._lengths, kind="stable"), batch, tokens):
            yield self.batch(members)

    @abstractmethod
    def batch(self, members: np.ndarray) -> Batch:
        """These examples, padded to the longest of them."""

    @abstractmethod
    def unread(self, member: int) -> np.ndarray | None:
        """For each word of an example whether no token stands for it; None for tasks that do not read words."""
