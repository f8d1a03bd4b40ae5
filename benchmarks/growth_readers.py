"""Every reader of files and requests of others, by name: from a folder and a number of parts to the work of reading.

A part is what a file may hold many of: rows, labels, spans, tasks, columns, arrays, special tokens, levels.
"""

from __future__ import annotations

import csv
import gzip
import io
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from safetensors.numpy import save, save_file

from polyhead.bundle import write
from polyhead.bundle.create import write_bundle
from polyhead.bundle.files import read_arrays
from polyhead.bundle.journal import read_attempts
from polyhead.bundle.manifest import TaskRecord, decoded, read_bundle_file
from polyhead.bundle.models import read_models_file
from polyhead.bundle.owners import connected, new_names
from polyhead.bundle.packed import packed
from polyhead.bundle.read import Bundle
from polyhead.bundle.seen import seen_of
from polyhead.certify.certificate import Certificate, Ledger, read_certificate
from polyhead.config import is_deep, to_json
from polyhead.engine.pinned import Answered, probes_of
from polyhead.plan import Pool
from polyhead.serve.uploads import Receiver, staged
from polyhead.tasks.columns import Source
from polyhead.tasks.guess_table import Given, layout_of, table_of
from polyhead.tasks.kinds.base import listed
from polyhead.tasks.read import read
from polyhead.tasks.task import Task
from polyhead.testing import tiny_part, tiny_path, tiny_trunk
from polyhead.text.words import words_in

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


@reader("models.json: models", 2000)
def _(folder: Path, n: int) -> Work:
    lines = {f"t{number}": {"version": "v0001", "record": DIGEST} for number in range(n)}
    (folder / "models.json").write_text(json.dumps({"format": 1, "models": lines}))
    return lambda: read_models_file(folder)


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
    return record_of(folder, lambda own: own.update(calibration={"sets": sets, "coverage": 0.9}))


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
    return lambda: probes_of(opened, "mood")


@reader("README.md: lines", 5000)
def _(folder: Path, n: int) -> Work:
    opened = Bundle.open(bundle(folder, draft("mood", card="# mood\n\n" * n)))
    return lambda: opened.card("mood")


@reader("seen.safetensors: rows", 100)
def _(folder: Path, n: int) -> Work:
    arrays = {"vectors": np.ones((n, 16), np.float16), "scores": np.ones((n, 2), np.float16)}
    content = save({**arrays, "lengths": np.ones(n, np.float32)})
    opened = Bundle.open(bundle(folder, draft("mood", seen=content)))
    return lambda: seen_of(opened, "mood")


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
    answered = {f"t{n}": Answered(version="v0001", record=DIGEST, probes=2, sha256=DIGEST) for n in range(tasks)}
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
        record = Answered(version=f"v{number + 1:04d}", record=DIGEST, probes=2, sha256=DIGEST)
        ledger.write(msgspec.structs.replace(certificate(1), after={"t0": record}))
    opened = Ledger(folder)
    return lambda: [opened.record_of("t0", f"v{number + 1:04d}") for number in range(n)]


@reader("attempts.json: tasks", 2000)
def _(folder: Path, n: int) -> Work:
    root = bundle(folder)
    attempt = {"fingerprint": DIGEST, "record": DIGEST, "metric": "accuracy", "live": 0.5, "tried": 0.4}
    (root / "attempts.json").write_text(json.dumps({"attempts": {f"t{number}": attempt for number in range(n)}}))
    return lambda: read_attempts(root)


@reader("an upload: its bytes, a few at a time", 200_000)
def _(folder: Path, n: int) -> Work:
    from polyhead.bundle.packed import tar_header

    content = tar_header("part.safetensors", n) + bytes(n) + bytes(-n % 512) + bytes(1024)
    places = iter(range(10**6))

    def work() -> None:
        receiver = Receiver(folder / f"{next(places)}", "mood", most=2**30)
        try:
            for start in range(0, len(content), 100):
                receiver.feed(content[start : start + 100])
        finally:
            receiver.close()

    return work


@reader("an upload: its end, all at once", 2_000_000)
def _(folder: Path, n: int) -> Work:
    content = bytes(n - n % 512)
    return lambda: Receiver(folder, "mood", most=2**30).feed(content)


