"""Every reader of files and requests of others, by name: from a folder and a number of parts to the work of reading.

A part is what a file may hold many of: rows, labels, spans, tasks, columns, arrays, special tokens, levels.
"""

from __future__ import annotations

import asyncio
import contextlib
import csv
import gzip
import io
import json
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import msgspec
import numpy as np
from safetensors.numpy import save, save_file

from polyhead.api import hub
from polyhead.bundle import write
from polyhead.bundle.create import write_bundle
from polyhead.bundle.files import read_arrays
from polyhead.bundle.journal import read_attempts
from polyhead.bundle.manifest import TaskRecord, decoded, read_bundle_file
from polyhead.bundle.owners import connected, new_names
from polyhead.bundle.read import Bundle
from polyhead.bundle.row_profile import stored_profile
from polyhead.bundle.task_archive import upload_bytes
from polyhead.certify.certificate import Certificate, Ledger, read_certificate
from polyhead.cli.main import main
from polyhead.data.columns import Columns, Source
from polyhead.data.guess_columns import layout_of, table_of
from polyhead.data.read import read
from polyhead.encoder.configs import architecture_of
from polyhead.engine.probes import ProbeAnswers, readable_probes
from polyhead.engine.session import Session
from polyhead.errors import DataError, suggestion
from polyhead.nesting import is_deep
from polyhead.plan import Codec, Pool
from polyhead.project.file_text import with_task
from polyhead.project.tables import read_project
from polyhead.serve.app import application
from polyhead.serve.exposition import joined_counts
from polyhead.serve.http import without_files
from polyhead.serve.keys import keys_in
from polyhead.serve.service import Service
from polyhead.serve.settings import ServeSettings, check_served_labels, read_labels
from polyhead.serve.uploads import Receiver, staged
from polyhead.store.corpus.base import FeatureColumn, PackedRows, ResultFacts, Schema
from polyhead.store.corpus.ids import document_id
from polyhead.store.corpus.plain import PlainStore
from polyhead.tasks.kinds.base import listed
from polyhead.tasks.task import Task
from polyhead.testing import tiny_part, tiny_path, tiny_tokenizer, tiny_trunk
from polyhead.text import trial
from polyhead.text.words import words_in
from polyhead.values import to_json

Work = Callable[[], object]
Prepare = Callable[[Path, int], Work]
TRUNK = tiny_trunk()
DIGEST = "0" * 64
WORDS = ["the", "lamp", "is", "good", "and", "anna", "was", "sad", "today"]
READERS: dict[str, tuple[int, Prepare]] = {}
"""By name the smallest number of parts, and what prepares the reading."""


def reader(name: str, n: int) -> Callable[[Prepare], Prepare]:
    """Adds a reader under this name, with its smallest number of parts."""

    def added(prepare: Prepare) -> Prepare:
        assert name not in READERS, name
        READERS[name] = n, prepare
        return prepare

    return added


def words(number: int) -> str:
    """A text of its own for each number."""
    return f"{' '.join(WORDS[number % 3 : number % 3 + 5])} {number}"


# Bundles


def draft(name: str, *, probes: int = 2, labels: tuple[str, ...] = ("bad", "good"), **more: Any) -> write.Draft:
    task = Task(name=name, kind="single_label", labels=labels)
    path = tiny_path(task, TRUNK, pool=Pool(positions="mean"))
    record = TaskRecord(task=task, path=path, trunk=TRUNK.digest, trained_with=more.pop("trained_with", {}))
    arrays = tiny_part(path, TRUNK.architecture, path.head.part)
    lines = [{"text": [words(number)]} for number in range(probes)]
    notes: dict[str, Any] = {"scores": {"splits": {}}, "probes": lines, "card": f"# {name}\n", **more}
    return write.Draft(record=record, arrays=arrays, **notes)


def bundle(folder: Path, *drafts: write.Draft) -> Path:
    root = folder / "b"
    write_bundle(root, TRUNK)
    if drafts:
        write.add_tasks(root, list(drafts))
    return root


def edited(path: Path, change: Callable[[Any], object]) -> Path:
    content = json.loads(path.read_bytes())
    change(content)
    path.write_text(json.dumps(content))
    return path


def record_of(folder: Path, change: Callable[[Any], object], **more: Any) -> Work:
    """Reads a task.json that was changed."""
    root = bundle(folder, draft("mood", **more))
    path = edited(root / "tasks" / "mood" / "v0001" / "task.json", change)
    return lambda: decoded(path.read_bytes(), TaskRecord, path)


@reader("bundle.json: tasks", 2000)
def _(folder: Path, n: int) -> Work:
    root = bundle(folder)
    lines = {f"t{number}": {"version": "v0001", "record": DIGEST} for number in range(n)}
    edited(root / "bundle.json", lambda content: content.update(tasks=lines))
    return lambda: read_bundle_file(root)


@reader("bundle.json: families", 2000)
def _(folder: Path, n: int) -> Work:
    root = bundle(folder)
    lines = {f"family:f{number}": {"version": "v0001", "record": DIGEST} for number in range(n)}
    edited(root / "bundle.json", lambda content: content.update(families=lines))
    return lambda: read_bundle_file(root)


