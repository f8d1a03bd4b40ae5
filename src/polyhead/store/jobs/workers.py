"""The workers of a backfill, and the cost of their work: results of rows directly from stored features."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence

import msgspec
import numpy as np

from polyhead.bundle.files import release
from polyhead.bundle.read import Bundle
from polyhead.engine.familiar import KnownRows, known_tasks, reported_keys
from polyhead.engine.session import vector_path
from polyhead.errors import StoreError
from polyhead.progress import counted, duration
from polyhead.store.corpus import open_corpus
from polyhead.store.corpus.base import WORDS, CorpusStore, FeatureColumn, PackedRows
from polyhead.store.jobs.answers import ResultColumn, column_arrays, concatenate_columns, row_bytes
from polyhead.store.jobs.executors import Executor
from polyhead.store.packed import PackedTasks, means
from polyhead.store.taps import kept_in_words
from polyhead.tasks.task import Task
from polyhead.values import Value

SLICE_BYTES = 2**25  # packed features that a worker has in memory at once


class Unit(Value):
    """Rows of a fragment, and their missing columns of results."""

    fragment: str
    start: int
    stop: int
    digest: str  # digests of the features to read
    columns: tuple[str, ...]


Results = dict[str, dict[str, np.ndarray]]
"""Arrays of some rows by column; none of a fragment that was joined with others meanwhile."""


class UnitResults(Value, eq=False):
    """The results of a unit, and their cost."""

    results: Results = {}
    fragment_bytes: int = 0  # of the whole fragment's features
    opening: float = 0.0  # seconds until its rows were readable: on first use they are checked
    computing: float = 0.0  # seconds


class Answering:
    """The work of a worker: results of units, directly from the store."""

    def __init__(
        self,
        location: str,
        groups: Mapping[str, PackedTasks],
        tasks: Mapping[str, Task],
        columns: Sequence[ResultColumn],
        *,
        known: KnownDocuments | None = None,
    ) -> None:
        """`groups`: the tasks that read the features of each digest; `known`: for columns of how familiar they are."""
        self.location, self.groups, self.tasks, self._known = location, dict(groups), dict(tasks), known
        self.columns = {column.name: column for column in columns}
        by_task = {name: digest for digest, group in groups.items() for name in group.names}
        self.digests = {column.name: by_task[column.task] for column in columns}  # of the features that each reads
        if known is not None:
            self.digests |= {column.name: known.column.digest for column in columns if column.familiar}
        self._store: CorpusStore | None = None

    def __getstate__(self) -> dict[str, object]:
        """The state for another process, which opens the store itself."""
        return self.__dict__ | {"_store": None}

    def __call__(self, unit: Unit) -> UnitResults:
        """The results of a unit's rows by column; empty if the fragment was joined with others."""
        began = time.monotonic()
        if self._store is None:
            self._store = open_corpus(self.location)
        columns = [self.columns[name] for name in unit.columns]
        named = list(dict.fromkeys(column.task for column in columns if not column.familiar))
        tasks = self.groups[unit.digest].only(named) if named else None
        try:
            if not has(self._store, unit.fragment):
                return UnitResults()
            rows = self._store.rows(unit.fragment, unit.digest)
            words = self._store.rows(unit.fragment, WORDS) if tasks is not None and tasks.words else None
        except StoreError:
            self._store.refresh()
            if has(self._store, unit.fragment):
                raise
            return UnitResults()
        opened = time.monotonic()
        parts, start, kept = [], unit.start, [rows.data, *([] if words is None else [words.data])]
        for part in slices(rows, unit.start, unit.stop):
            stop = start + len(part.lengths)
            hashed = None if words is None else words.between(start, stop)
            outputs = {} if tasks is None else tasks.outputs(part, hashed)
            start = stop
            shares = self._known.shares(part) if self._known and any(column.familiar for column in columns) else {}
            read = [(shares if column.familiar else outputs)[column.task] for column in columns]
            parts.append({each.name: self._arrays(each, row) for each, row in zip(columns, read, strict=True)})
            release(kept)  # else everything read so far counts as memory of this process
        return UnitResults(
            results=concatenate_columns(parts),
            fragment_bytes=sum(data.nbytes for data in kept),
            opening=opened - began,
            computing=time.monotonic() - opened,
        )

    def _arrays(self, column: ResultColumn, outputs: np.ndarray) -> dict[str, np.ndarray]:
        return column_arrays(column, self.tasks[column.task], outputs)


