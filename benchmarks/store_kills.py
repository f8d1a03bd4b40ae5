"""Kills at random moments: nothing that was committed is lost, nothing is there twice, the same command goes on.

    python -m benchmarks.store_kills                     20 kills of each job in each kind of store; writes results
    python -m benchmarks.store_kills --rows-scale 0.1    a trial, which writes no results

An extraction, appends, a compaction and a backfill over a tiny encoder are each ended by SIGKILL, again and again, on
top of what the kill before left, and at last run to their end. After every kill the whole store is read: documents,
features, and answers are compared with those of a store that nobody interrupted. An extraction appends every few texts,
so that kills meet appends too. Then two writers and a backfill work at once beside a reader.
"""

from __future__ import annotations

import multiprocessing
import os
import shutil
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from unittest import mock

import numpy as np

from benchmarks.store_made import KINDS, Place, Row, options_of, write_texts
from polyhead.bundle.read import Bundle
from polyhead.engine.backends.reference import ReferenceBackend
from polyhead.errors import StoreError
from polyhead.store.corpus import create_corpus, open_corpus
from polyhead.store.corpus.base import CorpusStore, PackedRows, Schema
from polyhead.store.jobs import extract as extraction
from polyhead.store.jobs.backfill import BackfillRequest, backfill
from polyhead.store.jobs.executors import HERE
from polyhead.store.jobs.executors.processes import THREADS
from polyhead.store.taps import column_of
from studies.results import Claim
from studies.settings import ROOT, answer_help, say

sys.path.insert(0, str(ROOT / "tests"))  # what tests of backfills make stores with

NAME, KILLS = "store_kills", 20
DOCUMENTS, EACH = 2000, 25  # and documents of an append
PRELOADED = ["benchmarks.store_made", "polyhead.store.jobs.backfill", "polyhead.store.corpus.lance"]
PARTS = 6  # a job of its whole duration would be met by so many kills
JOBS = ("extract", "append", "compact", "backfill")
WISH = BackfillRequest(tasks=("mood",), executor=HERE)


class Made:
    """Makes a bundle, texts, and the store and answers of jobs that were not interrupted."""

    def __init__(self, folder: Path) -> None:
        from support import backfills

        self.folder, self.trunk = folder, backfills.TRUNK
        self.bundle, self.file, self.whole = folder / "bundle", folder / "texts.jsonl", str(folder / "whole")
        if not (folder / "done").exists():
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True)
            backfills.make_bundle(self.bundle, ["mood"])
            inputs, path = backfills.texts(range(DOCUMENTS)), Bundle.open(self.bundle).tasks["mood"].path
            write_texts(self.file, [text for (text,) in inputs])
            taken = path.stored()
            source = extraction.feature_origin(self.trunk, precision="float32", long_texts="cut")
            columns = (column_of(taken, self.trunk.architecture.width),)
            store = create_corpus(self.whole, Schema(features=columns, source=source))
            backfills.append(store, path, inputs)
            backfill(self.whole, self.bundle, WISH)
            (folder / "done").touch()
        store = open_corpus(self.whole)
        (self.fragment,) = store.fragments
        (self.kept,) = store.schema.features
        self.schema, self.column = store.schema, self.fragment.results[0]
        self.ids, self.rows = store.ids(self.fragment.name), store.rows(self.fragment.name, self.kept.digest)
        self.places = {bytes(each): place for place, each in enumerate(self.ids)}
        self.answers = store.results(self.fragment.name, self.column) or {}

    def batches(self) -> list[np.ndarray]:
        """Places of documents of each append."""
        return [np.arange(start, min(start + EACH, DOCUMENTS)) for start in range(0, DOCUMENTS, EACH)]

    def append(self, store: CorpusStore, places: np.ndarray) -> None:
        store.append(self.ids[places], {self.kept.digest: self.rows.take(places)})

    def location(self, kind: str, name: str) -> str:
        return str(self.folder / (f"{name}.lance" if kind == "lance" else name))

    def begun(self, kind: str, job: str) -> str:
        """A store that the job finds when it begins: empty, or of many fragments, with answers if it joins them."""
        location = self.location(kind, job)
        shutil.rmtree(location, ignore_errors=True)
        if job in ("extract", "append"):
            create_corpus(location, self.schema)
            return location
        prepared = self.location(kind, f"before-{job}")
        if not Path(prepared).exists():
            store = create_corpus(f"{prepared}.tmp" if kind == "plain" else prepared, self.schema)
            for places in self.batches():
                self.append(store, places)
            if job == "compact":
                backfill(f"{prepared}.tmp" if kind == "plain" else prepared, self.bundle, WISH)
            if kind == "plain":
                Path(f"{prepared}.tmp").rename(prepared)
        shutil.copytree(prepared, location)
        return location


# Jobs that are killed. Each sends through the pipe that it begins, what it has committed, and that it is done.


def run(job: str, location: str, folder: str, pipe: Connection) -> None:
    made = Made(Path(folder))
    tell_commits(type(open_corpus(location)), pipe)
    pipe.send("begins")
    STEPS[job](made, location)
    pipe.send("done")


