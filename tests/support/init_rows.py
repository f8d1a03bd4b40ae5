"""Rows of every kind for `polyhead init`, and files of them in every format."""

import csv
import gzip
import io
import json

from support import tiny_project

ROWS = tiny_project.messages(30)
SPANS = [{**row, "spans": [{"start": 0, "end": len(row["tokens"][0]), "label": "first"}]} for row in ROWS]
PAIRS = tiny_project.pairs(30)
QUESTIONS = [
    {"question": f"is it {row['mood']}?", "choices": [row["text"], "no", "yes"], "label": i % 3}
    for i, row in enumerate(ROWS)
]
PASSAGES = [
    {
        "question": "what is it?",
        "context": row["text"],
        "answers": [{"text": row["tokens"][0], "start": 0}] if i % 3 else [],
    }
    for i, row in enumerate(ROWS)
]
NAMED = [{"q": row["question"], "c": row["context"], "a": row["answers"]} for row in PASSAGES if row["answers"]]
KINDS = {
    "single_label": (ROWS, ["--label", "mood"]),
    "multi_label": (ROWS, ["--label", "topics"]),
    "regression": (ROWS, ["--label", "urgency"]),
    "tagging": (ROWS, ["--tokens", "tokens"]),
    "tagging spans": (SPANS, ["--spans", "spans"]),
    "single_label pair": (PAIRS, ["--text-b", "text_b", "--label", "same"]),
    "regression pair": (PAIRS, ["--text-b", "text_b", "--label", "alike", "--pair", "separate"]),
    "multiple_choice": (QUESTIONS, []),
    "span": (PASSAGES, []),
    "span named": (NAMED, ["--text", "q", "--text-b", "c", "--answers", "a"]),
}
FORMATS = [".jsonl", ".jsonl.gz", ".csv", ".csv.gz", ".tsv", ".tsv.gz", ".parquet"]


def write(path, rows):
    """The rows in the format of the file's name; lists in cells as JSON."""
    name = path.name
    if name.endswith(".parquet"):
        import pyarrow
        import pyarrow.parquet

        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path)
        return path
    file = io.StringIO(newline="")
    if ".jsonl" in name:
        file.writelines(json.dumps(row) + "\n" for row in rows)
    else:
        tab = ".tsv" in name
        cells = [{k: json.dumps(v) if isinstance(v, list) else v for k, v in row.items()} for row in rows]
        style = {"delimiter": "\t", "quoting": csv.QUOTE_NONE, "quotechar": None} if tab else {}
        writer = csv.DictWriter(file, list(cells[0]), **style)
        writer.writeheader()
        writer.writerows(cells)
    content = file.getvalue().encode()
    path.write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
    return path
