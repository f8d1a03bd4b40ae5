"""What inputs cost: arrays of all inputs of a request, a value of one input where it is asked for."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property

import numpy as np

from polyhead.config import Value
from polyhead.engine.batch import Batch
from polyhead.engine.inputs import AnyInput, plain
from polyhead.text.question import texts_of
from polyhead.text.tokenize import lone_surrogates

Flops = Callable[[tuple[str, ...], int], Mapping[str, int]]
"""Entries of `Receipt.added_flops` for one pass of so many tokens that these tasks read."""


class Receipt(Value):
    """What one input cost.

    A pass is one text read once by the trunk: one for a text or a pair read jointly, up to two for a pair read
    separately, one an option, one a window. `layers` counts every layer that was run in these: a prompt group or an
    adapter has its text run through layers of the trunk once more, which adds layers and no pass.

    A text of pairs read separately is read once for all that is made ready together (the first 256 inputs of a call,
    then 2,048 at a time, fewer of long texts). Its pass, layers and tokens are counted for the first input that is this
    very text and that some task reads, else for the first pair that holds it, and for no other pair; `cut`, `repaired`
    and `added_flops` are said for every pair.

    `added_flops` has an entry for each answered task, what it alone did beyond a plain pass of the trunk, and one for
    tasks that shared such work, "shared: mood, urgency": the layers of their prompt group, or with their common
    adapter. With the plain pass the entries are the whole cost; a pair read separately is counted as its longer text.
    """

    passes: int
    layers: int
    tokens: int  # special tokens included
    # Tokens beyond the trunk's limit that were not read by tasks that do not read windows; of a text of over a million
    # characters at least so many.
    cut: int = 0
    windows: int = 1
    repaired: int = 0  # lone surrogates that were replaced before reading
    added_flops: dict[str, int] = {}


class Receipts:
    """What the inputs of a request have cost so far: arrays int64 (inputs,), named as in `Receipt`."""

    def __init__(self, inputs: Sequence[AnyInput]) -> None:
        size = len(inputs)
        self.passes, self.layers, self.tokens, self.cut, self.repaired = (np.zeros(size, np.int64) for _ in range(5))
        self.windows = np.ones(size, np.int64)
        self._inputs = inputs
        # Of passes, and of pairs that had half of one: their inputs, tokens, readers, and whether they are such halves.
        self._read: list[tuple[np.ndarray, np.ndarray, tuple[str, ...], bool]] = []
        self._written: dict[int, dict[str, int]] = {}  # by input, FLOPs of tasks that own their models

    def copy(self) -> Receipts:
        """The receipts of this moment, which no later pass changes."""
        receipts = Receipts(self._inputs)
        for name in ("passes", "layers", "tokens", "cut", "repaired", "windows"):
            setattr(receipts, name, getattr(self, name).copy())
        receipts._read = list(self._read)
        receipts._written = {row: dict(flops) for row, flops in self._written.items()}
        return receipts

    def add(self, batch: Batch, tasks: tuple[str, ...], layers: int) -> None:
        """Counts a batch of which so many layers were run, and from which these tasks got outputs."""
        texts, entries, rows, sizes = batch.texts, batch.entries, batch.row, batch.lengths
        for total, counts in (
            (self.passes, 1),
            (self.layers, layers),
            (self.tokens, sizes),
            (self.cut, texts.unread[entries]),
        ):
            np.add.at(total, rows, counts)
        np.maximum.at(self.windows, rows, texts.encodings.window[entries] + 1)
        self._read.append((rows, sizes, tuple(name for name in tasks if name not in texts.separate), False))
        repaired = [rows[texts.encodings.repaired[entries] > 0]]
        if any(name in texts.separate for name in batch.tasks):
            compared = tuple(name for name in tasks if name in texts.separate)
            for places in texts.halves(entries):
                halves, rows = places[places >= 0], texts.pairs[places >= 0, 0]
                np.add.at(self.cut, rows, texts.encodings.beyond[entries[halves]])
                self._read.append((rows, sizes[halves], compared, True))
                repaired.append(rows[texts.encodings.repaired[entries[halves]] > 0])
        for row in set(np.concatenate(repaired).tolist()):
            self.repaired[row] = sum(map(lone_surrogates, texts_of(plain(self._inputs[row]))))

    def add_written(self, name: str, rows: Sequence[int], costs: Sequence[Receipt]) -> None:
        """Counts what a task that owns its model cost for these inputs, a receipt of its own each."""
        for row, cost in zip(rows, costs, strict=True):
            for field in ("passes", "layers", "tokens", "cut"):
                getattr(self, field)[row] += getattr(cost, field)
            self.repaired[row] = max(self.repaired[row], cost.repaired)
            self._written.setdefault(row, {}).update(cost.added_flops)

    def at(self, row: int, flops: Flops) -> Receipt:
        """The receipt of one input."""
        return Receipt(
            passes=int(self.passes[row]),
            layers=int(self.layers[row]),
            tokens=int(self.tokens[row]),
            cut=int(self.cut[row]),
            windows=int(self.windows[row]),
            repaired=int(self.repaired[row]),
            added_flops=self._flops(row, flops),
        )

    @cached_property
    def _by_input(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Where the passes of each input begin (inputs + 1,); of each pass its tokens, and its number in `_read`."""
        rows = np.concatenate([np.zeros(0, np.int64), *(rows for rows, *_ in self._read)])
        sizes = np.concatenate([np.zeros(0, np.int64), *(sizes for _, sizes, *_ in self._read)])
        counts = np.array([len(rows) for rows, *_ in self._read], np.int64)
        numbers = np.repeat(np.arange(len(counts)), counts)
        order = np.argsort(rows, kind="stable")
        starts = np.concatenate([[0], np.cumsum(np.bincount(rows, minlength=len(self._inputs)))])
        return starts, sizes[order], numbers[order]

    def _flops(self, row: int, flops: Flops) -> dict[str, int]:
        """For each window and option what each task added alone, and what several added together."""
        starts, sizes, numbers = self._by_input
        passes, longest = list[tuple[tuple[str, ...], int]](), None
        for i in range(int(starts[row]), int(starts[row + 1])):
            _, _, tasks, is_half = self._read[numbers[i]]
            read = (tasks, int(sizes[i]))
            if not is_half:
                passes.append(read)
            elif longest is None or read[1] > longest[1]:
                longest = read
        added: dict[str, int] = {}
        for tasks, tokens in passes if longest is None else [*passes, longest]:
            for name, number in flops(tasks, tokens).items():
                added[name] = added.get(name, 0) + number
        return added | self._written.get(row, {})