def has(store: CorpusStore, fragment: str) -> bool:
    """Whether the store has this fragment, in the current version or the newest."""
    if not any(each.name == fragment for each in store.fragments):
        store.refresh()
    return any(each.name == fragment for each in store.fragments)


def slices(rows: PackedRows, start: int, stop: int) -> Iterator[PackedRows]:
    """Rows from `start` to `stop` in parts of about SLICE_BYTES, not copied; at least one row each."""
    room = max(1, SLICE_BYTES // max(1, rows.data.shape[1]))
    while start < stop:
        end = int(np.searchsorted(rows.offsets, rows.offsets[start] + room, side="right")) - 1
        end = min(max(end, start + 1), stop)
        yield rows.between(start, end)
        start = end


TRIED_ROWS, TRIED = 4096, 5  # most rows of a trial, and most trials of one size per worker
GROWTH = 4  # of trials, from one row on
TRIED_SECONDS, TRIED_SHARE = 1.0, 0.05  # a round of trials that takes so long, or so much of the job, is the last one
QUICK = 0.25  # seconds of a round that are worth it for any job
GOLDEN = (5**0.5 - 1) / 2  # its multiples are spread evenly over [0, 1)
PUT_SECONDS = 0.02  # seconds to put a column of a fragment on a local disk: a few flushed files


class Price(Value):
    """The estimated cost of a job."""

    documents: int
    workers: int
    seconds: float
    read_bytes: int
    written_bytes: int
    documents_a_second: float
    dollars: float | None = None

    def lines(self) -> list[str]:
        """The estimate as lines of text."""
        cost = "" if self.dollars is None else f", {self.dollars:,.2f} dollars"
        by = counted(self.workers, "worker")
        return [
            f"price: {counted(self.documents, 'document')} by {by} in about {duration(self.seconds)}{cost}, "
            f"{self.read_bytes / 1e6:,.0f} MB to read, {self.written_bytes / 1e6:,.0f} MB to write"
        ]


def priced(units: Sequence[Unit], executor: Executor, work: Answering, *, dollars_an_hour: float | None) -> Price:
    """The estimated cost of these units, from the largest of the concurrent trials of all workers.

    Units of other features or columns have trials of their own, as the seconds and the number of their rows differ. A
    worker that first opens a fragment checks it, which takes time proportional to its bytes. A document is read once
    for each column of features that tasks need.
    """
    workers, reads, alike = executor.workers, _rows(units), dict[tuple[str, tuple[str, ...]], list[Unit]]()
    documents = sum({unit.fragment: unit.stop for unit in units}.values())  # the last unit of each ends it
    for unit in units:
        alike.setdefault((unit.digest, unit.columns), []).append(unit)
    computing, trials, tried = 0.0, list[UnitResults](), list[tuple[Unit, UnitResults]]()
    for group in alike.values():
        rounds = list(trial_rounds(group, executor))
        rows = _rows([unit for unit, answered in rounds[-1] if answered.results])
        computing += sum(answered.computing for _, answered in rounds[-1]) / max(1, rows) * _rows(group)
        trials += [answered for tried_at_once in rounds for _, answered in tried_at_once]
        tried += rounds[-1]
    a_byte = max((trial.opening / trial.fragment_bytes for trial in trials if trial.fragment_bytes), default=0.0)
    sizes = {(unit.fragment, unit.digest): answered.fragment_bytes for unit, answered in tried}
    opened = {key: _rows([unit for unit in units if _key(unit) == key]) for key in sizes}
    document_bytes = sum(sizes.values()) / max(1, sum(opened.values()))
    seconds = (computing + a_byte * document_bytes * _opened_rows(units, workers)) / workers
    puts = PUT_SECONDS * sum(len(unit.columns) for unit in units if not unit.start)
    # Several workers continue while a column is put.
    seconds = seconds + puts if workers == 1 else max(seconds, puts)
    kept = {name: row_bytes(column, work.tasks[column.task]) for name, column in work.columns.items()}
    return Price(
        documents=documents,
        workers=workers,
        seconds=seconds,
        read_bytes=round(document_bytes * reads),
        written_bytes=sum(kept[name] * (unit.stop - unit.start) for unit in units for name in unit.columns),
        documents_a_second=documents / seconds,
        dollars=None if dollars_an_hour is None else dollars_an_hour * seconds / 3600,
    )


def trial_rounds(units: Sequence[Unit], executor: Executor) -> Iterator[list[tuple[Unit, UnitResults]]]:
    """Trials of ever more rows, until one round takes long enough to be measured; the first prepares the workers.

    Where each document takes long, as where a task writes, they are a small share of the job.
    """
    workers, reads = executor.workers, _rows(units)
    yield list(executor.results(spaced_parts(units, workers, 1)))
    rows, largest = 1, min(TRIED_ROWS, max(unit.stop - unit.start for unit in units))
    while True:
        count = min(workers * TRIED, max(workers, int(TRIED_SHARE * reads / rows)))
        tried = list(executor.results(spaced_parts(units, count, rows)))
        yield tried
        seconds = sum(answered.computing for _, answered in tried) / workers
        share = TRIED_SHARE * seconds * reads / (count * rows)
        if rows >= largest or seconds >= TRIED_SECONDS or GROWTH * seconds > max(QUICK, share):
            return
        rows *= GROWTH


def spaced_parts(units: Sequence[Unit], count: int, rows: int) -> Iterator[Unit]:
    """The given number of short parts of these units, evenly spaced."""
    for number in range(count):
        unit = units[number * len(units) // count]
        room = max(0, unit.stop - unit.start - rows)
        start = unit.start + round(room * ((number * GOLDEN) % 1))
        yield msgspec.structs.replace(unit, start=start, stop=min(start + rows, unit.stop))


def _rows(units: Sequence[Unit]) -> int:
    return sum(unit.stop - unit.start for unit in units)


def _key(unit: Unit) -> tuple[str, str]:
    return unit.fragment, unit.digest


def _opened_rows(units: Sequence[Unit], workers: int) -> int:
    """Documents of all fragments, each counted as often as workers open it."""
    rows, times = Counter[tuple[str, str]](), Counter[tuple[str, str]]()
    for unit in units:
        rows[_key(unit)] += unit.stop - unit.start
        times[_key(unit)] += 1
    return sum(rows[key] * min(workers, times[key]) for key in rows)


class KnownDocuments(Value, eq=False):
    """The rows that documents are compared with, by task, and the features that hold the documents' mean vectors."""

    column: FeatureColumn
    rows: dict[str, KnownRows]

    def shares(self, documents: PackedRows) -> dict[str, np.ndarray]:
        """For each task how familiar documents are, float64 (documents, 1); NaN for one without a token."""
        vectors = means(self.column, documents)
        is_read = np.isfinite(vectors).all(axis=1)
        shares = {}
        for name, rows in self.rows.items():
            shares[name] = np.full((len(vectors), 1), np.nan)
            shares[name][is_read, 0] = rows.familiar(vectors[is_read])
        return shares


def known_documents(location: str, store: CorpusStore, bundle: Bundle, names: Collection[str]) -> KnownDocuments:
    """Raises ConfigError where no task keeps rows, and StoreError for a store without the documents' mean vectors."""
    records = {name: bundle.tasks[name] for name in names}
    known = known_tasks(bundle, records, {})
    reported = reported_keys(known, {name: record.task for name, record in records.items()}, familiar=True, asked=None)
    fit = [column for column in store.schema.features if _holds_vectors(column, bundle)]
    if not fit:
        raise StoreError(
            f"{location} does not keep the mean vectors that say how familiar its documents are",
            got=[kept_in_words(column) for column in store.schema.features],
            allowed="the last layer, every token or their mean, in half precision at least",
            do="extract into another store with --tap last:float16 too, or leave out --familiar",
        )
    pairs: Mapping[str, KnownRows | None] = {name: known[name].rows for name in reported}
    return KnownDocuments(column=fit[0], rows={name: rows for name, rows in pairs.items() if rows is not None})


def _holds_vectors(column: FeatureColumn, bundle: Bundle) -> bool:
    """Whether the mean of these features is that of the trunk's last states."""
    path = column.path
    if path is None or path.nodes[:-1] != vector_path(bundle.digest, bundle.architecture.layers).nodes[:-1]:
        return False
    pool = path.pool
    is_last = pool.layers == "last" or (pool.layers == "mean" and pool.of == 1)
    is_near = pool.codec.format.is_exact or pool.codec.format.is_fine
    return is_last and pool.positions in ("all", "mean") and is_near
