"""The order of examples in a pass: random, with near neighbours in length batched together."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator

import numpy as np

from polyhead.train.fit import Batch

SORTED_CHUNK = 64  # batches whose examples are sorted by length together: less padding, still random order


class LengthSorted(ABC):
    """Examples that differ in length. `lengths` (examples,) are tokens."""

    def __init__(self, lengths: np.ndarray) -> None:
        self._lengths = lengths
        self.count = len(lengths)

    def steps(self, batch: int) -> int:
        """Batches in one pass."""
        return -(-self.count // batch)

    def shuffled(self, batch: int, generator: np.random.Generator) -> Iterator[Batch]:
        """One pass in random order."""
        order = generator.permutation(self.count)
        for start in range(0, self.count, batch * SORTED_CHUNK):
            chunk = order[start : start + batch * SORTED_CHUNK]
            chunk = chunk[np.argsort(self._lengths[chunk], kind="stable")]
            pieces = [chunk[i : i + batch] for i in range(0, len(chunk), batch)]
            for index in generator.permutation(len(pieces)):
                yield self.batch(pieces[index])

    def in_order(self, batch: int) -> Iterator[Batch]:
        """One pass by length."""
        order = np.argsort(self._lengths, kind="stable")
        for start in range(0, self.count, batch):
            yield self.batch(order[start : start + batch])

    @abstractmethod
    def batch(self, members: np.ndarray) -> Batch:
        """These examples, padded to the longest of them."""

    @abstractmethod
    def unread(self, member: int) -> np.ndarray | None:
        """For each word of an example whether no token stands for it; None for tasks that do not read words."""
