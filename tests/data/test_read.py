"""Rows as inputs and targets; what is wrong is named by file and row, what is skipped is counted."""

import codecs
import gzip
import json
import os
import subprocess
import sys
import types
from decimal import Decimal
from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace

from polyhead.data.read import Source, read
from polyhead.errors import BadValue, ConfigError, DataError, EmptyData, MissingColumn, MissingExtra, UnknownLabel
from polyhead.project.declare import InitOptions, declare
from polyhead.tasks.kinds import kind_of
from polyhead.tasks.task import Example, Task
from polyhead.text.words import words_of

YES_NO = Task(name="t", kind="single_label", labels=("no", "yes"))
TOPICS = Task(name="topics", kind="multi_label", labels=("a", "b", "c"))
SCORE = Task(name="score", kind="regression", range=(0.0, 5.0))
BIO = Task(name="slots", kind="tagging", labels=("O", "B-x", "I-x", "B-y"))
PAIR = Task(name="pair", kind="single_label", labels=("no", "yes"), pair="joined")


def written(folder, content, name="rows.jsonl"):
    path = folder / name
    if isinstance(content, list):
        content = "".join(json.dumps(row) + "\n" for row in content)
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return str(path)


def source(folder, content, name="rows.jsonl", **columns):
    return Source(path=written(folder, content, name), **columns)


def test_rows_are_read_in_order_with_their_numbers(tmp_path):
    rows = [{"text": "one", "label": "no"}, {"text": "two", "label": "yes"}]
    found = read(source(tmp_path, rows), YES_NO)
    assert (found.inputs, found.rows, found.words) == ([("one",), ("two",)], [1, 2], None)
    assert [int(target) for target in found.targets] == [0, 1]
    assert (found.report.rows, found.report.used) == (2, 2)


def test_rows_without_label_or_text_are_skipped_and_counted(tmp_path):
    rows = [
        {"text": "one", "label": "no"},
        {"text": "two"},
        {"text": "three", "label": None},
        {"text": " \n", "label": "yes"},
        {"label": "yes"},
        {"text": "six \ud800", "label": "yes"},
    ]
    found = read(source(tmp_path, rows), YES_NO)
    assert found.rows == [1, 6]
    assert found.inputs[1] == ("six \ufffd",)
    report = found.report
    assert (report.rows, report.used, report.unlabelled, report.empty, report.repaired) == (6, 2, 2, 2, 1)


def test_an_empty_list_is_a_label_of_multi_label(tmp_path):
    rows = [{"text": "x", "label": []}, {"text": "y", "label": None}, {"text": "z", "label": ["c", "a"]}]
    found = read(source(tmp_path, rows), TOPICS)
    assert [target.tolist() for target in found.targets] == [[0, 0, 0], [1, 0, 1]]
    assert found.report.unlabelled == 1


def test_unknown_label_names_task_file_and_row(tmp_path):
    rows = [{"text": "x", "label": "no"}, {"text": "y", "label": "maybe"}]
    with pytest.raises(UnknownLabel, match=r"task 't', rows\.jsonl row 2: label 'maybe'") as caught:
        read(source(tmp_path, rows), YES_NO)
    assert caught.value.row == 2


@pytest.mark.parametrize(
    ("row", "match"),
    [
        ({"text": 3, "label": "no"}, "column 'text' must hold a string"),
        ({"text": ["x"], "label": "no"}, "column 'text' must hold a string"),
        ({"text": "x", "label": 1.5}, "a number with a fraction"),
        ({"text": "x", "label": ["no", "yes"]}, "a list"),
        ({"text": "x", "label": {}}, "an object"),
    ],
)
def test_values_of_the_wrong_type_are_refused(tmp_path, row, match):
    with pytest.raises(BadValue, match=match) as caught:
        read(source(tmp_path, [{"text": "fine", "label": "no"}, row]), YES_NO)
    assert caught.value.row == 2


def test_a_column_that_no_row_has_is_named_with_the_nearest(tmp_path):
    rows = [{"txt": "x", "label": "no"}, {"labels": "yes", "text": "y"}]
    with pytest.raises(MissingColumn, match="no column 'lable'.*did you mean 'label'") as caught:
        read(source(tmp_path, rows, label="lable"), YES_NO)
    assert caught.value.allowed == ["txt", "label", "labels", "text"]
    with pytest.raises(MissingColumn, match="no column 'part'"):
        read(source(tmp_path, rows, where={"part": "train"}), YES_NO)
    with pytest.raises(MissingColumn, match="did you mean 'text'"):
        read(source(tmp_path, "text,label\nx,no\n", "a.csv", text="texte"), YES_NO)


