"""Backfill: a column of a task's answers over all documents of a store, from their features alone.

A fragment that has the column is done, one that lacks it is not: nothing else is remembered, so a job that was stopped
goes on, documents that are appended meanwhile are answered too, and fragments that were joined meanwhile are done anew.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path as FilePath

import numpy as np

from polyhead import plan as planning
from polyhead.arguments import check_fields
from polyhead.bundle.files import release
from polyhead.bundle.read import Bundle
from polyhead.config import Value
from polyhead.engine.loaded import loaded
from polyhead.engine.packed import PackedTasks, check_packed
from polyhead.errors import ConfigError, StoreError, UnknownTask
from polyhead.jobs.answers import ResultColumn, arrays_of, columns_of, joined
from polyhead.jobs.executors import EXECUTORS, HERE, Executor
from polyhead.plan import Path
from polyhead.progress import progress_line
from polyhead.store.corpus.base import CorpusStore, Fragment, PackedRows
from polyhead.store.corpus.open import open_corpus
from polyhead.tasks.task import Task

UNIT_ROWS = 2**15  # documents that a worker answers at once; a lost worker loses these
SLICE_BYTES = 2**25  # of packed features that a worker has in memory at once
Show = Callable[[str], None]


class BackfillRequest(Value):
    """What to fill, and who does it."""

    tasks: tuple[str, ...] = ()  # none: all that can be answered from the store
    all_scores: bool = False  # also a column of the scores of all labels
    executor: str = HERE
    workers: int = 1
    address: str | None = None  # of a cluster

    def __post_init__(self) -> None:
        check_fields(self)
        EXECUTORS.named(self.executor)
        if self.workers < 1:
            raise ConfigError("a backfill needs at least one worker", got=self.workers)


class BackfillSummary(Value):
    """The result of a backfill."""

    store: str
    columns: tuple[ResultColumn, ...]
    documents: int  # of the store
    filled: int  # of these, documents that this run answered for some task
    fragments: int  # that this run filled
    seconds: float
    documents_a_second: float


def backfill(
    location: FilePath | str, bundle: FilePath | str, wish: BackfillRequest, *, show: Show = lambda text: None
) -> BackfillSummary:
    """Answers tasks of a bundle for every document of the store that lacks their columns.

    Raises StoreError for a store of another trunk, for features that it does not keep, and for tasks that need more
    than features; UnknownTask; JobError.
    """
    began = time.monotonic()
    job = Backfill(str(location), Bundle.open(bundle), wish)
    with EXECUTORS[wish.executor](job.work, workers=wish.workers, address=wish.address) as executor:
        job.fill(executor, show)
    seconds = time.monotonic() - began
    return BackfillSummary(
        store=str(location),
        columns=job.columns,
        documents=sum(fragment.rows for fragment in job.store.fragments),
        filled=job.filled,
        fragments=job.fragments,
        seconds=seconds,
        documents_a_second=job.filled / seconds,
    )


class Backfill:
    """One call: the store, the columns to fill, and what was filled so far."""

    def __init__(self, location: str, bundle: Bundle, wish: BackfillRequest) -> None:
        self.store = open_corpus(location)
        paths = readable(location, self.store, bundle, wish.tasks)
        digests = {name: planning.digest(path.stored()) for name, path in paths.items()}
        columns = [
            column for name in paths for column in columns_of(name, bundle.lines[name], all_scores=wish.all_scores)
        ]
        groups = {}
        for digest in dict.fromkeys(digests.values()):
            arrays = {name: loaded(bundle, name) for name in paths if digests[name] == digest}
            groups[digest] = PackedTasks.of(self.store.schema.column(digest), arrays)
        tasks = {name: bundle.tasks[name].task for name in paths}
        self.columns = tuple(columns)
        self.work = Answering(location, groups, tasks, self.columns)
        self.filled = self.fragments = 0

    def units(self, fragments: Sequence[Fragment]) -> Iterator[Unit]:
        """What is to be done for these fragments."""
        for fragment in fragments:
            for digest, group in self.work.groups.items():
                lacking = tuple(
                    column.name
                    for column in self.columns
                    if column.task in group.tasks and column.name not in fragment.results
                )
                for start in range(0, fragment.rows if lacking else 0, UNIT_ROWS):
                    stop = min(start + UNIT_ROWS, fragment.rows)
                    yield Unit(fragment=fragment.name, start=start, stop=stop, digest=digest, columns=lacking)

    def fill(self, executor: Executor, show: Show) -> None:
        """Fills fragments until none lacks a column."""
        began, before = time.monotonic(), 0
        while True:
            self.store.refresh()
            units = list(self.units(self.store.fragments))
            if not units:
                return
            rows = {fragment.name: fragment.rows for fragment in self.store.fragments}
            opened: dict[tuple[str, str], _Opened] = {}
            total = before + sum(unit.stop - unit.start for unit in units)
            for unit, results in executor.results(units):
                one = opened.setdefault((unit.fragment, unit.digest), _Opened(rows[unit.fragment]))
                one.add(unit.start, unit.stop - unit.start, results)
                before += unit.stop - unit.start
                if one.is_whole:
                    del opened[unit.fragment, unit.digest]
                    self._put(unit.fragment, one)
                seconds = time.monotonic() - began
                show(progress_line("backfill", done=before, total=total, unit="documents", seconds=seconds))

    def _put(self, fragment: str, opened: _Opened) -> None:
        """Puts the columns of a fragment; one that was joined with others meanwhile is left to the next round."""
        results = opened.joined()
        for column, arrays in results.items():
            try:
                self.store.put_results(fragment, column, arrays)
            except StoreError:
                if has(self.store, fragment):
                    raise
                return
        if results:
            self.filled += opened.rows
            self.fragments += 1


class Unit(Value):
    """Rows of a fragment, and the columns of results that they lack."""

    fragment: str
    start: int
    stop: int
    digest: str  # of the features to read
    columns: tuple[str, ...]


Results = dict[str, dict[str, np.ndarray]]
"""Arrays of some rows by column; none of a fragment that was joined with others meanwhile."""


class _Opened:
    """Results of a fragment, of which some rows may not be done yet."""

    def __init__(self, rows: int) -> None:
        self.rows, self._done = rows, 0
        self._parts: dict[int, Results] = {}

    @property
    def is_whole(self) -> bool:
        """Whether all rows are done."""
        return self._done == self.rows

    def add(self, start: int, rows: int, results: Results) -> None:
        """Takes the results of so many rows from `start`."""
        self._parts[start] = results
        self._done += rows

    def joined(self) -> Results:
        """The results of all rows; none where some were gone."""
        parts = [self._parts[start] for start in sorted(self._parts)]
        if not all(parts):
            return {}
        return {name: joined([part[name] for part in parts]) for name in parts[0]}


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

    def __call__(self, unit: Unit) -> Results:
        """The results of a unit's rows by column; none where the fragment was joined with others."""
        if self._store is None:
            self._store = open_corpus(self.location)
        try:
            if not has(self._store, unit.fragment):
                return {}
            rows = self._store.rows(unit.fragment, unit.digest)
        except StoreError:
            self._store.refresh()
            if has(self._store, unit.fragment):
                raise
            return {}
        columns = [self.columns[name] for name in unit.columns]
        tasks = self.groups[unit.digest].only(list(dict.fromkeys(column.task for column in columns)))
        parts = []
        for part in slices(rows, unit.start, unit.stop):
            outputs = tasks.outputs(part)
            parts.append({column.name: self._arrays(column, outputs[column.task]) for column in columns})
            release([rows.data])  # else all that was ever read counts as memory of this process
        return {name: joined([part[name] for part in parts]) for name in parts[0]}

    def _arrays(self, column: ResultColumn, outputs: np.ndarray) -> dict[str, np.ndarray]:
        return arrays_of(column, self.tasks[column.task], outputs)


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


