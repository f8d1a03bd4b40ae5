"""What workers of a backfill do: results of some rows of a fragment, straight from its features."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from polyhead.bundle.files import release
from polyhead.errors import StoreError
from polyhead.store.corpus.base import CorpusStore, PackedRows
from polyhead.store.corpus.open import open_corpus
from polyhead.store.jobs.answers import ResultColumn, column_arrays, concatenate_columns
from polyhead.store.packed import PackedTasks
from polyhead.tasks.task import Task
from polyhead.values import Value

SLICE_BYTES = 2**25  # of packed features that a worker has in memory at once


class Unit(Value):
    """Rows of a fragment, and the columns of results that they lack."""

    fragment: str
    start: int
    stop: int
    digest: str  # of the features to read
    columns: tuple[str, ...]


Results = dict[str, dict[str, np.ndarray]]
"""Arrays of some rows by column; none of a fragment that was joined with others meanwhile."""


class UnitResults(Value, eq=False):
    """The results of a unit, and what they took."""

    results: Results = {}
    fragment_bytes: int = 0  # of the whole fragment's features
    opening: float = 0.0  # seconds until its rows could be read: the first time they are checked
    computing: float = 0.0  # seconds


class Answering:
    """What workers do: results of units, straight from the store."""

    def __init__(
        self,
        location: str,
        groups: Mapping[str, PackedTasks],
        tasks: Mapping[str, Task],
        columns: Sequence[ResultColumn],
    ) -> None:
        """`groups`: the tasks that read the features of each digest."""
        self.location, self.groups, self.tasks = location, dict(groups), dict(tasks)
        self.columns = {column.name: column for column in columns}
        self._store: CorpusStore | None = None

    def __getstate__(self) -> dict[str, object]:
        """For another process, which opens the store itself."""
        return self.__dict__ | {"_store": None}

    def __call__(self, unit: Unit) -> UnitResults:
        """The results of a unit's rows by column; none where the fragment was joined with others."""
        began = time.monotonic()
        if self._store is None:
            self._store = open_corpus(self.location)
        try:
            if not has(self._store, unit.fragment):
                return UnitResults()
            rows = self._store.rows(unit.fragment, unit.digest)
        except StoreError:
            self._store.refresh()
            if has(self._store, unit.fragment):
                raise
            return UnitResults()
        opened = time.monotonic()
        columns = [self.columns[name] for name in unit.columns]
        tasks = self.groups[unit.digest].only(list(dict.fromkeys(column.task for column in columns)))
        parts = []
        for part in slices(rows, unit.start, unit.stop):
            outputs = tasks.outputs(part)
            parts.append({column.name: self._arrays(column, outputs[column.task]) for column in columns})
            release([rows.data])  # else all that was ever read counts as memory of this process
        return UnitResults(
            results={name: concatenate_columns([part[name] for part in parts]) for name in parts[0]},
            fragment_bytes=rows.data.nbytes,
            opening=opened - began,
            computing=time.monotonic() - opened,
        )

    def _arrays(self, column: ResultColumn, outputs: np.ndarray) -> dict[str, np.ndarray]:
        return column_arrays(column, self.tasks[column.task], outputs)


def has(store: CorpusStore, fragment: str) -> bool:
    """Whether the store has this fragment, in its newest version if not in the one that was read."""
    if not any(each.name == fragment for each in store.fragments):
        store.refresh()
    return any(each.name == fragment for each in store.fragments)


def slices(rows: PackedRows, start: int, stop: int) -> Iterator[PackedRows]:
    """Rows from `start` to `stop` in parts of about SLICE_BYTES, not copied; at least a row each."""
    room = max(1, SLICE_BYTES // max(1, rows.data.shape[1]))
    while start < stop:
        end = int(np.searchsorted(rows.offsets, rows.offsets[start] + room, side="right")) - 1
        end = min(max(end, start + 1), stop)
        first = rows.offsets[start]
        yield PackedRows(offsets=rows.offsets[start : end + 1] - first, data=rows.data[first : rows.offsets[end]])
        start = end
