"""Backfilling from one bit, over encoding the same documents again; scans, memory, opening, and what a job said first.

    python -m benchmarks.store_backfill                     writes results/store_backfill.json
    python -m benchmarks.store_backfill --rows-scale 0.01   a trial, which writes no results

One task and five, pooled attention over 200,000 real documents, by as many processes as there are processors; a session
that is open already encodes some of the same texts again and answers the one task, in bfloat16 and in int8, in turn
with them. Times of both sides are without starting up; what a whole call took stands in the rows. A million synthetic
documents have the lengths of the real ones, and tokens drawn from theirs.

Memory is what belongs to a process alone (RssAnon), the highest of what was seen every few milliseconds in a process of
its own: pages of mapped files are the system's, which takes them back. An extraction is measured with an encoder that
gives random numbers, over texts that are numbered to be distinct.
"""

from __future__ import annotations

import itertools
import json
import mmap
import os
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.store_made import (
    BACKEND,
    COLUMN,
    FRAGMENT_ROWS,
    KINDS,
    TASKS,
    TEXTS,
    Place,
    Row,
    bundle_of,
    options_of,
    read_texts,
    single,
    texts_file,
    trunk,
    write_texts,
)
from polyhead.bundle.read import Bundle
from polyhead.codecs import ONE_BIT
from polyhead.engine.backends import open_runtime
from polyhead.engine.backends.base import TokenBatch
from polyhead.engine.session import Session
from polyhead.evaluate.int8 import calibrated_scales
from polyhead.plan import Codec
from polyhead.plan import Path as TaskPath
from polyhead.store.corpus import create_corpus, open_corpus
from polyhead.store.corpus.base import CorpusStore, PackedRows, Schema
from polyhead.store.jobs.backfill import BackfillRequest, backfill
from polyhead.store.jobs.columns import RowInput as Calibrating
from polyhead.store.jobs.executors import HERE, SEVERAL
from polyhead.store.jobs.executors.processes import THREADS
from polyhead.store.jobs.extract import ExtractRequest, extract
from studies.results import Claim
from studies.settings import ROOT, answer_help, say, within

NAME = "store_backfill"
MANY, FEW = 1_000_000, 100_000  # documents of the large store, and of the one that memory is compared with
REPEATS, ENCODED, CALIBRATED = 5, 4_000, 320  # texts encoded in a repeat, and those that fix scales of int8
OPENED = 5
SEEN = 0.002  # seconds between looks at the memory
FASTER, FIVE, FLAT, OPEN, PRICE = 100.0, 4.0, 1.1, 1.0, 0.25
NAMES = tuple(task.name for task in TASKS)
COLUMNS = 2**23  # bytes read at once


def main() -> None:
    if "--child" in sys.argv:
        job = json.loads(sys.argv[-1])
        print(json.dumps(CHILDREN[job.pop("job")](**job)), flush=True)
        return
    options, place = options_of(__doc__)
    study = place.study(NAME)
    if not options.report:
        measure(place, study.row)
    place.report(NAME, study.rows, claims(study.rows), list(lacking(study.rows)))


def measure(place: Place, row: Callable[..., Row]) -> None:
    """Every row that is not there yet, and says it."""
    for repeat in range(REPEATS):
        say(str(row(partial(in_turn, place), what="real", repeat=repeat)))
    for kind in KINDS:
        say(str(row(partial(synthetic, place, kind, MANY), what="synthetic", kind=kind, rows=MANY)))
    say(str(row(partial(synthetic, place, "plain", FEW), what="synthetic", kind="plain", rows=FEW)))
    for repeat in range(3):
        say(str(row(partial(filled, place, location_of(place, "plain", MANY)), what="million", repeat=repeat)))
    for kind, repeat in itertools.product(KINDS, range(OPENED)):
        run = partial(child, job="opening", location=location_of(place, kind, MANY))
        say(str(row(run, what="open", kind=kind, repeat=repeat)))
    for kind, repeat in itertools.product(KINDS, range(3)):
        say(str(row(partial(scanned, place, kind), what="scan", kind=kind, repeat=repeat)))
    for job, rows in itertools.product(("backfill", "extract"), (FEW, MANY)):
        say(str(row(partial(remembered, place, job, rows), what="memory", job=job, rows=rows)))


# Real documents, in turn with a session.