def test_columns_nobody_asked_for_are_ignored(tmp_path):
    assert read(source(tmp_path, [{"text": "x", "label": "no", "extra": {"deep": [1]}}]), YES_NO).rows == [1]


@pytest.mark.parametrize("name", ["rows.jsonl", "rows.csv", "rows.tsv"])
@pytest.mark.parametrize("content", [b"", b"\n\n", codecs.BOM_UTF8])
def test_an_empty_file_is_said_to_be_empty(tmp_path, name, content):
    with pytest.raises(EmptyData, match="no rows"):
        read(source(tmp_path, content, name), YES_NO)


def test_a_file_of_which_nothing_is_left_is_refused_with_counts(tmp_path):
    with pytest.raises(EmptyData, match="2 rows, 1 without a label, 1 without a text"):
        read(source(tmp_path, [{"text": "", "label": "no"}, {"text": "x", "label": None}]), YES_NO)
    with pytest.raises(EmptyData, match="0 rows"):
        read(source(tmp_path, "text,label\n", "a.csv"), YES_NO)
    with pytest.raises(EmptyData, match="check 'where'"):
        read(source(tmp_path, [{"text": "x", "label": "no"}], where={"text": "y"}), YES_NO)


def test_where_takes_booleans_and_whole_numbers_as_frames_write_them(tmp_path):
    """A frame's True and 1.0 in CSV were no true and no 1, so that no row was chosen."""
    table = "text,label,fold,live\na,no,1.0,True\nb,no,2.0,FALSE\nc,yes,1.0,true\nd,yes,,\n"
    path = written(tmp_path, table, "a.csv")
    for where in ({"fold": 1}, {"fold": "1.0"}, {"live": True}, {"live": True, "fold": 1}):
        assert read(Source(path=path, where=where), YES_NO).rows == [1, 3]
    assert read(Source(path=path, where={"live": False}), YES_NO).rows == [2]
    assert read(Source(path=path, where={"live": "True"}), YES_NO).rows == [1], "a string is itself"
    with pytest.raises(EmptyData):
        read(Source(path=path, where={"fold": "1"}), YES_NO)
    versions = written(tmp_path, "text,label,version\na,no,1\nb,yes,1.0\n", "b.csv")
    assert read(Source(path=versions, where={"version": "1.0"}), YES_NO).rows == [2]


def test_where_and_limit_choose_rows(tmp_path):
    rows = [{"text": str(i), "label": "no", "fold": i % 3, "live": i > 1, "part": "ab"[i % 2]} for i in range(12)]
    path = written(tmp_path, rows)
    assert read(Source(path=path, where={"fold": 1}), YES_NO).rows == [2, 5, 8, 11]
    assert read(Source(path=path, where={"fold": "1", "part": "a"}, limit=1), YES_NO).rows == [5]
    assert read(Source(path=path, where={"live": True}, limit=2), YES_NO).rows == [3, 4]
    with pytest.raises(ConfigError, match="limit"):
        read(Source(path=path, limit=0), YES_NO)


def test_bom_blank_lines_and_every_line_end_are_fine(tmp_path):
    lines = [b'{"text": "a\\u2028", "label": "no"}', b'{"text": "b", "label": "yes"}', b'{"text": "c", "label": "no"}']
    content = codecs.BOM_UTF8 + lines[0] + b"\r\n\n  \r" + lines[1] + b"\r" + lines[2]
    found = read(source(tmp_path, content), YES_NO)
    assert [text for (text,) in found.inputs] == ["a\u2028", "b", "c"]
    assert found.rows == [1, 4, 5]
    table = codecs.BOM_UTF8 + b'text,label\r\n"one\nmore",no\n\n\r\ntwo,yes\rthree,no'
    found = read(source(tmp_path, table, "a.csv"), YES_NO)
    assert [text for (text,) in found.inputs] == ["one\nmore", "two", "three"]
    assert found.rows == [1, 2, 3]


@pytest.mark.parametrize("line", [b"[1]", b'"x"', b"null", b"3", b"{", b'{"text": }', b"[" * 100_000, b"nonsense"])
def test_lines_that_are_no_object_are_refused_by_row(tmp_path, line):
    with pytest.raises(BadValue, match=r"rows\.jsonl row 3") as caught:
        read(source(tmp_path, b'{"text": "x", "label": "no"}\n\n' + line + b"\n"), YES_NO)
    assert caught.value.row == 3


