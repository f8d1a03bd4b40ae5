"""What a backfill will take, said before it begins: time, bytes and dollars, from documents that are tried first."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

import msgspec

from polyhead.progress import counted, duration
from polyhead.store.jobs.answering import Answering, Unit
from polyhead.store.jobs.answers import row_bytes
from polyhead.store.jobs.executors import Executor
from polyhead.values import Value

TRIED_ROWS, TRIED = 4096, 5  # rows of a trial, and trials of each worker
GOLDEN = (5**0.5 - 1) / 2  # its multiples are spread evenly over [0, 1)
WARM_ROWS = 256  # of the first one, which makes a worker ready
PUT_SECONDS = 0.02  # to put a column of a fragment on a local disk: a few files that are flushed


class Price(Value):
    """What a job will take."""

    documents: int
    workers: int
    seconds: float
    read_bytes: int
    written_bytes: int
    documents_a_second: float
    dollars: float | None = None

    def lines(self) -> list[str]:
        """The same for people."""
        cost = "" if self.dollars is None else f", {self.dollars:,.2f} dollars"
        by = counted(self.workers, "worker")
        return [
            f"price: {counted(self.documents, 'document')} by {by} in about {duration(self.seconds)}{cost}, "
            f"{self.read_bytes / 1e6:,.0f} MB to read, {self.written_bytes / 1e6:,.0f} MB to write"
        ]


def priced(units: Sequence[Unit], executor: Executor, work: Answering, *, dollars_an_hour: float | None) -> Price:
    """The price of these units, from trials that all workers do at once, as they will work later.

    A worker that first opens a fragment checks it, which takes time by its bytes.
    """
    workers, documents = executor.workers, sum(unit.stop - unit.start for unit in units)
    warm = [answered for _, answered in executor.results(spaced_parts(units, workers, WARM_ROWS))]
    tried = list(executor.results(spaced_parts(units, workers * TRIED, TRIED_ROWS)))
    rows = sum(unit.stop - unit.start for unit, answered in tried if answered.results)
    each = sum(answered.computing for _, answered in tried) / max(1, rows)
    several = [*warm, *(answered for _, answered in tried)]
    a_byte = max((one.opening / one.fragment_bytes for one in several if one.fragment_bytes), default=0.0)
    sizes = {(unit.fragment, unit.digest): answered.fragment_bytes for unit, answered in tried}
    opened = {key: sum(unit.stop - unit.start for unit in units if _key(unit) == key) for key in sizes}
    document_bytes = sum(sizes.values()) / max(1, sum(opened.values()))
    seconds = (each * documents + a_byte * document_bytes * _opened_rows(units, workers)) / workers
    puts = PUT_SECONDS * sum(len(unit.columns) for unit in units if not unit.start)
    # Several workers go on while a column is put.
    seconds = seconds + puts if workers == 1 else max(seconds, puts)
    kept = {name: row_bytes(column, work.tasks[column.task]) for name, column in work.columns.items()}
    return Price(
        documents=documents,
        workers=workers,
        seconds=seconds,
        read_bytes=round(document_bytes * documents),
        written_bytes=sum(kept[name] * (unit.stop - unit.start) for unit in units for name in unit.columns),
        documents_a_second=documents / seconds,
        dollars=None if dollars_an_hour is None else dollars_an_hour * seconds / 3600,
    )


def spaced_parts(units: Sequence[Unit], count: int, rows: int) -> Iterator[Unit]:
    """So many short parts of these units, evenly spaced."""
    for number in range(count):
        unit = units[number * len(units) // count]
        room = max(0, unit.stop - unit.start - rows)
        start = unit.start + round(room * ((number * GOLDEN) % 1))
        yield msgspec.structs.replace(unit, start=start, stop=min(start + rows, unit.stop))


def _key(unit: Unit) -> tuple[str, str]:
    return unit.fragment, unit.digest


def _opened_rows(units: Sequence[Unit], workers: int) -> int:
    """Documents of all fragments, each as often as workers open it."""
    rows, times = Counter[tuple[str, str]](), Counter[tuple[str, str]]()
    for unit in units:
        rows[_key(unit)] += unit.stop - unit.start
        times[_key(unit)] += 1
    return sum(rows[key] * min(workers, times[key]) for key in rows)