def in_turn(place: Place) -> Row:
    """Documents a second of each side, one after another."""
    location = single(place, "plain", ONE_BIT)
    texts, bundle = read_texts(texts_file(place)), bundle_of(place, codec_of(location))
    drawn = np.random.default_rng(0).permutation(len(texts))[: place.rows(min(ENCODED, TEXTS))]
    chosen = [texts[i] for i in drawn.tolist()]
    bf16, int8 = sessions(bundle, tuple(texts[:CALIBRATED]))
    row: Row = {"encoded": len(chosen), "precision": bf16.backend.precision}
    row["encoding"] = len(chosen) / answered(bf16, chosen)
    for count in (1, 5):
        row[f"backfill_{count}"] = emptied_and_filled(location, bundle, NAMES[:count])
    row["encoding_int8"] = len(chosen) / answered(int8, chosen)
    return row


@cache
def sessions(root: Path, texts: Sequence[str]) -> tuple[Session, Session]:
    """Sessions in OpenVINO's own precision and in int8, which answered some texts already."""
    bundle, runtimes = Bundle.open(root), partial(open_runtime, BACKEND)
    scales = calibrated_scales(bundle, [Calibrating(input=(text,)) for text in texts], runtimes, show=lambda line: None)
    both = Session(bundle, backend=runtimes()), Session(bundle, backend=runtimes(precision="int8", scales=scales))
    for session in both:
        answered(session, list(texts))
    return both


def answered(session: Session, texts: list[str]) -> float:
    """Seconds of encoding texts and answering one task."""
    began = time.perf_counter()
    session.columns([(text,) for text in texts], tasks=NAMES[:1])
    return time.perf_counter() - began


def emptied_and_filled(location: str, bundle: Path, names: Sequence[str], executor: str = SEVERAL) -> Row:
    """A backfill of a store whose results are dropped first."""
    store = open_corpus(location)
    for column in {name for fragment in store.fragments for name in fragment.results}:
        store.drop_results(column)
    store.sweep(age=0)
    began = time.perf_counter()
    done = backfill(location, bundle, BackfillRequest(tasks=tuple(names), executor=executor))
    wall = time.perf_counter() - began
    assert done.price is not None and done.filled == done.documents
    return {
        "documents": done.documents,
        "executor": done.executor,
        "workers": done.workers,
        "seconds": done.seconds,
        "price_seconds": done.price.seconds,
        "price_error": done.price_error,
        "call_seconds": wall,
    }


def codec_of(location: str) -> Codec:
    (column,) = open_corpus(location).schema.features
    return column.codec


# Synthetic documents.


def location_of(place: Place, kind: str, rows: int) -> str:
    return str(place.folder / f"synthetic-{rows}{'.lance' if kind == 'lance' else ''}")


def synthetic(place: Place, kind: str, rows: int) -> Row:
    """A store of documents of tokens drawn from the real ones; one that is there is gone on with."""
    real = open_corpus(single(place, "plain", ONE_BIT))
    (column,) = real.schema.features
    packed = [real.rows(fragment.name, column.digest) for fragment in real.fragments]
    lengths, tokens = np.concatenate([rows.lengths for rows in packed]), packed[0].data
    schema = Schema(features=(column,), source=real.schema.source)
    store, wanted, began = create_corpus(location_of(place, kind, rows), schema), place.rows(rows), time.perf_counter()
    for number, start in enumerate(range(0, wanted, FRAGMENT_ROWS)):
        rng, count = np.random.default_rng(number), min(FRAGMENT_ROWS, wanted - start)
        ids = np.frombuffer(rng.bytes(16 * count), np.uint8).reshape(count, 16)
        several = rng.choice(lengths, count)
        data = tokens[rng.integers(0, len(tokens), int(several.sum()))]
        store.append(ids, {column.digest: PackedRows.of(several, data)})
    return {"documents": sum(each.rows for each in store.fragments), "seconds": time.perf_counter() - began}


def filled(place: Place, location: str) -> Row:
    return emptied_and_filled(location, bundle_of(place, codec_of(location)), NAMES[:1])