@pytest.mark.parametrize("name", ["a.jsonl", "a.csv", "a.tsv"])
def test_bytes_that_are_not_utf_8_are_refused_by_row(tmp_path, name):
    good, bad = b"text,label\nfine,no\n", b"caf\xe9,yes\n"
    if name == "a.tsv":
        good, bad = good.replace(b",", b"\t"), bad.replace(b",", b"\t")
    if name == "a.jsonl":
        good, bad = b'{"text": "fine", "label": "no"}\n', b'{"text": "caf\xe9", "label": "yes"}\n'
    with pytest.raises(BadValue, match="row 2: the (line|record) is not UTF-8"):
        read(source(tmp_path, good + bad, name), YES_NO)


def test_csv_cells_become_labels_of_each_kind(tmp_path):
    table = 'text,label\nx,2.5\ny,\n"z,z",5\n'
    found = read(source(tmp_path, table, "a.csv"), SCORE)
    assert [float(target) for target in found.targets] == [0.5, 1.0]
    assert (found.report.unlabelled, found.inputs[1]) == (1, ("z,z",))
    table = 'text,label\nx,a|c\ny,[]\nz,"[""b""]"\nw,\n'
    found = read(source(tmp_path, table, "b.csv", separator="|"), TOPICS)
    assert [target.tolist() for target in found.targets] == [[1, 0, 1], [0, 0, 0], [0, 1, 0], [0, 0, 0]]
    table = "tokens\ttags\nred pill now\tB-x I-x O\n"
    found = read(source(tmp_path, table, "c.tsv", tokens="tokens", tags="tags", separator=" "), BIO)
    assert found.targets[0].tolist() == [1, 2, 0]
    table = 'text,spans\nred pill,"[{""start"": 0, ""end"": 8, ""label"": ""x""}]"\n'
    assert read(source(tmp_path, table, "d.csv", spans="spans"), BIO).targets[0].tolist() == [1, 2]
    for cell in ("six", "nan", "inf", "5.1", "1e400"):
        with pytest.raises(BadValue, match="row 1.*Allowed: 0 to 5"):
            read(source(tmp_path, f"text,label\nx,{cell}\n", "e.csv"), SCORE)


def test_separators_work_in_json_too_and_numbers_there_must_be_numbers(tmp_path):
    found = read(source(tmp_path, [{"text": "x", "label": "a, b"}], separator=","), TOPICS)
    assert found.targets[0].tolist() == [1, 1, 0]
    with pytest.raises(BadValue, match="a list of labels"):
        read(source(tmp_path, [{"text": "x", "label": "a"}]), TOPICS)
    with pytest.raises(BadValue, match="not a number in the task's range"):
        read(source(tmp_path, [{"text": "x", "label": "3"}]), SCORE)


def test_a_separator_of_labels_that_have_no_parts_is_refused(tmp_path):
    """It was taken without effect."""
    for task, label in ((YES_NO, "yes"), (SCORE, "3")):
        with pytest.raises(ConfigError, match=f"task '{task.name}': 'separator' would change nothing: .*multi_label"):
            read(source(tmp_path, f"text,label\nx,{label}\n", "a.csv", separator="/"), task)


def test_a_separator_at_the_end_or_twice_makes_no_label(tmp_path):
    """The cell was refused for a label without a name."""
    examples = read(source(tmp_path, "text,label\nx,a;c;\ny,b;;c\nz,; a\n", "a.csv", separator=";"), TOPICS)
    assert [target.tolist() for target in examples.targets] == [[1, 0, 1], [0, 1, 1], [1, 0, 0]]
    brief = Task(name="brief", kind="summarization")
    examples = read(source(tmp_path, "text,label\nx,a;;c;\n", "b.csv", separator=";"), brief)
    assert [target.tolist() for target in examples.targets] == [["a", "c"]]
    table = "tokens\ttags\nx y \tO B-x \nx z\tO O\n"
    examples = read(source(tmp_path, table, "c.tsv", tokens="tokens", tags="tags", separator=" "), BIO)
    assert [target.tolist() for target in examples.targets] == [[0, 1], [0, 0]]


