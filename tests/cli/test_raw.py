"""Files of rows given as lines of text: refused with the command that answers them, never answered cell by cell."""

import gzip
import json
import os
import threading

import pytest

from polyhead.errors import DataError
from polyhead.store.jobs.lines import read_lines
from support.commands import run

ROWS = [{"text": "the lamp is good", "id": 1}, {"text": "the box is bad", "id": 2}]
CSV = b"id,text\n1,the lamp is good\n2,the box is bad\n"
LINES = "".join(json.dumps(row) + "\n" for row in ROWS).encode()
PARQUET = b"PAR1\x15\x04\x15\x00\nmore\nPAR1"


def answered(home, file, *words, **options):
    return run("predict", home / "bundle", file, "--backend", "reference", "--tasks", "mood", *words, **options)


def refused(home, path, content, *words):
    path.write_bytes(content)
    done = answered(home, path, *words).refuses("DataError", str(path))
    assert done.out == ""
    return done.err


NAMES = ["a.csv", "a.CSV", "a.tsv", "a.xlsx", "a.parquet", "a b.csv"]
NAMES += ["a.csv.gz", "a.tsv.gz", "a.jsonl.gz", "a.json.gz", "a.parquet.gz", "a.xlsx.gz"]


@pytest.mark.parametrize("words", [[], ["--format", "text"], ["--format", "json"]], ids=["auto", "text", "json"])
@pytest.mark.parametrize("name", NAMES)
def test_a_file_of_rows_is_refused_by_its_name_with_the_command_that_answers_them(home, tmp_path, name, words):
    """Every line of a CSV was answered as a text, its header too, and the command ended with 0."""
    content = gzip.compress(CSV) if name.endswith(".gz") else CSV
    said = refused(home, tmp_path / name, content, *words)
    if name in ("a.parquet.gz", "a.xlsx.gz"):  # which no command reads
        assert "gunzip" in said
    else:
        assert "polyhead predict" in said and "--text " in said and "-o answered" in said


@pytest.mark.parametrize(
    ("content", "what"),
    [(PARQUET, "Parquet"), (gzip.compress(CSV), "gzip"), (b"PK\x03\x04\x14\x00rest\n", "zip")],
    ids=["parquet", "gzip", "zip"],
)
@pytest.mark.parametrize("name", ["data", "data.txt", "data.jsonl"])
def test_a_file_that_is_no_text_is_refused_by_how_it_begins(home, tmp_path, name, content, what):
    assert f"a {what} file" in refused(home, tmp_path / name, content)
    done = answered(home, "-", stdin=content).refuses("DataError", f"a {what} file")
    assert done.out == ""


@pytest.mark.parametrize("name", ["rows.jsonl", "rows.json", "rows.txt", "rows"])
def test_objects_of_json_are_inputs_unless_they_are_asked_for_as_texts(home, tmp_path, name):
    (tmp_path / name).write_bytes(LINES)
    rows = answered(home, tmp_path / name).rows
    assert [row["id"] for row in rows] == [1, 2] and all("mood" in row["answers"] for row in rows)
    assert "leave --format out" in refused(home, tmp_path / name, LINES, "--format", "text")
    assert len(answered(home, "-", "--format", "text", stdin=LINES).rows) == 2  # a pipe's lines stay as they are


@pytest.mark.parametrize(
    ("name", "content", "advice"),
    [
        ("a.json", json.dumps(ROWS), "--text text -o answered.jsonl"),
        ("a.json", json.dumps(ROWS, indent=1), "--text text -o answered.jsonl"),
        ("a.json", json.dumps(["the lamp", "the box"]), "one object"),
        ("a.json", json.dumps(ROWS[0], indent=1), "one object"),
        ("a.jsonl", json.dumps(["the lamp", "the box"]), "one object"),
    ],
    ids=["table", "table over lines", "list", "object over lines", "list in jsonl"],
)
def test_json_that_is_not_one_input_a_line_is_refused(home, tmp_path, name, content, advice):
    assert advice in refused(home, tmp_path / name, content.encode())


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.txt", "[note] the lamp is good\n"),
        ("a.txt", "id,text\n1,the lamp\n"),
        ("a.log", "{ this is no json\n"),
        ("csv", "the lamp is good\n"),
        ("a.csv.txt", "the lamp is good\n"),
        ("a.md", "[1]\nthe lamp is good\n"),
    ],
)
def test_lines_of_text_are_answered_whatever_they_hold(home, tmp_path, name, content):
    (tmp_path / name).write_text(content)
    assert len(answered(home, tmp_path / name, "--format", "text").rows) == len(content.splitlines())


COLUMNS = "".join(json.dumps({"remark": row["text"], "mood": "good"}) + "\n" for row in ROWS).encode()


@pytest.mark.parametrize("name", ["rows.jsonl", "rows.txt", None])
def test_objects_of_which_none_is_an_input_are_rows_of_a_table(home, tmp_path, name):
    """Each was answered with an error of its own."""
    if name is None:
        said = answered(home, "-", stdin=COLUMNS).refuses("DataError", "standard input").err
    else:
        said = refused(home, tmp_path / name, COLUMNS)
    assert "objects with remark, mood" in said and "--text COLUMN -o answered.jsonl" in said
    mixed = COLUMNS + LINES
    assert [("answers" in row) for row in answered(home, "-", stdin=mixed).rows] == [False, False, True, True]
    assert "error" in answered(home, "-", stdin=COLUMNS.splitlines()[0]).rows[0]


def test_a_named_pipe_loses_no_line_to_a_look_at_it(home, tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = threading.Thread(target=pipe.write_bytes, args=(b"the lamp is good\nthe box is bad\n",))
    writer.start()
    rows = answered(home, pipe).rows
    writer.join()
    assert [row["line"] for row in rows] == [1, 2]


def test_a_file_that_is_not_there_is_said_to_be_missing(home, tmp_path):
    answered(home, tmp_path / "none.csv").refuses("no file at")


def test_lines_of_other_commands_are_no_rows_of_a_table_either(tmp_path):
    (tmp_path / "a.csv").write_bytes(CSV)
    with pytest.raises(DataError, match="CSV") as caught:
        read_lines(str(tmp_path / "a.csv"))
    assert "file of their own" in caught.value.do
    (tmp_path / "a.jsonl").write_bytes(LINES)
    assert [line.input for line in read_lines(str(tmp_path / "a.jsonl"))] == [(row["text"],) for row in ROWS]