def child(*, module: str = "benchmarks.store_backfill", **job: object) -> Row:
    """Runs a job in a new process with one thread, as a worker of a backfill has, and reads what it prints."""
    environment = os.environ | dict.fromkeys(THREADS, "1")
    command = [sys.executable, "-m", module, "--child", json.dumps(job)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=environment)
    if done.returncode:
        raise SystemExit(f"{job}: {done.stderr[-2000:]}")
    row: Row = json.loads(done.stdout.splitlines()[-1])
    return row


def opening(location: str) -> Row:
    """Seconds until a store's fragments are known, and until one document is found by its id."""
    began = time.perf_counter()
    store = open_corpus(location)
    rows = sum(fragment.rows for fragment in store.fragments)
    opened = time.perf_counter() - began
    store.find([bytes(16)])
    return {"rows": rows, "seconds": opened, "found_seconds": time.perf_counter() - began}


# Scans.


def scanned(place: Place, kind: str) -> Row:
    """Bytes a second: of the page cache, of the disk, and of scans of each, every one in a process of its own."""
    location = location_of(place, kind, MANY)
    row = child(job="warm", location=location)
    row |= {"disk": child(job="disk", location=location)["rate"]}
    row |= {"scan_disk": child(job="cold", location=location)["rate"]}
    return row


def files_of(location: str) -> list[Path]:
    """The files that hold features."""
    return [
        path
        for path in sorted(Path(location).rglob("*"))
        if path.name.endswith(("data.bin", ".lance")) and path.is_file()
    ]