def test_a_separator_after_the_last_choice_makes_no_choice(tmp_path):
    """The row was left out as one without choices; with a blank one between others it is: a label may be a place."""
    pick = Task(name="pick", kind="multiple_choice")
    table = "question,choices,label\nq,red;blue;,1\nq,red;blue; ,red\nq,red;;blue,1\n"
    found = read(source(tmp_path, table, "a.csv", separator=";"), pick)
    assert [question.options for question in found.inputs] == [("red", "blue")] * 2
    assert [int(target) for target in found.targets] == [1, 0] and found.report.empty == 1


def test_decimals_of_parquet_are_numbers(tmp_path):
    """They were guessed as numbers, and then refused as such."""
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    numbers, shares = [Decimal("2.50"), None, Decimal("5.00")], [Decimal("0.25"), Decimal("0.75"), Decimal("0.50")]
    columns = {"text": ["x", "y", "z"], "size": numbers, "mark": [Decimal(1), Decimal(0), Decimal(1)]}
    columns |= {"no": shares, "yes": [1 - share for share in shares], "both": [[Decimal(1), Decimal(0)]] * 3}
    parquet.write_table(pyarrow.table(columns), tmp_path / "a.parquet")
    place = Source(path=str(tmp_path / "a.parquet"))

    def targets(task, **columns):
        return [target.tolist() for target in read(replace(place, **columns), task).targets]

    assert targets(SCORE, label="size") == [0.5, 1.0]
    assert targets(Task(name="t", kind="single_label", labels=("0", "1")), label="mark") == [1, 0, 1]
    assert targets(Task(name="t", kind="multi_label", labels=("0", "1")), label="both") == [[1, 1]] * 3
    assert targets(YES_NO, soft=("no", "yes")) == [1, 0, 0]
    assert len(targets(YES_NO, soft=("no", "yes"), weight="mark")) == 3
    assert targets(SCORE, label="size", where={"mark": 1}) == [0.5, 1.0]
    for label, kind in (("size", "regression"), ("mark", "single_label")):
        facts = declare(InitOptions(data=place.path, kind=kind, name="t", text="text", label=label), tmp_path).entry
        assert facts.get("range", facts.get("labels")) == ([2.5, 5.0] if label == "size" else ["0", "1"])


def test_records_of_another_length_or_with_open_quotes_are_refused(tmp_path):
    for table, row in (("text,label\na,no\nb,yes,c\n", 2), ("text,label\nb\n", 1), ('text,label\na,no\n"b,yes\n', 2)):
        with pytest.raises(BadValue, match=f"row {row}"):
            read(source(tmp_path, table, "a.csv"), YES_NO)
    with pytest.raises(DataError, match="two columns of one name"):
        read(source(tmp_path, "text,text\n", "a.csv"), YES_NO)


def test_a_cell_of_a_thousand_brackets_is_a_cell(tmp_path):
    """Python's JSON gives up on it with an error of its own, which was taken for a fault of the program."""
    cell = "[" * 5000
    with pytest.raises(BadValue, match="row 1: a list of labels is needed"):
        read(source(tmp_path, f"text,label\nx,{cell}\n", "a.csv"), TOPICS)


def test_strings_of_parquet_that_are_not_utf_8_are_refused_by_rows(tmp_path):
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")

    raw = pyarrow.array([b"good", b"caf\xe9", b"bad"]).cast(pyarrow.binary())
    text = pyarrow.StringArray.from_buffers(3, raw.buffers()[1], raw.buffers()[2])
    path = str(tmp_path / "a.parquet")
    parquet.write_table(pyarrow.table({"text": text, "label": ["no", "no", "yes"]}), path)
    with pytest.raises(DataError, match="rows 1 to 3 holds a string that is not UTF-8"):
        read(Source(path=path), YES_NO)


def test_quotes_are_plain_characters_in_tsv(tmp_path):
    found = read(source(tmp_path, 'text\tlabel\n"so" he said\tno\n"open\tyes\n', "a.tsv"), YES_NO)
    assert found.inputs == [('"so" he said',), ('"open',)]


def test_a_cell_of_a_million_characters_is_read(tmp_path):
    text = "word " * 200_000
    assert read(source(tmp_path, f"text,label\n{text},no\n", "a.csv"), YES_NO).inputs == [(text,)]
    assert read(source(tmp_path, [{"text": text, "label": "no"}]), YES_NO).inputs == [(text,)]