@reader("an upload: probes", 500)
def _(folder: Path, n: int) -> Work:
    root = bundle(folder, draft("mood", probes=n))
    content, places = b"".join(packed(Bundle.open(root), "mood")), iter(range(10**6))

    def work() -> None:
        place = folder / f"u{next(places)}"
        place.mkdir()
        receiver = Receiver(place, "mood", most=2**30)
        receiver.feed(content)
        receiver.end()
        staged(place, "mood", root)

    return work


# Tables


def rows_of(path: Path) -> Work:
    """Reads a table as `init` does: every row, the columns that it has, and what they are."""

    def work() -> None:
        table = table_of(str(path))
        layout_of(table, Given())

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
    return rows_of(csv_of(folder, rows, code="latin-1"))


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
    path = jsonl(folder, [{"text": "which?", "choices": [f"the {k}" for k in range(n)], "label": 1}])
    return lambda: read(Source(path=str(path)), Task(name="t", kind="multiple_choice"))


@reader("answers in one text", 500)
def _(folder: Path, n: int) -> Work:
    text, its = spans(n)
    answers = [{"text": "lamp", "start": span["start"]} for span in its]
    path = jsonl(folder, [{"text": "what?", "text_b": text, "answers": answers}])
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
    (folder / "t.conll").write_text("anna B-PER\nsat O\n\n" * n)
    return rows_of(folder / "t.conll")


@reader("CoNLL: words of a sentence", 1000)
def _(folder: Path, n: int) -> Work:
    (folder / "t.conll").write_text("anna B-PER\nsat O\n" * n + "\n")
    return rows_of(folder / "t.conll")


@reader("CoNLL-U: sentences", 300)
def _(folder: Path, n: int) -> Work:
    line = "1\tanna\tanna\tPROPN\t_\t_\t0\troot\t_\t_\n"
    (folder / "t.conllu").write_text(f"# text = anna\n{line}\n" * n)
    return rows_of(folder / "t.conllu")


ANNOTATED: Mapping[str, Callable[[int], list[Any]]] = {
    "doccano: rows": lambda n: [{"id": k, "text": "the lamp", "label": [[4, 8, "A"]]} for k in range(n)],
    "doccano: spans": lambda n: [
        {"id": 1, "text": spans(n)[0], "label": [[s["start"], s["end"], "A"] for s in spans(n)[1]]}
    ],
    "Prodigy: rows": lambda n: [
        {"text": "the lamp", "spans": [{"start": 4, "end": 8, "label": "A"}], "answer": "accept"} for _ in range(n)
    ],
    "Prodigy: spans": lambda n: [{"text": spans(n)[0], "spans": spans(n)[1], "answer": "accept"}],
    "spaCy: rows": lambda n: [{"text": "the lamp", "entities": [[4, 8, "A"]]} for _ in range(n)],
    "spaCy: categories": lambda n: [{"text": "the lamp", "cats": {f"c{k}": k % 2 for k in range(n)}} for _ in range(3)],
    "Label Studio: tasks": lambda n: [label_studio(1, number) for number in range(n)],
    "Label Studio: regions": lambda n: [label_studio(n, 1)],
    "Argilla: records": lambda n: [
        {"text": "the lamp", "annotation": "good", "annotation_agent": "a", "status": "Validated"} for _ in range(n)
    ],
    "SQuAD: questions": lambda n: [squad(n)],
}


def label_studio(regions: int, number: int) -> dict[str, Any]:
    text, its = spans(regions)
    result = [
        {"type": "labels", "from_name": "l", "to_name": "t", "value": {**s, "text": "lamp", "labels": [s["label"]]}}
        for s in its
    ]
    return {"id": number, "data": {"text": text}, "annotations": [{"id": number, "result": result}]}


def squad(n: int) -> dict[str, Any]:
    questions = [
        {"id": str(k), "question": "what?", "answers": [{"text": "lamp", "answer_start": 4}]} for k in range(n)
    ]
    return {"version": "2.0", "data": [{"title": "a", "paragraphs": [{"context": "the lamp", "qas": questions}]}]}


def _annotated(make: Callable[[int], list[Any]], *, is_array: bool) -> Prepare:
    def prepare(folder: Path, n: int) -> Work:
        rows = make(n)
        if not is_array:
            return rows_of(jsonl(folder, rows))
        content = rows[0] if len(rows) == 1 and "data" in rows[0] and "version" in rows[0] else rows
        (folder / "t.json").write_text(json.dumps(content))
        return rows_of(folder / "t.json")

    return prepare


for _name, _make in ANNOTATED.items():
    reader(_name, 200)(_annotated(_make, is_array=_name.startswith(("Label Studio", "SQuAD"))))


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
