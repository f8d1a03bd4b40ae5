"""What inputs cost: kept as arrays of all inputs, as a value of one input where it is asked for."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import msgspec
import numpy as np

from polyhead.config import Value
from polyhead.engine.rows import Readings

Flops = Callable[[tuple[str, ...], int], Mapping[str, int]]
"""Entries of `Receipt.added_flops` for one pass of so many tokens that these tasks read."""


class Receipt(Value):
    """What one input cost.

    `passes` counts inputs that were read, not runs of the trunk: one for a text or a pair read jointly, two for a pair
    read separately, one an option, one a window. `layers` counts every layer that was run on them: a prompt group or an
    adapter has its input run through layers of the trunk once more, which adds layers and no pass.

    `added_flops` has an entry for each answered task, what it alone did beyond a plain pass of the trunk, and one for
    tasks that shared such work, "shared: mood, urgency": the pass of their prompt group, layers with their common
    adapter. With the plain pass the entries are the whole cost; a pair read separately is counted as its longer text.
    """

    passes: int
    layers: int
    tokens: int  # special tokens included
    cut: int = 0  # tokens beyond the trunk's limit that were not read by tasks that do not read windows
    windows: int = 1
    repaired: int = 0  # lone surrogates that were replaced before reading
    added_flops: dict[str, int] = {}


class Ran(Value, eq=False):
    """Passes that were run, and the tasks that got their outputs from them."""

    row: np.ndarray  # int64 (passes,): number of the input
    sizes: np.ndarray  # int64 (passes,): tokens
    unread: np.ndarray  # int64 (passes,): tokens that some task does not read
    windows: np.ndarray  # int64 (passes,): which window of the input it was, from 1
    is_half: bool  # of pairs read separately
    tasks: tuple[str, ...]
    layers: int  # of each pass

    @classmethod
    def of(
        cls, readings: Readings, members: np.ndarray, *, start: int, tasks: tuple[str, ...], layers: int
    ) -> Ran:
        """Some of the readings; `start` is the number of their first input."""
        texts, entries = readings.texts, readings.entries[members]
        return cls(
            row=texts.row[entries] + start,
            sizes=texts.encodings.lengths[entries],
            unread=texts.unread[entries],
            windows=texts.encodings.window[entries] + 1,
            is_half=texts.role in ("first", "second"),
            tasks=tasks,
            layers=layers,
        )


class Receipts(Value, eq=False):
    """The receipts of all inputs of a call: arrays int64 (inputs,), named as in `Receipt`."""

    passes: np.ndarray
    layers: np.ndarray
    tokens: np.ndarray
    cut: np.ndarray
    windows: np.ndarray
    repaired: np.ndarray
    # What each pass was: passes of one input stand together, those of input i from `starts[i]` on.
    starts: np.ndarray  # (inputs + 1,)
    sizes: np.ndarray  # (passes,): tokens
    readers: np.ndarray  # (passes,): index into `tasks`
    halves: np.ndarray  # bool (passes,): of pairs read separately
    tasks: tuple[tuple[str, ...], ...]
    written: dict[int, dict[str, int]] = {}  # by input, FLOPs of tasks that own their models

    @classmethod
    def of(cls, ran: Sequence[Ran], inputs: int, repaired: Mapping[int, int]) -> Receipts:
        """Of what was run; `repaired` says it for inputs that had lone surrogates."""
        tasks = list(dict.fromkeys(one.tasks for one in ran))
        place = {names: index for index, names in enumerate(tasks)}
        columns = [
            (
                one.row,
                one.sizes,
                np.full(len(one.row), one.layers),
                one.unread,
                one.windows,
                np.full(len(one.row), place[one.tasks]),
                np.full(len(one.row), one.is_half),
            )
            for one in ran
        ]
        nothing = [(np.zeros(0, np.int64),) * 6 + (np.zeros(0, bool),)]
        row, sizes, layers, unread, window, readers, halves = (
            np.concatenate(column) for column in zip(*(columns or nothing), strict=True)
        )
        order = np.argsort(row, kind="stable")
        passes = np.bincount(row, minlength=inputs)
        windows = np.ones(inputs, np.int64)
        np.maximum.at(windows, row, window)
        found = np.zeros(inputs, np.int64)
        found[list(repaired)] = list(repaired.values())
        return cls(
            passes=passes,
            layers=_summed(row, layers, inputs),
            tokens=_summed(row, sizes, inputs),
            cut=_summed(row, unread, inputs),
            windows=windows,
            repaired=np.where(passes > 0, found, 0),
            starts=np.concatenate([[0], np.cumsum(passes)]),
            sizes=sizes[order],
            readers=readers[order],
            halves=halves[order],
            tasks=tuple(tasks),
        )

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

    def _flops(self, row: int, flops: Flops) -> dict[str, int]:
        """For each window and option what each task added alone, and what several added together."""
        here = range(int(self.starts[row]), int(self.starts[row + 1]))
        counted = [i for i in here if not self.halves[i]]
        if len(counted) < len(here):
            counted.append(max((i for i in here if self.halves[i]), key=lambda i: int(self.sizes[i])))
        found: dict[str, int] = {}
        for i in counted:
            for name, number in flops(self.tasks[self.readers[i]], int(self.sizes[i])).items():
                found[name] = found.get(name, 0) + number
        return found | self.written.get(row, {})

    def with_written(self, name: str, rows: Sequence[int], costs: Sequence[Receipt]) -> Receipts:
        """With what a task that owns its model cost for these inputs, a receipt of its own each."""
        changed = {
            field: getattr(self, field).copy() for field in ("passes", "layers", "tokens", "cut", "repaired")
        }
        written = {row: dict(flops) for row, flops in self.written.items()}
        for row, cost in zip(rows, costs, strict=True):
            for field in ("passes", "layers", "tokens", "cut"):
                changed[field][row] += getattr(cost, field)
            changed["repaired"][row] = max(changed["repaired"][row], cost.repaired)
            written.setdefault(row, {}).update(cost.added_flops)
        return msgspec.structs.replace(self, **changed, written=written)


def _summed(row: np.ndarray, values: np.ndarray, inputs: int) -> np.ndarray:
    return np.bincount(row, weights=values, minlength=inputs).astype(np.int64)