@pytest.mark.parametrize("name", ["a.jsonl.gz", "a.csv.gz"])
def test_packed_files_are_read_and_damaged_ones_refused(tmp_path, name):
    content = b"text,label\nx,no\n" if "csv" in name else b'{"text": "x", "label": "no"}\n'
    packed = gzip.compress(content * 1 + b"")
    assert read(source(tmp_path, packed, name), YES_NO).inputs == [("x",)]
    for damaged in (packed[:-4], b"plain", packed[:12] + b"\xff" * 8):
        with pytest.raises(DataError, match="cannot read"):
            read(source(tmp_path, damaged, name), YES_NO)


def test_files_that_are_not_there_or_of_no_known_format_are_refused(tmp_path):
    with pytest.raises(DataError, match="no file at"):
        read(Source(path=str(tmp_path / "no.jsonl")), YES_NO)
    with pytest.raises(DataError, match="format"):
        read(source(tmp_path, "x", "a.txt"), YES_NO)
    (tmp_path / "folder.jsonl").mkdir()
    with pytest.raises(DataError, match="cannot read"):
        read(Source(path=str(tmp_path / "folder.jsonl")), YES_NO)


def test_pairs_need_both_texts(tmp_path):
    rows = [
        {"a": "one", "b": "two", "label": "yes"},
        {"a": "one", "b": "", "label": "yes"},
        {"a": "one", "label": "no"},
    ]
    found = read(source(tmp_path, rows, text="a", text_b="b"), PAIR)
    assert (found.inputs, found.report.empty) == ([("one", "two")], 2)
    with pytest.raises(ConfigError, match="text_b"):
        read(source(tmp_path, rows, text="a"), PAIR)
    with pytest.raises(ConfigError, match="text_b"):
        read(source(tmp_path, rows, text="a", text_b="b"), YES_NO)


def test_tokens_are_joined_and_keep_their_offsets(tmp_path):
    rows = [{"tokens": ["São", "Paulo", "!"], "tags": ["B-x", "I-x", "O"]}, {"tokens": [], "tags": []}]
    found = read(source(tmp_path, rows, tokens="tokens", tags="tags"), BIO)
    assert found.inputs == [("São Paulo !",)]
    assert [found.inputs[0][0][a:b] for a, b in found.words[0]] == ["São", "Paulo", "!"]
    assert found.words[0].dtype == np.int32
    assert (found.targets[0].tolist(), found.report.empty) == ([1, 2, 0], 1)
    for row in ({"tokens": ["a"], "tags": ["O", "O"]}, {"tokens": ["a", 3], "tags": ["O", "O"]}):
        with pytest.raises(BadValue, match="row 1"):
            read(source(tmp_path, [row], tokens="tokens", tags="tags"), BIO)
    with pytest.raises(UnknownLabel, match="I-y"):
        read(source(tmp_path, [{"tokens": ["a"], "tags": ["I-y"]}], tokens="tokens", tags="tags"), BIO)


def test_spans_become_tags_of_words(tmp_path):
    text = "order new phone, today"
    spans = [{"start": 17, "end": 22, "label": "y"}, {"start": 6, "end": 15, "label": "x"}]
    found = read(source(tmp_path, [{"text": text, "spans": spans}, {"text": "no", "spans": []}], spans="spans"), BIO)
    assert [target.tolist() for target in found.targets] == [[0, 1, 2, 0, 3], [0]]
    np.testing.assert_array_equal(found.words[0], words_of(text))
    assert found.report.lost == 0


@pytest.mark.parametrize(
    ("spans", "match"),
    [
        ("x", "must hold spans"),
        ([3], "cannot be read"),
        ([{"start": 0, "end": 1}], "cannot be read"),
        ([{"start": "0", "end": 1, "label": "x"}], "cannot be read"),
        ([{"start": 0, "end": 99, "label": "x"}], "outside the text"),
        ([{"start": 3, "end": 3, "label": "x"}], "outside the text"),
        ([{"start": -1, "end": 3, "label": "x"}], "outside the text"),
        ([{"start": 3, "end": 4, "label": "x"}], "holds no word"),
        ([{"start": 0, "end": 3, "label": "x"}, {"start": 1, "end": 5, "label": "y"}], "two labelled spans overlap"),
        ([{"start": 0, "end": 9, "label": "y"}], "label 'I-y'"),
    ],
)
def test_spans_that_mean_nothing_are_refused(tmp_path, spans, match):
    with pytest.raises(BadValue, match=match) as caught:
        read(source(tmp_path, [{"text": "new phone", "spans": spans}], spans="spans"), BIO)
    assert caught.value.row == 1


