"""Backfill: columns of tasks' answers for all documents of a store, from their features alone.

A fragment with the column is done, one without it is not: nothing else is recorded, so an interrupted job resumes,
documents appended meanwhile are answered too, and fragments joined meanwhile are done again.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path as FilePath
from typing import Annotated

from msgspec import Meta

from polyhead import plan as planning
from polyhead.arguments import check_fields
from polyhead.bundle.read import Bundle
from polyhead.engine.loaded import loaded
from polyhead.errors import ConfigError, StoreError, UnknownTask
from polyhead.machine import processors
from polyhead.plan import Path
from polyhead.progress import Show, progress_line, stopped_with
from polyhead.store.corpus import open_corpus
from polyhead.store.corpus.base import CorpusStore, Fragment
from polyhead.store.jobs.answers import (
    ResultColumn,
    answer_columns,
    calibrations_of,
    check_scored,
    column_facts,
    concatenate_columns,
)
from polyhead.store.jobs.executors import CLUSTER, EXECUTORS, HERE, SEVERAL, Executor
from polyhead.store.jobs.workers import Answering, Price, Results, Unit, has, known_documents, priced
from polyhead.store.packed import PackedTasks, check_packed
from polyhead.store.writing import StoredWriting
from polyhead.tasks.kinds import kind_of
from polyhead.values import Value

MANY = 100_000  # minimum documents for which starting several processes pays
UNIT_ROWS, WRITTEN_ROWS = 2**15, 2**6  # documents that a worker answers, or writes, at once; a lost worker loses these


class BackfillRequest(Value):
    """The part of a store to fill, and the executor."""

    tasks: tuple[str, ...] = ()  # empty: every task that the store can answer
    all_scores: Annotated[
        bool,
        Meta(description="Also keep the scores of all labels, in a column of their own.", extra={"option": "--scores"}),
    ] = False
    calibrated: Annotated[
        bool, Meta(description="Also keep what calibration makes of the answers, in a column of their own.")
    ] = False
    familiar: Annotated[
        bool, Meta(description="Also say how familiar documents are to their task, in a column of their own.")
    ] = False
    executor: Annotated[
        str | None,
        Meta(
            description="Who works: this process, several processes, or a Ray cluster [default: what --workers and "
            "--address need; without them inline for few documents, else processes].",
            extra={"choices": EXECUTORS},
        ),
    ] = None
    workers: Annotated[int, Meta(description="How many work [default: one a processor].", ge=1)] | None = None
    address: Annotated[
        str | None,
        Meta(description="Of the Ray cluster; without it a local one is started.", extra={"metavar": "ADDRESS"}),
    ] = None
    dollars_an_hour: (
        Annotated[
            float,
            Meta(description="What all workers cost an hour.", ge=0, extra={"option": "--price", "metavar": "DOLLARS"}),
        ]
        | None
    ) = None

    def __post_init__(self) -> None:
        check_fields(self)
        if self.executor is not None:
            EXECUTORS.named(self.executor)
        if self.workers is not None and self.workers < 1:
            raise ConfigError("a backfill needs at least one worker", got=self.workers)
        if self.executor == HERE and self.workers is not None and self.workers > 1:
            do = f"leave out the executor, or ask for '{SEVERAL}'"
            raise ConfigError(f"executor '{HERE}' is one worker", got=self.workers, allowed=1, do=do)
        if self.executor in (HERE, SEVERAL) and self.address is not None:
            do = f"leave out the address, or ask for '{CLUSTER}'"
            raise ConfigError(f"executor '{self.executor}' has no address", got=self.address, do=do)
        if self.dollars_an_hour is not None and not 0 <= self.dollars_an_hour < float("inf"):
            raise ConfigError("a price is a number of dollars an hour", got=self.dollars_an_hour)


class BackfillSummary(Value):
    """The result of a backfill."""

    store: str
    columns: tuple[ResultColumn, ...]
    documents: int  # of the store
    filled: int  # documents of these that this run answered for some task
    fragments: int  # fragments that this run filled
    executor: str
    workers: int
    price: Price | None  # the estimate made beforehand; None if nothing was to be done
    seconds: float  # without the calibration
    documents_a_second: float

    @property
    def price_error(self) -> float | None:
        """The error of the estimate relative to the actual time; None without one."""
        return None if self.price is None else abs(self.price.seconds / self.seconds - 1)


def backfill(
    location: FilePath | str,
    bundle: FilePath | str,
    wish: BackfillRequest,
    *,
    show: Show = lambda text: None,
    tell: Show = lambda text: None,
    check: Callable[[Sequence[ResultColumn]], object] | None = None,
) -> BackfillSummary:
    """Answers tasks of a bundle for every document of the store that lacks their columns.

    `show` receives lines of progress; `tell` the estimate before the work begins, and in what answers may differ from
    those to the texts themselves. `check` receives the columns before any work, and may refuse them.

    Raises StoreError for a store of another trunk, for features that it does not keep, and for tasks that need more
    than features; UnknownTask; JobError.
    """
    job = Backfill(str(location), Bundle.open(bundle), wish)
    if check is not None:
        check(job.columns)
    for line in job.differences():
        tell(line)
    units = list(job.units(job.store.fragments))
    name, workers = executor_for(wish, sum(unit.stop - unit.start for unit in units))
    with EXECUTORS[name](job.work, workers=workers, address=wish.address) as executor:
        price = None
        if units:
            show("trying a few documents")
            price = priced(units, executor, job.work, dollars_an_hour=wish.dollars_an_hour)
            tell("\n".join(price.lines()))
        began = time.monotonic()
        job.describe()
        with stopped_with(lambda: job.filled, "documents with answers"):
            job.fill(executor, show)
        seconds = time.monotonic() - began
    return BackfillSummary(
        store=str(location),
        columns=job.columns,
        documents=sum(fragment.rows for fragment in job.store.fragments),
        filled=job.filled,
        fragments=job.fragments,
        executor=name,
        workers=workers,
        price=price,
        seconds=seconds,
        documents_a_second=job.filled / seconds,
    )


def executor_for(wish: BackfillRequest, documents: int) -> tuple[str, int]:
    """The executor that is asked for, or fits so many documents, and its number of workers."""
    several = wish.workers > 1 if wish.workers is not None else documents >= MANY and processors() > 1
    name = wish.executor or (CLUSTER if wish.address is not None else SEVERAL if several else HERE)
    return name, 1 if name == HERE else wish.workers or processors()


class Backfill:
    """One call: the store, the columns to fill, and the progress."""

    def __init__(self, location: str, bundle: Bundle, wish: BackfillRequest) -> None:
        self.store = open_corpus(location)
        paths = readable(location, self.store, bundle, wish.tasks)
        digests = {name: planning.digest(path.stored()) for name, path in paths.items()}
        tasks = {name: bundle.tasks[name].task for name in paths}
        if wish.all_scores:
            check_scored(tasks)
        known = {name: record.calibration for name, record in bundle.tasks.items() if record.calibration is not None}
        calibrations = calibrations_of(known, paths) if wish.calibrated else {}
        vectors = known_documents(location, self.store, bundle, paths) if wish.familiar else None
        columns = [
            column
            for name in paths
            for column in answer_columns(
                name,
                bundle.lines[name],
                all_scores=wish.all_scores and kind_of(tasks[name]).score_cell is not None,
                calibration=calibrations.get(name),
                familiar=vectors is not None and name in vectors.rows,
            )
        ]
        groups = {}
        for digest in dict.fromkeys(digests.values()):
            names, column = [name for name in paths if digests[name] == digest], self.store.schema.column(digest)
            lines = {name: bundle.lines[name] for name in names if kind_of(tasks[name]).generates}
            writing = StoredWriting(bundle.root, lines, column) if lines else None
            arrays = {name: loaded(bundle, name) for name in names if name not in lines}
            groups[digest] = PackedTasks.of(column, arrays, writing)
        self.columns = tuple(columns)
        self._bundle = bundle
        self.work = Answering(location, groups, tasks, self.columns, known=vectors)
        self.filled = self.fragments = 0

    def differences(self) -> Iterator[str]:
        """A line for each way in which answers may differ from those to the texts, as the store knows less of these."""
        tasks = self.work.tasks.values()
        if pairs := [task.name for task in tasks if task.pair != "none"]:
            yield f"every document is answered as a pair, single texts too, by {', '.join(pairs)}"
        if windowed := [task.name for task in tasks if task.long_texts == "windows"]:
            is_cut = self.store.schema.source.get("long_texts") != "windows"
            what = "of a long text the first window alone is read" if is_cut else "each window is answered by itself"
            yield f"{what} by {', '.join(windowed)}"
        told = {column.task for column in self.columns if column.familiar}
        if limited := [task.name for task in tasks if task.none_below and task.name not in told]:
            keeps = "" if told else ": --familiar keeps the share that `none_below` compares"
            yield f"no answer says none_of_these by {', '.join(limited)}{keeps}"

    def describe(self) -> None:
        """Writes descriptions of the columns into the store, for people and other programs."""
        known = self.store.described()
        for column in self.columns:
            facts = column_facts(column, self.work.tasks[column.task], self._bundle)
            if known.get(column.name) != facts:
                self.store.describe(column.name, facts)

    def units(self, fragments: Sequence[Fragment]) -> Iterator[Unit]:
        """The units of work for these fragments."""
        for fragment in fragments:
            for digest in dict.fromkeys(self.work.digests.values()):
                names = [name for name, read in self.work.digests.items() if read == digest]
                lacking = tuple(name for name in names if name not in fragment.results)
                tasks = {self.work.tasks[self.work.columns[name].task] for name in lacking}
                size = WRITTEN_ROWS if any(kind_of(task).generates for task in tasks) else UNIT_ROWS
                for start in range(0, fragment.rows if lacking else 0, size):
                    stop = min(start + size, fragment.rows)
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
            waiting = Counter(unit.fragment for unit in units)
            parts: dict[str, dict[tuple[str, int], Results]] = {name: {} for name in waiting}
            total = before + sum(unit.stop - unit.start for unit in units)
            for unit, answered in executor.results(units):
                parts[unit.fragment][unit.digest, unit.start] = answered.results
                waiting[unit.fragment] -= 1
                before += unit.stop - unit.start
                if not waiting[unit.fragment]:
                    self._put(unit.fragment, rows[unit.fragment], parts.pop(unit.fragment))
                seconds = time.monotonic() - began
                show(progress_line("backfill", done=before, total=total, unit="documents", seconds=seconds))

    def _put(self, fragment: str, rows: int, parts: Mapping[tuple[str, int], Results]) -> None:
        """Puts the columns of a fragment; one that was joined with others meanwhile is left to the next round."""
        if not all(parts.values()):
            return
        columns: Results = {}
        for digest in dict.fromkeys(digest for digest, _ in parts):
            columns |= concatenate_columns([parts[key] for key in sorted(parts) if key[0] == digest])
        try:
            self.store.put_columns(fragment, columns)
        except StoreError:
            if has(self.store, fragment):
                raise
            return
        self.filled += rows
        self.fragments += 1


def readable(location: str, store: CorpusStore, bundle: Bundle, names: Sequence[str]) -> dict[str, Path]:
    """The paths of the tasks that the store can answer, or of the requested ones; raises StoreError if it cannot."""
    check_store_trunk(location, store, bundle)
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
            check_packed(record.task, record.path, words=store.schema.words)
            check_stored_columns(location, store, name, record.path)
        except StoreError as error:
            if names:
                raise
            errors.append(error)
            continue
        paths[name] = record.path
    if not paths:
        raise errors[0] if errors else UnknownTask(f"the bundle {bundle.root} has no task", do="train one first")
    return paths


def answerable(bundle: Bundle, digests: Collection[str], *, words: bool) -> list[str]:
    """The tasks that a store with the features of these digests, and with hashed words if `words`, can answer."""
    names = []
    for name, record in bundle.tasks.items():
        with suppress(StoreError):
            check_packed(record.task, record.path, words=words)
            if planning.digest(record.path.stored()) in digests:
                names.append(name)
    return names


def check_store_trunk(location: str, store: CorpusStore, bundle: Bundle) -> None:
    """Raises StoreError for a store of another trunk than the bundle's, or of none that it names; it names both."""
    trunk = store.schema.source.get("trunk", "that it does not name")
    if trunk != bundle.digest:
        raise StoreError(
            f"{location} holds features of another trunk than the bundle {bundle.root}",
            got=f"trunk {trunk}",
            allowed=f"trunk {bundle.digest}",
            do="give the bundle over the store's trunk, or extract the features anew with this bundle",
        )


def check_stored_columns(location: str, store: CorpusStore, name: str, path: Path) -> None:
    """Raises StoreError, naming both, if the store does not keep the features that a task reads."""
    digest, codec = planning.digest(path.stored()), path.pool.codec
    kept = store.schema.features
    if all(column.digest != digest for column in kept):
        raise StoreError(
            f"task '{name}' reads other features than {location} keeps",
            got=f"{digest} ({codec.name})",
            allowed=[f"{column.digest} ({column.codec.name})" for column in kept],
            do="extract these features, or train the task on what the store keeps",
        )