def tell_commits(kind: type[CorpusStore], pipe: Connection) -> None:
    """Stores of this kind say after each append and each fragment's columns which documents are kept and answered."""
    append, put_columns = kind.append, kind.put_columns

    def told_append(store: CorpusStore, ids: np.ndarray, features: Mapping[str, PackedRows]) -> int:
        count = append(store, ids, features)
        pipe.send(("documents", [bytes(each) for each in ids]))
        return count

    def told_columns(store: CorpusStore, fragment: str, columns: Mapping[str, Mapping[str, np.ndarray]]) -> None:
        put_columns(store, fragment, columns)
        pipe.send(("answers", [bytes(each) for each in store.ids(fragment)]))

    mock.patch.multiple(kind, append=told_append, put_columns=told_columns).start()


def extracted(made: Made, location: str) -> None:
    path, wish = made.kept.path, extraction.ExtractRequest(columns={"text": "text"}, processes=0)
    assert path is not None
    backend = ReferenceBackend(made.trunk, {})
    with mock.patch.multiple(extraction, PIECE_ROWS=EACH, APPEND_SECONDS=0.0):
        extraction.extract(location, made.file, [path], wish, trunk=made.trunk, backend=backend)


def appended(made: Made, location: str) -> None:
    store = open_corpus(location)
    for places in made.batches():
        if len(store.lacking(made.ids[places])):
            made.append(store, places)


def appended_backwards(made: Made, location: str) -> None:
    store = open_corpus(location)
    for places in reversed(made.batches()):
        made.append(store, places)


def compacted(made: Made, location: str) -> None:
    open_corpus(location).compact(rows=10 * EACH)


def answered(made: Made, location: str) -> None:
    backfill(location, made.bundle, WISH)


def kept_answered(made: Made, location: str) -> None:
    """Backfills until every document is there and has its answer."""
    while backfill(location, made.bundle, WISH).documents < DOCUMENTS:
        pass


STEPS: dict[str, Callable[[Made, str], None]] = {
    "extract": extracted,
    "append": appended,
    "append backwards": appended_backwards,
    "compact": compacted,
    "backfill": answered,
    "keep backfilling": kept_answered,
}


class Running:
    """A job in a process of its own, which begins when this is made."""

    def __init__(self, job: str, location: str, made: Made) -> None:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(PRELOADED)
        self.committed: dict[str, set[bytes]] = {"documents": set(), "answers": set()}
        self._pipe, theirs = context.Pipe()
        self.process = context.Process(target=run, args=(job, location, str(made.folder), theirs))
        self.process.start()
        theirs.close()
        self._hear(None)

    def killed(self, after: float) -> bool:
        """Kills it after so many seconds, and whether it had not ended."""
        is_done = self._hear(time.perf_counter() + after)
        if not is_done:
            self.process.kill()
            self._hear(None, is_killed=True)
        self.process.join()
        return not is_done

    def ended(self) -> float:
        """Seconds until it is done."""
        began = time.perf_counter()
        self._hear(None)
        self.process.join()
        return time.perf_counter() - began

    def _hear(self, until: float | None, *, is_killed: bool = False) -> bool:
        """Takes what it says until it begins or is done, or until a moment; whether it said so."""
        try:
            while self._pipe.poll(None if until is None else max(0.0, until - time.perf_counter())):
                said = self._pipe.recv()
                if isinstance(said, str):
                    return True
                what, ids = said
                self.committed[what] |= set(ids)
        except (EOFError, OSError):
            if not is_killed:
                self.process.join()
                raise SystemExit(f"a job ended by itself, exit code {self.process.exitcode}") from None
        return False


# Checks after the kills.


class Seen:
    """Documents and answers of a store, all of it read; what is wrong with them is counted."""

    def __init__(self, made: Made, location: str) -> None:
        store, self.wrong, self.twice = open_corpus(location), 0, 0
        self.documents, self.answered = set[bytes](), set[bytes]()
        try:
            store.verify()
        except StoreError as error:
            say(f"damaged: {error}")
            self.wrong += 1
        for fragment in store.fragments:
            ids = [bytes(each) for each in store.ids(fragment.name)]
            places = np.array([made.places.get(each, -1) for each in ids])
            self.twice += len(ids) - len(set(ids)) + len(self.documents & set(ids))
            self.wrong += int((places < 0).sum())
            self.documents |= set(ids)
            there, expected = store.rows(fragment.name, made.kept.digest), made.rows.take(places)
            self.wrong += int((there.lengths != expected.lengths).sum())
            if there.data.shape != expected.data.shape or (there.data != expected.data).any():
                self.wrong += 1
            answers = store.results(fragment.name, made.column)
            if answers is not None:
                self.answered |= set(ids)
                self.wrong += int((answers["label"] != made.answers["label"][places]).sum())