def test_the_error_for_columns_shows_what_was_named_and_no_object_of_the_program(tmp_path):
    with pytest.raises(ConfigError) as caught:
        read(Source(path="x.jsonl", text="t", label="l", tokens="words"), YES_NO)
    assert "Source(" not in str(caught.value)
    assert "text = 't', label = 'l', tokens = 'words'" in str(caught.value)


def test_tagging_columns_must_make_sense(tmp_path):
    path = written(tmp_path, [{"text": "x"}])
    for columns in ({}, {"tokens": "text"}, {"tokens": "a", "tags": "b", "spans": "c"}, {"tags": "a", "spans": "b"}):
        with pytest.raises(ConfigError, match="kind 'tagging' reads"):
            read(Source(path=path, **columns), BIO)
    with pytest.raises(ConfigError, match="for tasks of kind 'tagging'"):
        read(Source(path=path, tokens="text", tags="x"), YES_NO)


@pytest.mark.parametrize("twice", ["text", "label", "other"])
def test_parquet_with_two_columns_of_one_name_is_refused_as_csv_is(tmp_path, twice):
    """The last of them was taken in silence."""
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    names = ["text", "label", "other", twice]
    columns = [pyarrow.array([name, "yes"]) for name in ("a", "no", "x", "b")]
    parquet.write_table(pyarrow.table(columns, names=names), tmp_path / "a.parquet")
    csv = ",".join(names).encode() + b"\na,no,x,b\n"
    for path in (str(tmp_path / "a.parquet"), written(tmp_path, csv, "a.csv")):
        with pytest.raises(DataError, match=f"two columns of one name. Got: {twice}"):
            read(Source(path=path), YES_NO)


def test_a_parquet_struct_with_two_fields_of_one_name_is_refused_by_rows(tmp_path):
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    struct = pyarrow.StructArray.from_arrays([pyarrow.array(["a"]), pyarrow.array(["b"])], names=["f", "f"])
    parquet.write_table(pyarrow.table({"text": ["a"], "label": struct}), tmp_path / "a.parquet")
    with pytest.raises(DataError, match="rows 1 to 1"):
        read(Source(path=str(tmp_path / "a.parquet")), YES_NO)


def test_parquet_is_read_by_row_groups(tmp_path):
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")

    path = str(tmp_path / "a.parquet")
    texts = [f"text {i}" for i in range(10)]
    labels = [["a"] if i % 2 else None if i == 4 else [] for i in range(10)]
    table = pyarrow.table({"text": texts, "label": labels, "unused": [{"x": i} for i in range(10)], "n": range(10)})
    parquet.write_table(table, path, row_group_size=3)
    found = read(Source(path=path), TOPICS)
    assert found.rows == [1, 2, 3, 4, 6, 7, 8, 9, 10]
    assert (found.inputs[-1], found.targets[-1].tolist()) == (("text 9",), [1, 0, 0])
    assert read(Source(path=path, where={"n": 7}), TOPICS).rows == [8]
    with pytest.raises(MissingColumn, match="did you mean 'label'"):
        read(Source(path=path, label="labels"), TOPICS)
    with pytest.raises(DataError, match="cannot read"):
        read(Source(path=written(tmp_path, b"PAR1 nonsense", "b.parquet")), TOPICS)