@reader("bundle.json: removed tasks", 2000)
def _(folder: Path, n: int) -> Work:
    root = bundle(folder)
    edited(root / "bundle.json", lambda content: content.update(removed=[f"t{number}" for number in range(n)]))
    return lambda: read_bundle_file(root)


@reader("a bundle's tasks, verified", 12)
def _(folder: Path, n: int) -> Work:
    root = bundle(folder, *(draft(f"t{number}") for number in range(n)))
    return lambda: Bundle.open(root).verify()


@reader("a bundle's tasks that read each other's prompts", 2000)
def _(folder: Path, n: int) -> Work:
    edges = [(f"task:t{number}", f"task:t{number + 1}") for number in range(0, n, 2)]
    edges += [(f"task:t{number}", f"task:t{number + 1}") for number in range(1, n, 2)]
    return lambda: connected(edges)


@reader("names of families that come to a bundle", 2000)
def _(folder: Path, n: int) -> Work:
    there = {f"family:f{number}": f"{number}" for number in range(n)}
    coming = {f"family:f{number}": f"other {number}" for number in range(n)}
    return lambda: new_names(coming, there)


@reader("task.json: labels", 2400)
def _(folder: Path, n: int) -> Work:
    return record_of(folder, lambda own: own["task"].update(labels=[f"label {number}" for number in range(n)]))


@reader("task.json: labels of words", 1200)
def _(folder: Path, n: int) -> Work:
    labels = ["O", *(f"{mark}-{number}" for number in range(n) for mark in "BI")]
    return record_of(folder, lambda own: own["task"].update(kind="tagging", labels=labels))


@reader("task.json: more labels than are allowed", 25_000)
def _(folder: Path, n: int) -> Work:
    return record_of(folder, lambda own: own["task"].update(labels=["same"] * n))


@reader("task.json: a label's length", 250_000)
def _(folder: Path, n: int) -> Work:
    return record_of(folder, lambda own: own["task"].update(labels=["a", "b" * n]))


@reader("task.json: nodes", 1000)
def _(folder: Path, n: int) -> Work:
    def change(own: Any) -> None:
        nodes = own["path"]["nodes"]
        layers = [{**nodes[1], "start": number, "stop": number + 1} for number in range(n)]
        own["path"]["nodes"] = [nodes[0], *layers, *nodes[2:]]

    return record_of(folder, change)


@reader("task.json: prompts", 2000)
def _(folder: Path, n: int) -> Work:
    prompts = [{"part": f"task:t{number}", "rows": 1} for number in range(n)]
    return record_of(folder, lambda own: own["path"]["nodes"][0].update(prompts=prompts))


@reader("task.json: needs", 2000)
def _(folder: Path, n: int) -> Work:
    return record_of(folder, lambda own: own.update(needs={f"family:f{number}": DIGEST for number in range(n)}))


@reader("task.json: thresholds", 5000)
def _(folder: Path, n: int) -> Work:
    return record_of(folder, lambda own: own.update(calibration={"thresholds": [0.5] * n}))


@reader("task.json: sets of a calibration", 5000)
def _(folder: Path, n: int) -> Work:
    sets = [{"coverage": 0.5, "limit": 0.1} for _ in range(n)]
    return record_of(folder, lambda own: own.update(calibration={"sets": sets, "coverage": 0.5}))


@reader("task.json: notes of the training", 20_000)
def _(folder: Path, n: int) -> Work:
    notes = {f"k{number}": number for number in range(n)}
    return record_of(folder, lambda own: own.update(trained_with=notes))


@reader("task.json: keys that it does not have", 2000)
def _(folder: Path, n: int) -> Work:
    return record_of(folder, lambda own: own.update({f"k{number}": number for number in range(n)}))


@reader("task.json: levels", 25_000)
def _(folder: Path, n: int) -> Work:
    root = bundle(folder, draft("mood"))
    path = root / "tasks" / "mood" / "v0001" / "task.json"
    path.write_bytes(path.read_bytes().rstrip()[:-1] + b', "x": ' + b"[" * n + b"]" * n + b"}")
    return lambda: decoded(path.read_bytes(), TaskRecord, path)


@reader("scores.json: splits", 5000)
def _(folder: Path, n: int) -> Work:
    scores = {"splits": {f"s{number}": {"accuracy": 0.5} for number in range(n)}}
    opened = Bundle.open(bundle(folder, draft("mood", scores=scores)))
    return lambda: (opened.scores("mood"), opened.headline("mood"))


@reader("probes.jsonl: probes", 1000)
def _(folder: Path, n: int) -> Work:
    opened = Bundle.open(bundle(folder, draft("mood", probes=n)))
    return lambda: readable_probes(opened, "mood")


@reader("README.md: lines", 5000)
def _(folder: Path, n: int) -> Work:
    opened = Bundle.open(bundle(folder, draft("mood", card="# mood\n\n" * n)))
    return lambda: opened.card("mood")


@reader("seen.safetensors: rows", 100)
def _(folder: Path, n: int) -> Work:
    arrays = {"vectors": np.ones((n, 16), np.float16), "scores": np.ones((n, 2), np.float16)}
    content = save({**arrays, "lengths": np.ones(n, np.float32)})
    opened = Bundle.open(bundle(folder, draft("mood", seen=content)))
    return lambda: stored_profile(opened, "mood")


