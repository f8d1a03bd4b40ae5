"""What the benchmarks of the store share: real short texts, their features from one pass, a bundle of five tasks.

    python -m benchmarks.store_made            make it all, in runs/store; a run that was stopped goes on

Texts are drawn from every set of single texts but those of long ones, each text once. The features are those of minilm,
the mean of its last four layers, every token: at one bit a dimension and in float16, from one pass. Tasks are pooled
attention with a hidden layer, their numbers drawn: speed does not depend on what they learned.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from polyhead.bundle.create import write_bundle
from polyhead.bundle.manifest import TaskRecord
from polyhead.bundle.read import Bundle
from polyhead.codecs import HALF, ONE_BIT
from polyhead.encoder.data import TrunkData
from polyhead.engine.backends import open_backend
from polyhead.engine.backends.base import Backend
from polyhead.plan import Codec
from polyhead.project.pretrained import load_trunk
from polyhead.project.strategies import Pooled
from polyhead.store.corpus import create_corpus, open_corpus
from polyhead.store.corpus.base import CorpusStore, FeatureColumn, PackedRows, Schema
from polyhead.store.jobs.extract import ExtractRequest, extract
from polyhead.store.taps import Tap
from polyhead.tasks.task import Task
from polyhead.testing import tiny_part
from studies.results import Claim, Study
from studies.settings import DATA, RUNS, command, report, say

TEXTS, MAX_TOKENS = 200_000, 128
LONG = ("imdb", "dbpedia14")  # sets whose texts are not short
BACKEND = "openvino"
COLUMN = {"text": "text"}
FRAGMENT_ROWS = 100_000  # about what an extraction at one bit appends at once
DRAWN = 0.17  # times what `tiny_part` draws: the spread of arrays as training begins, at this width
KINDS = ("plain", "lance")
Row = dict[str, Any]
TASKS = (
    Task(name="emotion", kind="single_label", labels=("anger", "joy", "optimism", "sadness")),
    Task(name="sentiment", kind="single_label", labels=("negative", "neutral", "positive")),
    Task(name="topics", kind="multi_label", labels=tuple(f"topic-{i}" for i in range(8))),
    Task(name="rating", kind="regression", range=(0.0, 4.0)),
    Task(name="intent", kind="single_label", labels=tuple(f"intent-{i}" for i in range(77))),
)


class Place:
    """Where a run keeps what it makes, and how many rows it takes: all of them, or the part of a trial."""

    def __init__(self, scale: float) -> None:
        self.scale, self.folder = scale, RUNS / ("store" if scale == 1 else "store-trial")
        self.folder.mkdir(parents=True, exist_ok=True)

    def rows(self, count: int) -> int:
        """So many rows, or the trial's part of them."""
        return max(200, round(count * self.scale))

    def study(self, name: str) -> Study:
        """The rows of a benchmark."""
        return Study(self.folder / f"{name}.jsonl")

    def show(self, line: str) -> None:
        """Prints what takes long."""
        if line:
            say(f"  {line}")

    def report(self, name: str, rows: list[Row], claims: Sequence[Claim | None], lacking: Sequence[str] = ()) -> None:
        """Writes the results file; of a trial it only prints what would stand there."""
        there = [claim for claim in claims if claim is not None]
        if self.scale == 1:
            report(name, command=command(), rows=rows, claims=there, lacking=lacking)
            return
        for claim in there:
            say(f"(trial) {claim.id}: {claim.value:.4g} {claim.unit}, target {claim.target:g}. {claim.note}")