def test_a_missing_package_is_named_with_its_install_line(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(MissingExtra, match=r"polyhead\[store\]"):
        read(source(tmp_path, b"", "a.parquet"), YES_NO)
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(MissingExtra, match="'datasets'"):
        read(Source(path="datasets:owner/name"), YES_NO)


class FakeSet(list):
    """As much of a `datasets.Dataset` as the reader uses."""

    def __init__(self, rows, features):
        super().__init__(rows)
        self.features = features


def test_sets_of_the_datasets_library_are_read_with_label_names(monkeypatch):
    asked = []
    classes = types.SimpleNamespace(names=["no", "yes"])
    features = {"text": types.SimpleNamespace(dtype="string"), "label": classes}

    def load(name, config, split):
        asked.append((name, config, split))
        return FakeSet([{"text": "x", "label": 1}, {"text": "y", "label": -1}], features)

    monkeypatch.setitem(sys.modules, "datasets", types.SimpleNamespace(load_dataset=load))
    found = read(Source(path="datasets:owner/name/config:test"), YES_NO)
    assert (found.inputs, found.rows, found.report.unlabelled) == ([("x",)], [1], 1)
    read(Source(path="datasets:name"), YES_NO)
    assert asked == [("owner/name", "config", "test"), ("name", None, "train")]


def test_reading_needs_no_optional_package():
    code = "import sys, polyhead.data.read; assert not {'pyarrow', 'datasets', 'torch'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


DATA = Path(os.environ.get("POLYHEAD_DATA", Path(__file__).parents[3] / "shared" / "data"))
REAL = {
    "tweeteval_irony": ("single_label", {}, {}),
    "glue_mrpc": ("single_label", {"pair": "joined"}, {"text": "text_a", "text_b": "text_b"}),
    "glue_stsb": ("regression", {"pair": "separate", "range": (0.0, 5.0)}, {"text": "text_a", "text_b": "text_b"}),
    "snips_slots": ("tagging", {}, {"tokens": "tokens", "tags": "tags"}),
    "wnut17": ("tagging", {}, {"tokens": "tokens", "tags": "tags"}),
    "ud_ewt_upos": ("tagging", {}, {"tokens": "tokens", "tags": "tags"}),
}


@pytest.mark.data
@pytest.mark.parametrize("name", REAL)
def test_real_sets_are_read_whole_and_perfect_answers_score_one(name):
    folder = DATA / name
    if not folder.is_dir():
        pytest.skip(f"no data set in {folder}; set POLYHEAD_DATA to where they are")
    meta = json.loads((folder / "meta.json").read_text())
    kind, fields, columns = REAL[name]
    task = Task(name=name, kind=kind, labels=tuple(meta["labels"] or ()), **fields)
    found = read(Source(path=str(folder / "test.jsonl.gz"), **columns), task)
    assert found.report.rows == meta["sizes"]["test"]
    assert found.report.used == found.report.rows
    if kind == "regression":
        outputs = [target.reshape(1) for target in found.targets]
    else:
        outputs = [np.eye(len(task.labels), dtype=np.float32)[target] for target in found.targets]
    assert found.scores(task, outputs)[kind_of(task).default_metric(task)] == pytest.approx(1)
    for row in range(0, len(outputs), 97):
        words = found.words[row] if found.words else None
        answer = kind_of(task).decode(task, outputs[row], Example(input=found.inputs[row], words=words))
        assert json.dumps(answer)


def test_several_columns_of_text_are_joined_without_the_empty_ones(tmp_path):
    rows = [
        {"title": "Hello", "body": "there", "label": "no"},
        {"title": " ", "body": "alone", "label": "yes"},
        {"title": None, "body": "", "label": "yes"},
        {"body": "without a title", "label": "no"},
    ]
    found = read(source(tmp_path, rows, text=("title", "body")), YES_NO)
    assert found.inputs == [("Hello\nthere",), ("alone",), ("without a title",)]
    assert found.report.empty == 1
    with pytest.raises(MissingColumn, match="subject"):
        read(source(tmp_path, rows, text=("subject", "body")), YES_NO)
    with pytest.raises(ConfigError, match="'text' names no column"):
        read(source(tmp_path, rows, text=()), YES_NO)


def test_groups_and_weights_are_read_where_a_file_has_them(tmp_path):
    rows = [
        {"text": "one", "label": "no", "who": 7, "times": "3"},
        {"text": "two", "label": None, "who": 7, "times": 9},
        {"text": "three", "label": "yes", "who": None, "times": 1},
    ]
    columns = {"group": "who", "weight": "times"}
    found = read(source(tmp_path, rows, **columns), YES_NO)
    assert found.groups == ["7", None] and found.weights == [1.0, 1 / 3]
    np.testing.assert_array_equal(np.stack(found.taught), [[1, 0], [0, np.float32(1 / 3)]])
    assert found.take([1]).groups == [None] and found.take([1]).weights == [1 / 3]
    bare = read(source(tmp_path, [{"text": "one", "label": "no"}], **columns), YES_NO)
    assert bare.groups is None and bare.weights is None
    rows[2]["times"] = -1
    with pytest.raises(BadValue, match="row 3: 'times' is no weight"):
        read(source(tmp_path, rows, **columns), YES_NO)
    with pytest.raises(ConfigError, match="'weight' is for tasks of kind 'single_label'"):
        read(source(tmp_path, [{"text": "one", "label": ["a"]}], **columns), TOPICS)
