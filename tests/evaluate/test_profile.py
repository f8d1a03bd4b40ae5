"""Rows of a file for a task: which are read, and their numbers."""

import json

from polyhead.data.columns import Source
from polyhead.evaluate.profile import labelled_rows, plain_rows
from polyhead.tasks.task import Task
from support import scoring_files

MOOD = Task(name="mood", kind="single_label", labels=("bad", "good"))
WHICH = Task(name="which", kind="multiple_choice")
TAGS = Task(name="tags", kind="tagging", labels=("O", "B-x", "I-x"))
ALIKE = Task(name="alike", kind="single_label", labels=("no", "yes"), pair="joined")


def quiet(line):
    pass


def write(folder, rows):
    file = folder / "rows.jsonl"
    file.write_text("\n\n".join(map(json.dumps, rows)))
    return str(file)


def test_rows_are_numbered_by_their_lines(tmp_path):
    file = write(tmp_path, [{"text": "a"}, {"text": ""}, {"text": "b"}, {"text": "c"}])
    rows = plain_rows(file, MOOD, {}, most=10, seed=0, show=quiet)
    assert (rows.rows, [rows.text(place) for place in range(3)]) == ([1, 5, 7], ["a", "b", "c"])


def test_rows_without_a_label_are_read_as_those_with_one(tmp_path):
    question = {"question": "q", "choices": ["x", "y"]}
    for task, columns, row, label in (
        (MOOD, {"text": "title"}, {"title": "a", "text": "other", "text_b": "b"}, "good"),
        (ALIKE, {"text_b": "text_b"}, {"text": "a", "text_b": "b"}, "yes"),
        (WHICH, {}, question, 1),
        (WHICH, {}, question | {"context": "c"}, 1),
    ):
        given = [{**row, "label": label}, {**row, "label": None}, {**row, "label": "?"}, row, {"label": label}]
        rows, labelled = labelled_rows(Source(path=write(tmp_path, given), **columns), task, most=10, seed=0)
        assert (rows.rows, rows.whole, labelled.rows) == ([1, 3, 5, 7], 4, [1])
        assert rows.inputs == [labelled.inputs[0]] * 4
        assert [note[:6] for note in rows.notes] == ["2 rows", "1 row "]


def test_rows_without_a_label_are_read_from_tables_too(tmp_path):
    """Tables refuse a column that they lack, such as a context that questions need not have."""
    for row in ({"question": "q", "choices": ["x", "y"]}, {"question": "q", "choices": ["x", "y"], "context": "c"}):
        table = [{**row, "label": label} for label in (1, None, 7)]
        file = str(scoring_files.write(tmp_path / "rows.parquet", table))
        read, labelled = labelled_rows(Source(path=file), WHICH, most=10, seed=0)
        assert (read.rows, labelled.rows) == ([1, 2, 3], [1])
        assert read.inputs == [labelled.inputs[0]] * 3


def test_rows_without_a_label_are_split_as_those_with_one(tmp_path):
    """Choices and tokens in one string, and rows that `where` leaves out."""
    for task, columns, row, label in (
        (WHICH, {}, {"question": "q", "choices": "x|y"}, "y"),
        (TAGS, {"tokens": "tokens", "tags": "tags"}, {"tokens": "Anna|left"}, "B-x|O"),
    ):
        key = columns.get("tags", "label")
        table = [{**row, key: each, "set": s} for each, s in ((label, "a"), ("", "a"), ("?", "a"), (label, "b"))]
        file = str(scoring_files.write(tmp_path / "rows.csv", table))
        source = Source(path=file, separator="|", where={"set": "a"}, **columns)
        read, labelled = labelled_rows(source, task, most=10, seed=0)
        assert (read.rows, labelled.rows) == ([1, 2, 3], [1])
        assert read.inputs == [labelled.inputs[0]] * 3
        if read.words is not None:
            assert [words.tolist() for words in read.words] == [[[0, 4], [5, 9]]] * 3