def options_of(description: str | None) -> tuple[argparse.Namespace, Place]:
    """The arguments of these benchmarks."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows-scale", type=float, default=1.0, help="below 1: a trial, which writes no results")
    parser.add_argument("--report", action="store_true", help="write the results from the rows, measure nothing")
    options = parser.parse_args()
    return options, Place(options.rows_scale)


@cache
def trunk() -> TrunkData:
    return load_trunk("minilm", max_tokens=MAX_TOKENS)


@cache
def backend(precision: str | None = None) -> Backend:
    """OpenVINO with the trunk alone; None is bfloat16 where the processor has it, else float32."""
    return open_backend(BACKEND, trunk(), {}, precision=precision)


def texts_file(place: Place) -> Path:
    """The texts, one JSON object a line."""
    file = place.folder / "texts.jsonl"
    if not file.exists():
        distinct = sorted(dict.fromkeys(real_texts()))
        np.random.default_rng(0).shuffle(distinct)
        wanted = place.rows(TEXTS)
        if len(distinct) < wanted:
            raise SystemExit(f"{DATA} holds {len(distinct)} distinct texts, {wanted} are needed")
        write_texts(file, distinct[:wanted])
    return file


def write_texts(file: Path, texts: Sequence[str]) -> None:
    """Writes texts as rows of one column."""
    temporary = file.with_suffix(".tmp")
    temporary.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts), encoding="utf-8")
    temporary.replace(file)


def read_texts(file: Path) -> list[str]:
    with file.open(encoding="utf-8") as lines:
        return [json.loads(line)["text"] for line in lines]


def real_texts() -> Iterator[str]:
    """Texts of every set of single short texts."""
    for folder in sorted(path for path in DATA.iterdir() if path.is_dir() and path.name not in LONG):
        if json.loads((folder / "meta.json").read_text(encoding="utf-8"))["kind"] != "single_text":
            continue
        for file in sorted(folder.glob("*.jsonl.gz")):
            with gzip.open(file, "rt", encoding="utf-8") as lines:
                for line in lines:
                    if text := json.loads(line)["text"].strip():
                        yield text


def made(place: Place) -> CorpusStore:
    """The store of all texts with both features, filled in one pass."""
    location, study = place.folder / "made", place.study("store_made")

    def fill() -> Row:
        taps = [Tap(codec=ONE_BIT), Tap(codec=HALF)]
        wish = ExtractRequest(columns=COLUMN)
        done = extract(
            location, texts_file(place), taps, wish, trunk=trunk(), backend=backend(), show=sparse(place.show)
        )
        return {
            "documents": done.total,
            "cut": done.cut,
            "added": done.documents,
            "tokens": done.tokens,
            "seconds": done.seconds,
            "precision": done.precision,
        }

    study.row(fill, what="extraction")
    return open_corpus(location)


def sparse(show: Callable[[str], None], every: int = 100) -> Callable[[str], None]:
    """Shows every so many-th line."""
    shown = iter(range(10**9))

    def some(line: str) -> None:
        if next(shown) % every == 0:
            show(line)

    return some


def column_with(store: CorpusStore, codec: str) -> FeatureColumn:
    """The features that a store keeps by a codec."""
    (column,) = (column for column in store.schema.features if column.codec.name == codec)
    return column


def single(place: Place, kind: str, codec: str) -> str:
    """The location of a store of one kind that has the features of one codec alone, copied from `made`."""
    location = str(place.folder / (f"{codec}.lance" if kind == "lance" else codec))
    study = place.study("store_made")

    def copy() -> Row:
        source = made(place)
        digest = column_with(source, codec).digest
        schema = Schema(features=(source.schema.column(digest),), source=source.schema.source)
        store, waiting = create_corpus(location, schema), list[tuple[np.ndarray, PackedRows]]()
        for fragment in source.fragments:
            waiting.append((source.ids(fragment.name), source.rows(fragment.name, digest)))
            if sum(len(ids) for ids, _ in waiting) >= FRAGMENT_ROWS or fragment == source.fragments[-1]:
                data = np.concatenate([rows.data for _, rows in waiting])
                lengths = np.concatenate([rows.lengths for _, rows in waiting])
                store.append(np.concatenate([ids for ids, _ in waiting]), {digest: PackedRows.of(lengths, data)})
                waiting = []
        return {"documents": sum(fragment.rows for fragment in store.fragments)}

    if not Path(location).exists():
        shutil.rmtree(location, ignore_errors=True)
        copy()
    study.row(copy, what="copy", kind=kind, codec=codec)
    return location


def bundle_of(place: Place, codec: Codec, name: str = "bundle") -> Path:
    """A bundle of the five tasks over what a store with this codec keeps."""
    root = place.folder / name
    if root.exists() and all(record.path.pool.codec == codec for record in Bundle.open(root).tasks.values()):
        return root
    shutil.rmtree(root, ignore_errors=True)
    bundle, shape = write_bundle(root, trunk()), trunk().architecture
    for number, task in enumerate(TASKS):
        path = Pooled(positions="attention").path(task, trunk=trunk().digest, shape=shape, codec=codec)
        drawn = tiny_part(path, shape, path.head.part, seed=number)
        arrays = {key: np.asarray(array * DRAWN, np.float32) for key, array in drawn.items()}
        record = TaskRecord(task=task, path=path, trunk=trunk().digest, trained_with={})
        bundle.add_task(record, arrays, scores={}, probes=[], card="")
    return root


def disk_bytes(folder: Path | str) -> Mapping[str, int]:
    """Bytes of all files of a store, by what they hold."""
    sizes = dict.fromkeys(("features", "lengths", "ids", "index", "other"), 0)
    ends = {"data.bin": "features", "lengths.bin": "lengths", "ids.bin": "ids", "index.bin": "index", "lance": "rows"}
    for path, _, names in os.walk(folder):
        for name in names:
            what = next((what for end, what in ends.items() if name.endswith(end)), "other")
            what = "features" if what == "rows" else what  # of a dataset ids and features lie in one file
            sizes[what] += (Path(path) / name).stat().st_size
    return sizes


def main() -> None:
    _, place = options_of(__doc__)
    store = made(place)
    for row in place.study("store_made").rows:
        say(str(row))
    for kind in KINDS:
        say(single(place, kind, ONE_BIT))
    say(str(bundle_of(place, column_with(store, ONE_BIT).codec)))


if __name__ == "__main__":
    main()