def readable(location: str, store: CorpusStore, bundle: Bundle, names: Sequence[str]) -> dict[str, Path]:
    """The paths of the tasks that the store can answer, or of those asked; raises StoreError for one that it cannot."""
    trunk = store.schema.source.get("trunk", bundle.digest)
    if trunk != bundle.digest:
        raise StoreError(
            f"{location} holds features of another trunk than the bundle {bundle.root}",
            got=f"trunk {trunk}",
            allowed=f"trunk {bundle.digest}",
            do="give the bundle over the store's trunk, or extract the features anew with this bundle",
        )
    unknown = [name for name in names if name not in bundle.tasks]
    if unknown:
        raise UnknownTask(
            f"the bundle has no task {', '.join(map(repr, unknown))} over its trunk",
            got=unknown,
            allowed=sorted(bundle.tasks),
        )
    paths, errors = {}, []
    for name in names or bundle.tasks:
        record = bundle.tasks[name]
        try:
            check_packed(record.task, record.path)
            check_kept(location, store, name, record.path)
        except StoreError as error:
            if names:
                raise
            errors.append(error)
            continue
        paths[name] = record.path
    if not paths:
        raise errors[0] if errors else UnknownTask(f"the bundle {bundle.root} has no task", do="train one first")
    return paths


def check_kept(location: str, store: CorpusStore, name: str, path: Path) -> None:
    """Raises StoreError where the store does not keep the features that a task reads; it names both."""
    digest, codec = planning.digest(path.stored()), path.pool.codec
    kept = store.schema.features
    if all(column.digest != digest for column in kept):
        raise StoreError(
            f"task '{name}' reads other features than {location} keeps",
            got=f"{digest} ({codec.name})",
            allowed=[f"{column.digest} ({column.codec.name})" for column in kept],
            do="extract these features, or train the task on what the store keeps",
        )
