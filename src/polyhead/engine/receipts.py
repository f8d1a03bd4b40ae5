"""What inputs cost: kept as arrays of all inputs, as a value of one input where it is asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

import msgspec
import numpy as np

from polyhead.config import Value
from polyhead.engine.rows import Readings

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


class PassRecord(Value, eq=False):
    """Passes that were run, and the tasks that got outputs from them; or what pairs had of such passes."""

    row: np.ndarray  # int64 (passes,): number of the input
    sizes: np.ndarray  # int64 (passes,): tokens
    unread: np.ndarray  # int64 (passes,): tokens that some task does not read
    windows: np.ndarray  # int64 (passes,): which window of the input it was, from 1
    is_half: bool  # what pairs read separately had of passes that are counted beside it: none of its own
    tasks: tuple[str, ...]
    layers: int  # of each pass

    @classmethod
    def of(
        cls, readings: Readings, members: np.ndarray, *, start: int, tasks: tuple[str, ...], layers: int
    ) -> Iterator[PassRecord]:
        """Some of the readings, then what pairs had of them; `start` is the number of their first input."""
        texts, entries = readings.texts, readings.entries[members]
        halves, sizes = texts.halves, texts.encodings.lengths[entries]
        compared = () if halves is None else halves.tasks
        yield cls(
            row=texts.row[entries] + start,
            sizes=sizes,
            unread=texts.unread[entries],
            windows=texts.encodings.window[entries] + 1,
            is_half=False,
            tasks=tuple(task for task in tasks if task not in compared) if compared else tasks,
            layers=layers,
        )
        if halves is None or not any(task in compared for task in readings.tasks):
            return
        for places in halves.among(texts.encodings.row[entries]):
            pairs = np.flatnonzero(places >= 0)
            rows = places[pairs]
            yield cls(
                row=halves.rows[pairs] + start,
                sizes=sizes[rows],
                unread=texts.encodings.beyond[entries[rows]],
                windows=np.ones(len(pairs), np.int64),
                is_half=True,
                tasks=tuple(task for task in tasks if task in compared),
                layers=0,
            )


class Receipts(Value, eq=False):
    """The receipts of all inputs of a call: arrays int64 (inputs,), named as in `Receipt`."""

    passes: np.ndarray
    layers: np.ndarray
    tokens: np.ndarray
    cut: np.ndarray
    windows: np.ndarray
    repaired: np.ndarray
    # What was read: passes of one input, and texts of pairs, stand together, those of input i from `starts[i]` on.
    starts: np.ndarray  # (inputs + 1,)
    sizes: np.ndarray  # (read,): tokens
    readers: np.ndarray  # (read,): index into `tasks`
    halves: np.ndarray  # bool (read,): of pairs read separately
    tasks: tuple[tuple[str, ...], ...]
    written: dict[int, dict[str, int]] = {}  # by input, FLOPs of tasks that own their models

    @classmethod
    def of(cls, ran: Sequence[PassRecord], inputs: int, repaired: Mapping[int, int]) -> Receipts:
        """Of what was run; `repaired` says it for inputs that had lone surrogates."""
        tasks = list(dict.fromkeys(record.tasks for record in ran))
        place = {names: index for index, names in enumerate(tasks)}
        columns = [
            (
                record.row,
                record.sizes,
                np.full(len(record.row), record.layers),
                record.unread,
                record.windows,
                np.full(len(record.row), place[record.tasks]),
                np.full(len(record.row), record.is_half),
            )
            for record in ran
        ]
        nothing = [(np.zeros(0, np.int64),) * 6 + (np.zeros(0, bool),)]
        row, sizes, layers, unread, window, readers, halves = (
            np.concatenate(column) for column in zip(*(columns or nothing), strict=True)
        )
        order = np.argsort(row, kind="stable")
        read = np.bincount(row, minlength=inputs)
        windows = np.ones(inputs, np.int64)
        np.maximum.at(windows, row, window)
        repaired_counts = np.zeros(inputs, np.int64)
        repaired_counts[list(repaired)] = list(repaired.values())
        return cls(
            passes=_summed(row, ~halves, inputs),
            layers=_summed(row, layers, inputs),
            tokens=_summed(row, np.where(halves, 0, sizes), inputs),
            cut=_summed(row, unread, inputs),
            windows=windows,
            repaired=np.where(read > 0, repaired_counts, 0),
            starts=np.concatenate([[0], np.cumsum(read)]),
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
        passes = range(int(self.starts[row]), int(self.starts[row + 1]))
        counted = [i for i in passes if not self.halves[i]]
        if len(counted) < len(passes):
            counted.append(max((i for i in passes if self.halves[i]), key=lambda i: int(self.sizes[i])))
        added: dict[str, int] = {}
        for i in counted:
            for name, number in flops(self.tasks[self.readers[i]], int(self.sizes[i])).items():
                added[name] = added.get(name, 0) + number
        return added | self.written.get(row, {})

    def with_written(self, name: str, rows: Sequence[int], costs: Sequence[Receipt]) -> Receipts:
        """With what a task that owns its model cost for these inputs, a receipt of its own each."""
        changed = {field: getattr(self, field).copy() for field in ("passes", "layers", "tokens", "cut", "repaired")}
        written = {row: dict(flops) for row, flops in self.written.items()}
        for row, cost in zip(rows, costs, strict=True):
            for field in ("passes", "layers", "tokens", "cut"):
                changed[field][row] += getattr(cost, field)
            changed["repaired"][row] = max(changed["repaired"][row], cost.repaired)
            written.setdefault(row, {}).update(cost.added_flops)
        return msgspec.structs.replace(self, **changed, written=written)


def _summed(row: np.ndarray, values: np.ndarray, inputs: int) -> np.ndarray:
    return np.bincount(row, weights=values, minlength=inputs).astype(np.int64)