@reader("safetensors: arrays", 2000)
def _(folder: Path, n: int) -> Work:
    save_file({f"a{number}": np.ones(1, np.float32) for number in range(n)}, folder / "x.safetensors")
    return lambda: read_arrays(folder, "x.safetensors")


@reader("certificates: their number", 15)
def _(folder: Path, n: int) -> Work:
    ledger = Ledger(folder)
    (folder / "certificates").mkdir()
    for _ in range(n):
        ledger.write(certificate(3))
    return lambda: (list(Ledger(folder).sound()), list(Ledger(folder).problems()))


def certificate(tasks: int) -> Certificate:
    answered = {f"t{n}": ProbeAnswers(version="v0001", record=DIGEST, probes=2, sha256=DIGEST) for n in range(tasks)}
    return Certificate(
        operation="verify", changed={}, numerics={}, before=answered, after=answered, unchanged=True, bundle=DIGEST
    )


@reader("certificates: tasks of one", 500)
def _(folder: Path, n: int) -> Work:
    (folder / "certificates").mkdir()
    written = Ledger(folder).write(certificate(n))
    path = folder / "certificates" / written.name
    return lambda: read_certificate(path.read_bytes(), path).paragraph


@reader("certificates: versions to look up", 20)
def _(folder: Path, n: int) -> Work:
    ledger = Ledger(folder)
    (folder / "certificates").mkdir()
    for number in range(n):
        record = ProbeAnswers(version=f"v{number + 1:04d}", record=DIGEST, probes=2, sha256=DIGEST)
        ledger.write(msgspec.structs.replace(certificate(1), after={"t0": record}))
    return lambda: Ledger(folder).records()


@reader("attempts.json: tasks", 2000)
def _(folder: Path, n: int) -> Work:
    root = bundle(folder)
    attempt = {"fingerprint": DIGEST, "record": DIGEST, "metric": "accuracy", "live": 0.5, "tried": 0.4}
    (root / "attempts.json").write_text(json.dumps({"attempts": {f"t{number}": attempt for number in range(n)}}))
    return lambda: read_attempts(root)


@contextmanager
def received(folder: Path, *parts: bytes) -> Iterator[tuple[Path, Receiver]]:
    """A new place in the folder, and a receiver there that took these parts of an upload."""
    place = Path(tempfile.mkdtemp(dir=folder))
    receiver = Receiver(place, "mood", most=2**30)
    try:
        for part in parts:
            receiver.feed(part)
        yield place, receiver
    finally:
        receiver.close()


@reader("an upload: its bytes, a few at a time", 200_000)
def _(folder: Path, n: int) -> Work:
    from polyhead.bundle.task_archive import tar_header

    content = tar_header("part.safetensors", n) + bytes(n) + bytes(-n % 512) + bytes(1024)

    def work() -> None:
        with received(folder, *(content[start : start + 100] for start in range(0, len(content), 100))):
            pass

    return work


@reader("an upload: its end, all at once", 2_000_000)
def _(folder: Path, n: int) -> Work:
    content = bytes(n - n % 512)

    def work() -> None:
        with received(folder, content) as (_, receiver):
            receiver.end()

    return work


@reader("an upload: probes", 500)
def _(folder: Path, n: int) -> Work:
    root = bundle(folder, draft("mood", probes=n))
    content = b"".join(upload_bytes(Bundle.open(root), "mood"))

    def work() -> None:
        with received(folder, content) as (place, receiver):
            receiver.end()
        staged(place, "mood", root)

    return work


# Tables


def rows_of(path: Path) -> Work:
    """Reads a table as `init` does: every row, the columns that it has, and what they are."""

    def work() -> None:
        table = table_of(str(path))
        layout_of(table, Columns())

    return work


def init_of(path: Path) -> Work:
    """Runs `polyhead init` on a file, which reads every format that there is."""
    places = iter(range(10**6))

    def work() -> None:
        out, errors = io.StringIO(), io.StringIO()
        target = path.parent / f"{next(places)}" / "polyhead.toml"
        target.parent.mkdir()
        try:
            with contextlib.redirect_stdout(out), contextlib.redirect_stderr(errors):
                main(["init", str(path), "-o", str(target)])
        except SystemExit as end:
            assert "a fault of polyhead" not in errors.getvalue(), errors.getvalue()
            if end.code:
                raise DataError(errors.getvalue()) from None

    return work


def jsonl(folder: Path, rows: list[Any], name: str = "t.jsonl") -> Path:
    path = folder / name
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def table(n: int) -> list[dict[str, Any]]:
    return [{"text": words(number), "label": ("good", "bad")[number % 2]} for number in range(n)]


def csv_of(
    folder: Path, rows: list[list[str]], *, name: str = "t.csv", separator: str = ",", code: str = "utf-8"
) -> Path:
    text = io.StringIO()
    csv.writer(text, delimiter=separator).writerows(rows)
    (folder / name).write_bytes(text.getvalue().encode(code))
    return folder / name


@reader("CSV: rows", 1000)
def _(folder: Path, n: int) -> Work:
    return rows_of(csv_of(folder, [["text", "label"], *([row["text"], row["label"]] for row in table(n))]))