def killed(place: Place, made: Made, kind: str, job: str) -> Row:
    """So many kills of one job, each on top of what the one before left; then it is run to its end."""
    rng = np.random.default_rng([KINDS.index(kind), JOBS.index(job)])
    whole, counts = Running(job, made.begun(kind, job), made).ended(), {"lost": 0, "twice": 0, "wrong": 0}
    wanted, moments, ends = max(2, round(KILLS * place.scale)), list[float](), 0
    location = made.begun(kind, job)
    before = Seen(made, location)
    while len(moments) < wanted:
        moment = float(rng.uniform(0, whole / PARTS))
        running = Running(job, location, made)
        was_killed = running.killed(moment)
        before.documents |= running.committed["documents"]
        before.answered |= running.committed["answers"]
        before = looked(made, location, before, counts)
        if was_killed:
            moments.append(round(moment, 4))
        else:
            ends += 1
            counts["wrong"] += not finished(job, location, before)
            location = made.begun(kind, job)
            before = Seen(made, location)
    Running(job, location, made).ended()
    is_whole = finished(job, location, looked(made, location, before, counts))
    return {**counts, "resumed": is_whole, "kills": len(moments), "ended": ends, "seconds": whole, "moments": moments}


def looked(made: Made, location: str, before: Seen, counts: dict[str, int]) -> Seen:
    """What is there now; counts what was there before and is not."""
    now = Seen(made, location)
    counts["lost"] += len(before.documents - now.documents) + len(before.answered - now.answered)
    counts["twice"] += now.twice
    counts["wrong"] += now.wrong
    return now


def finished(job: str, location: str, seen: Seen) -> bool:
    """Whether the job has nothing left to do."""
    is_joined = job != "compact" or len(open_corpus(location).fragments) == DOCUMENTS // (10 * EACH)
    return len(seen.documents) == DOCUMENTS and is_joined and (job != "backfill" or len(seen.answered) == DOCUMENTS)


def together(made: Made, kind: str) -> Row:
    """Two writers of the same documents and a backfill at once, and a reader meanwhile."""
    location, began = made.begun(kind, "append"), time.perf_counter()
    several = [Running(job, location, made) for job in ("append", "append backwards", "keep backfilling")]
    counts, reads, before = {"lost": 0, "twice": 0, "wrong": 0}, 0, Seen(made, location)
    while any(each.process.is_alive() for each in several):
        before, reads = looked(made, location, before, counts), reads + 1
    for each in several:
        each.ended()
    last = looked(made, location, before, counts)
    missing = 2 * DOCUMENTS - len(last.documents) - len(last.answered)
    return {**counts, "missing": missing, "reads": reads, "seconds": time.perf_counter() - began}


def claims(rows: Sequence[Row]) -> list[Claim | None]:
    listed: list[Claim | None] = []
    kills = [row for row in rows if row.get("what") == "kills"]
    if kills:
        bad = sum(row["lost"] + row["twice"] + row["wrong"] for row in kills)
        each = ", ".join(f"{row['kind']} {row['job']} {row['kills']}" for row in kills)
        listed.append(
            Claim(
                id="store.kills",
                text=f"documents and answers lost, there twice or wrong after {sum(row['kills'] for row in kills)} "
                "kills at random moments",
                target=0,
                value=bad,
                unit="documents",
                holds=bad == 0 and all(row["kills"] >= KILLS for row in kills),
                note=f"kills: {each}",
            )
        )
        stuck = sum(not row["resumed"] for row in kills)
        text = "jobs that did not go on to their end by themselves after their kills"
        note = f"of {len(kills)}: {', '.join(JOBS)} in {' and '.join(KINDS)} stores"
        listed.append(
            Claim(id="store.kills-resumed", text=text, target=0, value=stuck, unit="jobs", holds=stuck == 0, note=note)
        )
    if both := [row for row in rows if row.get("what") == "together"]:
        bad = sum(row["lost"] + row["twice"] + row["wrong"] + row["missing"] for row in both)
        listed.append(
            Claim(
                id="store.together",
                text=f"documents and answers of {DOCUMENTS:,} missing, there twice, or read torn, with two writers and "
                "a backfill at once",
                target=0,
                value=bad,
                unit="documents",
                holds=bad == 0,
                note=f"{sum(row['reads'] for row in both)} reads of a whole store meanwhile",
            )
        )
    return listed


def main() -> None:
    options, place = options_of(__doc__)
    study = place.study(NAME)
    os.environ.update(dict.fromkeys(THREADS, "1"))  # of the processes that are killed
    if not options.report:
        made = Made(place.folder / "kills")
        for kind in KINDS:
            for job in JOBS:
                row = study.row(partial(killed, place, made, kind, job), what="kills", kind=kind, job=job)
                say(str({name: value for name, value in row.items() if name != "moments"}))
            say(str(study.row(partial(together, made, kind), what="together", kind=kind)))
    wanted = [("kills", kind, job) for kind in KINDS for job in JOBS] + [("together", kind, None) for kind in KINDS]
    there = {(row["what"], row["kind"], row.get("job")) for row in study.rows}
    place.report(NAME, study.rows, claims(study.rows), [str(each) for each in wanted if each not in there])


if __name__ == "__main__":
    answer_help(__doc__)
    main()
