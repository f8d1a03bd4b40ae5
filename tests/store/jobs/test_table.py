"""Tables of stored answers have every column and every row that their documents have."""

import csv
import io
import json

import pytest

from polyhead.errors import ConfigError
from polyhead.store.jobs.labels import LabelRequest
from polyhead.store.jobs.table import table_columns, write_answers
from polyhead.tasks.task import Task

TASKS = {"mood": Task(name="mood", kind="single_label", labels=("bad", "good"))}
COLUMNS = table_columns(TASKS, LabelRequest(tasks=("mood",)))
SINGLE = {"id": "00", "text": "a", "mood": "good", "mood.score": 0.5}
PAIR = {"id": "01", "text": "b", "text_b": "c", "mood": "bad", "mood.score": 0.25}


def written(ending, *rows):
    """The rows of such a table as other programs read them."""
    file = io.BytesIO()
    assert write_answers(file, ending, iter(rows), COLUMNS) == len(rows)
    if ending == ".csv":
        return list(csv.DictReader(io.StringIO(file.getvalue().decode(), newline="")))
    if ending == ".jsonl":
        return [json.loads(line) for line in file.getvalue().splitlines()]
    return pytest.importorskip("pyarrow.parquet").read_table(io.BytesIO(file.getvalue())).to_pylist()


def test_two_columns_of_one_name_are_refused():
    """CSV had the score of the other task twice, JSON lost it, and Parquet ended as a fault."""
    tasks = {name: Task(name=name, kind="single_label", labels=("bad", "good")) for name in ("mood", "mood.score")}
    with pytest.raises(ConfigError, match=r"mood\.score"):
        table_columns(tasks, LabelRequest(tasks=tuple(tasks)))


@pytest.mark.parametrize("ending", [".csv", ".jsonl", ".parquet"])
def test_pairs_keep_their_second_text_wherever_a_single_text_stands(ending):
    """The columns were those of the first row."""
    for rows in ([SINGLE, PAIR], [PAIR, SINGLE]):
        assert [row.get("text_b") or None for row in written(ending, *rows)] == [row.get("text_b") for row in rows]


def test_a_text_with_a_lone_carriage_return_stays_in_its_row():
    (row,) = written(".csv", {**SINGLE, "text": "good\rnews"})
    assert row["text"] == "good\rnews" and row["mood"] == "good"