@reader("CSV: columns", 100)
def _(folder: Path, n: int) -> Work:
    rows = [[f"c{number}" for number in range(n)], *([str(number % 3) for number in range(n)] for _ in range(20))]
    return rows_of(csv_of(folder, rows))


@reader("CSV: the length of a cell", 100_000)
def _(folder: Path, n: int) -> Work:
    return rows_of(csv_of(folder, [["text", "label"], *([f"{row} " * n, "good"] for row in range(3))]))


@reader("CSV: quotes that never end", 20_000)
def _(folder: Path, n: int) -> Work:
    (folder / "t.csv").write_text("text,label\n" + '"a,b\n' * n)
    return rows_of(folder / "t.csv")


@reader("TSV: rows", 1000)
def _(folder: Path, n: int) -> Work:
    rows = [["text", "label"], *([row["text"], row["label"]] for row in table(n))]
    return rows_of(csv_of(folder, rows, name="t.tsv", separator="\t"))


@reader("CSV in another code: rows", 1000)
def _(folder: Path, n: int) -> Work:
    rows = [["text", "label"], *([f"schön {row['text']}", row["label"]] for row in table(n))]
    return init_of(csv_of(folder, rows, code="latin-1"))


@reader("CSV, packed: rows", 1000)
def _(folder: Path, n: int) -> Work:
    path = csv_of(folder, [["text", "label"], *([row["text"], row["label"]] for row in table(n))])
    (folder / "t.csv.gz").write_bytes(gzip.compress(path.read_bytes()))
    return rows_of(folder / "t.csv.gz")


@reader("JSON Lines: rows", 1000)
def _(folder: Path, n: int) -> Work:
    return rows_of(jsonl(folder, table(n)))


@reader("JSON Lines: columns", 100)
def _(folder: Path, n: int) -> Work:
    return rows_of(jsonl(folder, [{f"c{number}": number % 3 for number in range(n)} for _ in range(20)]))


@reader("JSON Lines: a new column in each row", 300)
def _(folder: Path, n: int) -> Work:
    return rows_of(jsonl(folder, [{"text": words(number), f"c{number}": 1} for number in range(n)]))


@reader("JSON Lines: levels", 5000)
def _(folder: Path, n: int) -> Work:
    (folder / "t.jsonl").write_text('{"text": "a", "label": ' + "[" * n + "]" * n + "}\n")
    return rows_of(folder / "t.jsonl")


@reader("JSON: rows", 1000)
def _(folder: Path, n: int) -> Work:
    (folder / "t.json").write_text(json.dumps(table(n)))
    return rows_of(folder / "t.json")


@reader("JSON: levels", 5000)
def _(folder: Path, n: int) -> Work:
    (folder / "t.json").write_text("[" * n + "]" * n)
    return rows_of(folder / "t.json")


@reader("Parquet: rows", 1000)
def _(folder: Path, n: int) -> Work:
    return rows_of(parquet(folder, {key: [row[key] for row in table(n)] for key in ("text", "label")}))


@reader("Parquet: columns", 50)
def _(folder: Path, n: int) -> Work:
    return rows_of(parquet(folder, {f"c{number}": list(range(20)) for number in range(n)}))


def parquet(folder: Path, columns: dict[str, list[Any]]) -> Path:
    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(pa.table(columns), folder / "t.parquet")
    return folder / "t.parquet"


@reader("Excel: rows", 200)
def _(folder: Path, n: int) -> Work:
    from openpyxl import Workbook

    book = Workbook()
    for row in [["text", "label"], *([row["text"], row["label"]] for row in table(n))]:
        book.active.append(row)
    book.save(folder / "t.xlsx")
    return rows_of(folder / "t.xlsx")


def spans(n: int) -> tuple[str, list[dict[str, Any]]]:
    """A text with n spans that do not overlap."""
    return "lamp " * n, [{"start": 5 * k, "end": 5 * k + 4, "label": ("A", "B")[k % 2]} for k in range(n)]


@reader("spans of one text", 500)
def _(folder: Path, n: int) -> Work:
    text, its = spans(n)
    path = jsonl(folder, [{"text": text, "spans": its}])
    task = Task(name="names", kind="tagging", labels=("O", "B-A", "I-A", "B-B", "I-B"))
    return lambda: read(Source(path=str(path), spans="spans"), task)


@reader("spans of one text that overlap", 500)
def _(folder: Path, n: int) -> Work:
    text, its = spans(n)
    path = jsonl(folder, [{"text": text, "spans": [{**span, "end": len(text) - 1} for span in its]}])
    task = Task(name="names", kind="tagging", labels=("O", "B-A", "I-A", "B-B", "I-B"))
    return lambda: read(Source(path=str(path), spans="spans"), task)