def forgotten(location: str) -> None:
    """Takes the files out of the page cache."""
    os.sync()
    for path in files_of(location):
        with path.open("rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def added_up(arrays: Iterator[np.ndarray]) -> tuple[int, float]:
    """Bytes of arrays, all of which are read, and seconds."""
    began, read = time.perf_counter(), 0
    for array in arrays:
        flat = array.reshape(-1)
        whole = flat[: len(flat) // 8 * 8].view(np.uint64)
        whole.sum()
        read += flat.nbytes
    return read, time.perf_counter() - began


def maps(location: str) -> Iterator[np.ndarray]:
    for path in files_of(location):
        with path.open("rb") as file:
            yield np.frombuffer(mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ), np.uint8)


def features(store: CorpusStore) -> Iterator[np.ndarray]:
    """The packed features of each fragment, as every reader gets them."""
    (column,) = store.schema.features
    for fragment in store.fragments:
        yield store.rows(fragment.name, column.digest).data


def warm(location: str) -> Row:
    """Bytes a second of one store: its files added up, scanned for the first time (with checks), and scanned again."""
    added_up(maps(location))
    read, seconds = added_up(maps(location))
    store = open_corpus(location)
    first, again = added_up(features(store)), added_up(features(store))
    return {"bytes": first[0], "cache": read / seconds, "scan": again[0] / again[1], "scan_first": first[0] / first[1]}


def disk(location: str) -> Row:
    """Plain reads of files that are not in the page cache."""
    forgotten(location)
    began, read = time.perf_counter(), 0
    for path in files_of(location):
        with path.open("rb", buffering=0) as file:
            while content := file.read(COLUMNS):
                read += len(content)
    return {"rate": read / (time.perf_counter() - began)}


def cold(location: str) -> Row:
    """A scan of files that are not in the page cache."""
    forgotten(location)
    read, seconds = added_up(features(open_corpus(location)))
    return {"rate": read / seconds}


# Memory.


class Memory:
    """The highest RssAnon of this process while it is open, bytes."""

    def __init__(self) -> None:
        self.peak, self._is_done = 0, threading.Event()
        self._thread = threading.Thread(target=self._watch)

    def __enter__(self) -> Memory:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_done.set()
        self._thread.join()

    def _watch(self) -> None:
        with open("/proc/self/status", encoding="ascii") as status:
            while not self._is_done.wait(SEEN):
                status.seek(0)
                line = next(line for line in status if line.startswith("RssAnon"))
                self.peak = max(self.peak, 1024 * int(line.split()[1]))


def remembered(place: Place, job: str, rows: int) -> Row:
    """The peak of a job over so many rows."""
    if job == "backfill":
        filled = location_of(place, "plain", rows)
        return child(job="backfilling", location=filled, bundle=str(bundle_of(place, codec_of(filled))))
    file = place.folder / f"numbered-{rows}.jsonl"
    if not file.exists():
        texts = itertools.cycle(read_texts(texts_file(place)))
        write_texts(file, [f"{text} {number}" for number, text in zip(range(place.rows(rows)), texts, strict=False)])
    location = place.folder / f"numbered-{rows}"
    subprocess.run(["rm", "-rf", str(location)], check=True)
    row = child(job="extracting", location=str(location), file=str(file))
    subprocess.run(["rm", "-rf", str(location)], check=True)
    return row


def backfilling(location: str, bundle: str) -> Row:
    with Memory() as memory:
        done = emptied_and_filled(location, Path(bundle), NAMES[:1], executor=HERE)
    return {**done, "peak": memory.peak}


class Cheap:
    """In place of a backend: random numbers for every token, as many as the trunk is wide."""

    precision, packs, breadth = "float32", False, 1

    def __init__(self, width: int) -> None:
        self._values = np.random.default_rng(0).standard_normal((2**14, 1, width)).astype(np.float32)

    def features(self, paths: Sequence[TaskPath], batch: TokenBatch) -> list[np.ndarray]:
        return [self._values[: int(batch.mask.sum())] for _ in paths]


def extracting(location: str, file: str) -> Row:
    from polyhead.store.taps import Tap

    encoder = trunk()
    began = time.perf_counter()
    with Memory() as memory:
        tap, wish = Tap(codec="sign"), ExtractRequest(columns=COLUMN, processes=0)
        cheap: Any = Cheap(encoder.architecture.width)  # no more than an extraction asks of a backend
        done = extract(location, file, [tap], wish, trunk=encoder, backend=cheap)
    fragments = len(open_corpus(location).fragments)
    return {
        "documents": done.total,
        "fragments": fragments,
        "seconds": time.perf_counter() - began,
        "peak": memory.peak,
    }


CHILDREN: dict[str, Callable[..., Row]] = {
    run.__name__: run for run in (opening, warm, disk, cold, backfilling, extracting)
}


# Claims.


def chosen(every: Sequence[Row], **wanted: object) -> list[Row]:
    return [row for row in every if all(row.get(name) == value for name, value in wanted.items())]


def claims(rows: list[Row]) -> list[Claim | None]:
    return [
        faster(rows),
        five(rows),
        scan(rows),
        *map(partial(memory_claim, rows), ("backfill", "extract")),
        *(opened_claim(rows, kind) for kind in KINDS),
        priced(rows),
    ]


def rate(filling: Row) -> float:
    """Documents a second of a backfill, without starting up."""
    return filling["documents"] / filling["seconds"]


def spread(values: Sequence[float], form: str = ".1f") -> str:
    return f"median of {len(values)}, {format(min(values), form)} to {format(max(values), form)}"


def faster(rows: list[Row]) -> Claim | None:
    """One task from one bit, over encoding again."""
    real = chosen(rows, what="real")
    if not real:
        return None
    ratios = [rate(row["backfill_1"]) / row["encoding"] for row in real]
    beside = statistics.median(rate(row["backfill_1"]) / row["encoding_int8"] for row in real)
    calls = statistics.median(row["backfill_1"]["call_seconds"] for row in real)
    seconds = statistics.median(row["backfill_1"]["seconds"] for row in real)
    documents, value = real[0]["backfill_1"]["documents"], statistics.median(ratios)
    return Claim(
        id="store.backfill-speed",
        text=f"documents a second of a backfill of one pooled attention task from 1 bit ({ONE_BIT}), over encoding the "
        f"same documents again in openvino {real[0]['precision']}, {documents:,} real documents",
        target=FASTER,
        value=round(value, 1),
        unit="ratio",
        holds=value >= FASTER,
        note=f"{spread(ratios)}; {beside:.1f} over int8; {documents / seconds:,.0f} and "
        f"{statistics.median(row['encoding'] for row in real):,.0f} documents a second, both without starting up; the "
        f"whole call, which starts processes and tries some documents first, took {calls:.1f} s, of which the filling "
        f"{seconds:.1f} s",
    )


def five(rows: list[Row]) -> Claim | None:
    """Five tasks over one."""
    real = chosen(rows, what="real")
    if not real:
        return None
    ratios = [row["backfill_5"]["seconds"] / row["backfill_1"]["seconds"] for row in real]
    value = statistics.median(ratios)
    return Claim(
        id="store.backfill-five",
        text="time of a backfill of five tasks, over that of one",
        target=FIVE,
        value=round(value, 3),
        unit="ratio",
        holds=value <= FIVE,
        note=spread(ratios, ".2f"),
    )


def scan(rows: list[Row]) -> Claim | None:
    """The scan of files in the page cache, as a part of what the page cache gives; there is no target."""
    scans = chosen(rows, what="scan", kind="plain")
    if not scans:
        return None
    million = chosen(rows, what="million")
    ratios = [row["scan"] / row["cache"] for row in scans]
    first, cold_ratio, cache_rate, disk_rate = (
        statistics.median(values)
        for values in (
            [row["scan_first"] / row["cache"] for row in scans],
            [row["scan_disk"] / row["disk"] for row in scans],
            [row["cache"] for row in scans],
            [row["disk"] for row in scans],
        )
    )
    value, note = statistics.median(ratios), spread(ratios, ".3f")
    note = f"not shown: no target was set; {note}; "
    note += f"the first scan of a process, which checks the files' SHA-256, {first:.3f}; "
    note += f"{cold_ratio:.3f} of the disk's rate; the page cache gives {cache_rate / 1e9:.2f} GB/s, "
    note += f"the disk {disk_rate / 1e9:.2f}"
    if lance := chosen(rows, what="scan", kind="lance"):
        note += f"; Lance, which copies: {statistics.median(row['scan'] / row['cache'] for row in lance):.3f}"
    if million:
        of_bytes = scans[0]["bytes"] / statistics.median(row["seconds"] for row in million)
        note += f"; a backfill of one task reads {of_bytes / 1e6:,.0f} MB/s"
    return Claim(
        id="store.scan",
        text=f"bytes a second of a scan of {MANY:,} documents, over those of adding up the mapped files, both in the "
        "page cache",
        target=0.0,
        value=round(value, 3),
        unit="ratio",
        holds=None,
        note=note,
    )


def memory_claim(rows: list[Row], job: str) -> Claim | None:
    """Memory of a job over many rows, over that over few."""
    peaks = {count: row["peak"] for count in (FEW, MANY) for row in chosen(rows, what="memory", job=job, rows=count)}
    if len(peaks) < 2:
        return None
    value = peaks[MANY] / peaks[FEW]
    return Claim(
        id=f"store.memory-{job}",
        text=f"peak of the memory of a process alone (RssAnon) in {job} of {MANY:,} rows, over that of {FEW:,}",
        target=FLAT,
        value=round(value, 3),
        unit="ratio",
        holds=value <= FLAT,
        note=f"{peaks[FEW] / 2**20:,.0f} and {peaks[MANY] / 2**20:,.0f} MiB",
    )


def opened_claim(rows: list[Row], kind: str) -> Claim | None:
    """The time until a store is open."""
    seconds = [float(row["seconds"]) for row in chosen(rows, what="open", kind=kind)]
    text = f"opening a {kind} store of {MANY:,} documents in a new process"
    return within(f"store.open-seconds-{kind}", text, seconds, target=OPEN)


def priced(rows: list[Row]) -> Claim | None:
    """How far off prices were: the worst kind of job."""
    several = {
        "one task": [row["backfill_1"]["price_error"] for row in chosen(rows, what="real")],
        "five tasks": [row["backfill_5"]["price_error"] for row in chosen(rows, what="real")],
        "a million": [row["price_error"] for row in chosen(rows, what="million")],
    }
    medians = {name: statistics.median(errors) for name, errors in several.items() if errors}
    if not medians:
        return None
    value = max(medians.values())
    each = ", ".join(f"{name} {medians[name]:.2f} ({spread(several[name], '.2f')})" for name in medians)
    return Claim(
        id="store.price",
        text="difference of a backfill's price, said before it, to what it took, as a part of it; the worst of three "
        "kinds of backfills",
        target=PRICE,
        value=round(value, 3),
        unit="ratio",
        holds=value <= PRICE,
        note=each,
    )


def lacking(rows: list[Row]) -> Iterator[str]:
    """Lists the measurements that are still to be made."""
    counts = {"real": REPEATS, "million": 3, "open": OPENED * len(KINDS), "scan": 3 * len(KINDS), "memory": 4}
    for what, count in counts.items():
        if (there := len(chosen(rows, what=what))) < count:
            yield f"{count - there} of {what}"


if __name__ == "__main__":
    answer_help(__doc__)
    main()