@reader("words and tags of one text", 1000)
def _(folder: Path, n: int) -> Work:
    path = jsonl(folder, [{"tokens": ["lamp"] * n, "tags": ["B-A", "I-A"] * (n // 2)}])
    task = Task(name="names", kind="tagging", labels=("O", "B-A", "I-A"))
    return lambda: read(Source(path=str(path), tokens="tokens", tags="tags"), task)


@reader("labels of a task and rows of its file", 1000)
def _(folder: Path, n: int) -> Work:
    labels = tuple(f"l{number}" for number in range(n))
    path = jsonl(folder, [{"text": words(number), "label": label} for number, label in enumerate(labels)])
    return lambda: read(Source(path=str(path)), Task(name="t", kind="single_label", labels=labels))


@reader("labels of one row", 1000)
def _(folder: Path, n: int) -> Work:
    labels = [f"l{number}" for number in range(n)]
    path = jsonl(folder, [{"text": "good", "label": labels}])
    return lambda: read(Source(path=str(path)), Task(name="t", kind="multi_label", labels=tuple(labels)))


@reader("options of one question", 1000)
def _(folder: Path, n: int) -> Work:
    path = jsonl(folder, [{"question": "which?", "choices": [f"the {k}" for k in range(n)], "label": 1}])
    return lambda: read(Source(path=str(path)), Task(name="t", kind="multiple_choice"))


@reader("answers in one text", 500)
def _(folder: Path, n: int) -> Work:
    text, its = spans(n)
    answers = [{"text": "lamp", "start": span["start"]} for span in its]
    path = jsonl(folder, [{"question": "what?", "context": text, "answers": answers}])
    return lambda: read(Source(path=str(path)), Task(name="t", kind="span"))


@reader("lists in cells", 2000)
def _(folder: Path, n: int) -> Work:
    cell = "[" + ", ".join("'a'" for _ in range(n)) + "]"
    return lambda: listed(cell, cell)


@reader("lists in cells: levels", 5000)
def _(folder: Path, n: int) -> Work:
    return lambda: listed("[" * n + "]" * n, "")


# Annotation programs


@reader("CoNLL: sentences", 300)
def _(folder: Path, n: int) -> Work:
    (folder / "t.conll").write_text("".join(f"anna B-PER\nsat O\n{k} O\n\n" for k in range(n)))
    return init_of(folder / "t.conll")


@reader("CoNLL: words of a sentence", 1000)
def _(folder: Path, n: int) -> Work:
    few = "".join(f"anna B-PER\nsat O\n{k} O\n\n" for k in range(20))
    (folder / "t.conll").write_text(few + "anna B-PER\nsat O\n" * n + "\n")
    return init_of(folder / "t.conll")


@reader("CoNLL-U: sentences", 300)
def _(folder: Path, n: int) -> Work:
    word = "\t{0}\t{0}\t{1}\t_\t_\t0\troot\t_\t_\n"
    sentences = ("1" + word.format(f"anna{k}", "PROPN") + "2" + word.format("sat", "VERB") for k in range(n))
    (folder / "t.conllu").write_text("\n".join(sentences) + "\n")
    return init_of(folder / "t.conllu")


def annotated(
    count: int, make: Callable[[str, list[dict[str, Any]]], dict[str, Any]], *, spans_each: int = 1
) -> list[Any]:
    """So many rows of an annotation program, and 20 small ones beside them; each text is another."""
    rows = [(f"the lamp {words(k)}", [{"start": 4, "end": 8, "label": ("A", "B")[k % 2]}]) for k in range(count + 20)]
    if spans_each > 1:
        text, its = spans(spans_each)
        rows.append((text, its))
    return [make(text, its) for text, its in rows]


def triples(its: list[dict[str, Any]]) -> list[list[Any]]:
    return [[span["start"], span["end"], span["label"]] for span in its]


def doccano(text: str, its: list[dict[str, Any]]) -> dict[str, Any]:
    return {"id": len(text), "text": text, "label": triples(its)}


def prodigy(text: str, its: list[dict[str, Any]]) -> dict[str, Any]:
    return {"text": text, "spans": its, "answer": "accept"}


def spacy(text: str, its: list[dict[str, Any]]) -> dict[str, Any]:
    return {"text": text, "entities": triples(its)}


def label_studio(text: str, its: list[dict[str, Any]]) -> dict[str, Any]:
    named = {"type": "labels", "from_name": "l", "to_name": "t"}
    result = [{**named, "value": {**s, "text": text[s["start"] : s["end"]], "labels": [s["label"]]}} for s in its]
    return {"id": len(text), "data": {"text": text}, "annotations": [{"id": 1, "result": result}]}


def squad(n: int) -> dict[str, Any]:
    answers = [{"text": "lamp", "answer_start": 4}]
    questions = [{"id": str(k), "question": f"what is {k}?", "answers": answers} for k in range(n)]
    return {"version": "2.0", "data": [{"title": "a", "paragraphs": [{"context": "the lamp", "qas": questions}]}]}


ANNOTATED: Mapping[str, Callable[[int], Any]] = {
    "doccano: rows": lambda n: annotated(n, doccano),
    "doccano: spans": lambda n: annotated(0, doccano, spans_each=n),
    "Prodigy: rows": lambda n: annotated(n, prodigy),
    "Prodigy: spans": lambda n: annotated(0, prodigy, spans_each=n),
    "spaCy: rows": lambda n: annotated(n, spacy),
    "spaCy: spans": lambda n: annotated(0, spacy, spans_each=n),
    "spaCy: categories": lambda n: [{"text": words(k), "cats": {f"c{c}": c % 2 for c in range(n)}} for k in range(20)],
    "Label Studio: tasks": lambda n: annotated(n, label_studio),
    "Label Studio: regions": lambda n: annotated(0, label_studio, spans_each=n),
    "Argilla: records": lambda n: [
        {"text": words(k), "annotation": ("good", "bad")[k % 2], "annotation_agent": "a", "status": "Validated"}
        for k in range(n)
    ],
    "SQuAD: questions": squad,
}


def _annotated(make: Callable[[int], Any], *, is_array: bool) -> Prepare:
    def prepare(folder: Path, n: int) -> Work:
        if not is_array:
            return init_of(jsonl(folder, make(n)))
        (folder / "t.json").write_text(json.dumps(make(n)))
        return init_of(folder / "t.json")

    return prepare


for _name, _make in ANNOTATED.items():
    reader(_name, 200)(_annotated(_make, is_array=_name.startswith(("Label Studio", "SQuAD"))))


# Checkpoints and encoders of others


@reader("config.json of an encoder: keys", 5000)
def _(folder: Path, n: int) -> Work:
    raw = json.dumps({"model_type": "bert", **{f"k{number}": number for number in range(n)}}).encode()
    return lambda: architecture_of(raw, source="config.json")


@reader("config.json of an encoder: levels", 5000)
def _(folder: Path, n: int) -> Work:
    raw = b'{"model_type": "bert", "x": ' + b"[" * n + b"]" * n + b"}"
    return lambda: architecture_of(raw, source="config.json")


def classifier(folder: Path, **keys: Any) -> Work:
    from polyhead.convert.hugging_face import read_head

    config = {"model_type": "bert", "architectures": ["BertForSequenceClassification"], **keys}
    (folder / "config.json").write_text(json.dumps(config))
    save_file({"classifier.weight": np.ones((2, 16), np.float32)}, folder / "model.safetensors")
    return lambda: read_head(folder)


@reader("config.json of a classifier: labels", 2000)
def _(folder: Path, n: int) -> Work:
    return classifier(folder, id2label={str(k): f"l{k}" for k in range(n)})


@reader("weights: tensors of a file", 2000)
def _(folder: Path, n: int) -> Work:
    from polyhead.project.weights import open_checkpoint

    save_file({f"a{number}": np.ones(1, np.float32) for number in range(n)}, folder / "model.safetensors")
    return lambda: open_checkpoint(folder)


@reader("weights: tensors of an index", 2000)
def _(folder: Path, n: int) -> Work:
    from polyhead.project.weights import open_checkpoint

    names = [f"a{number}" for number in range(n)]
    save_file({name: np.ones(1, np.float32) for name in names}, folder / "model-1.safetensors")
    index = {"weight_map": dict.fromkeys(names, "model-1.safetensors")}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return lambda: open_checkpoint(folder)


@reader("weights: files of an index", 100)
def _(folder: Path, n: int) -> Work:
    from polyhead.project.weights import open_checkpoint

    for number in range(n):
        save_file({f"a{number}": np.ones(1, np.float32)}, folder / f"m{number}.safetensors")
    index = {"weight_map": {f"a{number}": f"m{number}.safetensors" for number in range(n)}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return lambda: open_checkpoint(folder)


def adapter(folder: Path, **keys: Any) -> Work:
    from polyhead.convert.peft import read_lora

    config = {
        "peft_type": "LORA",
        "r": 2,
        "lora_alpha": 4,
        "base_model_name_or_path": "base",
        "task_type": None,
        **keys,
    }
    (folder / "adapter_config.json").write_text(json.dumps(config))
    name = "base_model.model.encoder.layer.0.attention.self.query.lora_{}.weight"
    arrays = {name.format("A"): np.ones((2, 16), np.float32), name.format("B"): np.ones((16, 2), np.float32)}
    save_file(arrays, folder / "adapter_model.safetensors")
    return lambda: read_lora(folder, folder, TRUNK.architecture)


@reader("adapter_config.json: target modules", 2000)
def _(folder: Path, n: int) -> Work:
    return adapter(folder, target_modules=["query", *(f"m{number}" for number in range(n))])


@reader("adapter_config.json: ranks by module", 2000)
def _(folder: Path, n: int) -> Work:
    return adapter(folder, target_modules=["query"], rank_pattern={f"m{number}": 2 for number in range(n)})


@reader("adapter_config.json: an expression", 50)
def _(folder: Path, n: int) -> Work:
    return adapter(folder, target_modules="(a|b)*" * n + "query")


@reader("tokenizer.json: pieces", 2000)
def _(folder: Path, n: int) -> Work:
    return tokenizer(lambda own: own["model"]["vocab"].update({f"piece{k}": 1000 + k for k in range(n)}))


@reader("tokenizer.json: special tokens", 500)
def _(folder: Path, n: int) -> Work:
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    tokens = [{"id": 1000 + k, "content": f"<s{k}>", "special": True, **flags} for k in range(n)]
    return tokenizer(lambda own: own.update(added_tokens=[*(own.get("added_tokens") or []), *tokens]))


@reader("tokenizer.json: changes of a normaliser", 100)
def _(folder: Path, n: int) -> Work:
    parts = [{"type": "Replace", "pattern": {"String": f"s{k}"}, "content": "t"} for k in range(n)]
    return tokenizer(lambda own: own.update(normalizer={"type": "Sequence", "normalizers": parts}))


@reader("tokenizer.json: levels", 100)
def _(folder: Path, n: int) -> Work:
    part = '{"type": "Sequence", "normalizers": [' * n + '{"type": "Lowercase"}' + "]}" * n
    return tokenizer(lambda own: own.update(normalizer="@"), part)


def tokenizer(change: Callable[[Any], object], normalizer: str = "null") -> Work:
    """Tries a tokenizer as the process does that tries it; an error there is the answer of that process."""
    own = json.loads(tiny_tokenizer())
    change(own)
    content = json.dumps(own).replace('"@"', normalizer).encode()

    def work() -> None:
        try:
            trial._tried(content)
        except (ValueError, RecursionError) as error:
            raise DataError(str(error)) from None
        except Exception as error:  # the library's own type
            assert type(error) is Exception, error
            raise DataError(str(error)) from None

    return work


# Projects, stores, settings


@reader("polyhead.toml: tasks", 100)
def _(folder: Path, n: int) -> Work:
    return project(
        folder,
        [f'[[tasks]]\nname = "t{k}"\nkind = "single_label"\nlabels = ["a", "b"]\ntrain = "t.csv"\n' for k in range(n)],
    )


@reader("polyhead.toml: labels", 1000)
def _(folder: Path, n: int) -> Work:
    labels = ", ".join(f'"l{k}"' for k in range(n))
    return project(folder, [f'[[tasks]]\nname = "t"\nkind = "single_label"\nlabels = [{labels}]\ntrain = "t.csv"\n'])


@reader("polyhead.toml: keys that it does not have", 500)
def _(folder: Path, n: int) -> Work:
    return project(folder, [f"k{number} = {number}\n" for number in range(n)])


@reader("polyhead.toml: keys with many dots", 100)
def _(folder: Path, n: int) -> Work:
    return project(folder, ["a" + ".a" * n + " = 1\n"])


@reader("polyhead.toml: levels", 5000)
def _(folder: Path, n: int) -> Work:
    return project(folder, ["a = " + "[" * n + "]" * n + "\n"])


def project(folder: Path, lines: list[str]) -> Work:
    (folder / "polyhead.toml").write_text("".join(lines))
    return lambda: read_project(folder / "polyhead.toml")


@reader("polyhead.toml: tasks beside one that is replaced", 30)
def _(folder: Path, n: int) -> Work:
    tasks = "\n".join(
        f'[[tasks]]\nname = "t{k}"\nkind = "single_label"\nlabels = ["a", "b"]\ntrain = "t.csv"\n' for k in range(n)
    )
    entry = {"name": f"t{n - 1}", "kind": "single_label", "labels": ["a", "b"], "train": "t.csv"}
    return lambda: with_task('[trunk]\nname = "minilm"\n\n' + tasks, entry, "polyhead.toml", replace=True)


@reader("the file of keys: lines", 2000)
def _(folder: Path, n: int) -> Work:
    text = "".join(f"predict:key{k} # name {k}\n" for k in range(n))
    return lambda: keys_in(text, source="keys")


@reader("the file of labels: options", 1000)
def _(folder: Path, n: int) -> Work:
    pairs = "".join(f'o{k} = "l{k}"\n' for k in range(n))
    (folder / "labels.toml").write_text(f'[q]\ntask = "t"\n[q.labels]\n{pairs}')
    task = Task(name="t", kind="single_label", labels=tuple(f"l{k}" for k in range(n)))
    return lambda: check_served_labels(read_labels(folder / "labels.toml"), {"t": task})


@reader("the file of labels: questions", 200)
def _(folder: Path, n: int) -> Work:
    (folder / "labels.toml").write_text("".join(f'[q{k}]\ntask = "t"\n' for k in range(n)))
    task = Task(name="t", kind="single_label", labels=("a", "b"))
    return lambda: check_served_labels(read_labels(folder / "labels.toml"), {"t": task})


def store(folder: Path) -> PlainStore:
    column = FeatureColumn(digest=DIGEST, layers=1, width=4, codec=Codec(name="float32"))
    return PlainStore.create(str(folder / "s"), Schema(features=(column,)))


@reader("a store: fragments", 10)
def _(folder: Path, n: int) -> Work:
    own = store(folder)
    for number in range(n):
        ids = [document_id([f"{number}"])]
        own.append(ids, {DIGEST: PackedRows.of([1], np.zeros((1, own.schema.features[0].token_bytes), np.uint8))})

    def read() -> None:
        assert PlainStore.open(str(folder / "s")).fragments
        PlainStore.open(str(folder / "s")).verify()

    return read


@reader("a store: columns of results", 50)
def _(folder: Path, n: int) -> Work:
    own = store(folder)
    facts = ResultFacts(
        task="t", kind="single_label", labels=("a", "b"), version="v0001", record=DIGEST, trunk=DIGEST, arrays={}
    )
    for number in range(n):
        own.describe(f"c{number}", facts)
    return lambda: PlainStore.open(str(folder / "s")).described()


# Requests


@reader("a request: texts", 50)
def _(folder: Path, n: int) -> Work:
    return posted("/v1/predict", {"inputs": [words(k) for k in range(n)], "tasks": ["nobody"]})


@reader("a request: tasks", 500)
def _(folder: Path, n: int) -> Work:
    return posted("/v1/predict", {"inputs": ["a"], "tasks": [f"t{k}" for k in range(n)]})


@reader("a request: words of a text", 1000)
def _(folder: Path, n: int) -> Work:
    return posted(
        "/v1/predict", {"inputs": ["lamp " * n], "tasks": ["nobody"], "words": [[[5 * k, 5 * k + 4] for k in range(n)]]}
    )


@reader("a request: keys that it does not have", 2000)
def _(folder: Path, n: int) -> Work:
    return posted("/v1/predict", {f"k{k}": k for k in range(n)})


@reader("a request: levels", 20_000)
def _(folder: Path, n: int) -> Work:
    return posted("/v1/predict", "[" * n + "]" * n)


@reader("a request of a decisions API: questions", 50)
def _(folder: Path, n: int) -> Work:
    questions = [{"type": "predicate", "name": f"q{k}", "instructions": "is it good?"} for k in range(n)]
    return posted("/v1/decisions", {"model": "polyhead", "input": "a", "questions": questions})


@reader("a request for classes: texts", 50)
def _(folder: Path, n: int) -> Work:
    return posted("/classify", {"model": "nobody", "input": [words(k) for k in range(n)]})


@reader("a request for vectors: texts", 50)
def _(folder: Path, n: int) -> Work:
    return posted("/v1/embeddings", {"model": "nobody", "input": [words(k) for k in range(n)], "dimensions": -1})


@reader("a request in the inference protocol: tensors", 100)
def _(folder: Path, n: int) -> Work:
    tensors = [{"name": f"i{k}", "shape": [1], "datatype": "BYTES", "data": ["a"]} for k in range(n)]
    return posted("/v2/models/nobody/infer", {"inputs": tensors})


@reader("a request: parameters of its address", 500)
def _(folder: Path, n: int) -> Work:
    return posted("/v1/predict?" + "&".join(f"a{k}=1" for k in range(n)), {"inputs": ["a"], "tasks": ["nobody"]})


@reader("a request: an Accept header", 1000)
def _(folder: Path, n: int) -> Work:
    return posted("/metrics", None, headers={"accept": ",".join(f"text/x{k};q=0.5" for k in range(n))})


SERVED: list[Any] = []


def posted(address: str, body: Any, *, headers: Mapping[str, str] | None = None) -> Work:
    """A request to a server in this process: all that its event loop does, with no answer of a task in it."""
    if not SERVED:
        place = tempfile.mkdtemp()
        session = Session(bundle(Path(place), draft("mood")), backend="reference", precision="float32")
        SERVED.append(application(Service(session, ServeSettings(watch_seconds=0.0))))
    content = None if body is None else body.encode() if isinstance(body, str) else json.dumps(body).encode()

    async def asked() -> None:
        transport = httpx.ASGITransport(SERVED[0], raise_app_exceptions=True, client=("127.0.0.1", 1))
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
            method = "GET" if content is None else "POST"
            response = await client.request(method, address, content=content, headers=headers)
        assert response.status_code < 500, response.text
        if response.status_code >= 400:
            raise DataError(response.text)

    return lambda: asyncio.run(asked())


@reader("counts of several workers: series", 1000)
def _(folder: Path, n: int) -> Work:
    text = "".join(f"# HELP m{k} M.\n# TYPE m{k} counter\nm{k} 1.0\n" for k in range(n))
    return lambda: joined_counts({1: text, 2: text})


@reader("counts of several workers: one series", 2000)
def _(folder: Path, n: int) -> Work:
    text = "# HELP m M.\n# TYPE m counter\n" + "".join(f'm{{task="t{k}"}} 1.0\n' for k in range(n))
    return lambda: joined_counts({1: text, 2: text})


@reader("the words of an error: paths", 5000)
def _(folder: Path, n: int) -> Work:
    return lambda: without_files("/a/b " * n)


@reader("the words of an error: one long path", 10_000)
def _(folder: Path, n: int) -> Work:
    return lambda: without_files("/a" * n)


@reader("a name that is nearly another's", 1000)
def _(folder: Path, n: int) -> Work:
    return lambda: suggestion("lamp", [f"lam{k}" for k in range(n)])


@reader("a name of many letters that is nearly another's", 250)
def _(folder: Path, n: int) -> Work:
    return lambda: suggestion("ab" * n, ["ba" * n, "a" * n + "b" * n])


@reader("a hub's repository: files that the bundle does not list", 100)
def _(folder: Path, n: int) -> Work:
    root = bundle(folder, draft("mood"))

    def work() -> None:
        for number in range(n):
            (root / f"junk{number}").write_bytes(b"")
        hub._remove_unlisted(root)

    return work


# Texts


@reader("words of a text", 10_000)
def _(folder: Path, n: int) -> Work:
    return lambda: words_in(("lamp " * n,))


@reader("JSON of a request: levels and strings", 50_000)
def _(folder: Path, n: int) -> Work:
    body = b'["\\"", ' * n
    return lambda: is_deep(body)


@reader("JSON that is written", 5000)
def _(folder: Path, n: int) -> Work:
    return lambda: to_json({f"k{number}": [number] for number in range(n)})
