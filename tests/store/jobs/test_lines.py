"""Lines of input: a file that is read whole names itself in its errors."""

import csv
import json

import pytest

from polyhead.errors import DataError
from polyhead.store.jobs.lines import lines_read, read_lines, read_texts


def test_a_file_of_lines_is_read_and_blank_ones_are_passed_over(tmp_path):
    file = tmp_path / "texts.jsonl"
    file.write_bytes(b'plain\r\n\r\n{"text": "a", "text_b": "b", "id": 7}\r"quoted"')
    lines = read_lines(str(file))
    assert [line.input for line in lines] == [("plain",), ("a", "b"), ("quoted",)]
    assert [line.id for line in lines] == [None, 7, None]


def test_an_error_names_the_file_and_the_line(tmp_path):
    file = tmp_path / "texts.jsonl"
    file.write_text('one\n\n{"text": \n')
    with pytest.raises(DataError, match=r"line 3 is not JSON") as raised:
        read_lines(str(file))
    assert str(file) in str(raised.value) and "--format" not in str(raised.value)
    file.write_text('one\n{"text": "a", "text": "b"}\n')  # of which the last was answered
    with pytest.raises(DataError, match=r"line 2: an object names a key twice. Got: text"):
        read_lines(str(file))
    with pytest.raises(DataError, match="no file at"):
        read_lines(str(tmp_path / "none"))


def test_texts_of_a_table_are_those_of_the_same_lines(tmp_path):
    texts = ["the lamp is good", "anna, who works here", "two\nlines"]
    with (tmp_path / "a.csv").open("w", newline="") as file:
        csv.writer(file).writerows([["id", "message"], *([str(i), text] for i, text in enumerate(texts))])
    (tmp_path / "b.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    (tmp_path / "c.jsonl").write_text("".join(json.dumps({"message": text}) + "\n" for text in texts))
    read = [
        [line.input for line in read_texts(str(tmp_path / name), column)]
        for name, column in (("a.csv", "message"), ("b.jsonl", None), ("c.jsonl", "message"))
    ]
    assert read == [[(text,) for text in texts]] * 3
    (tmp_path / "d.csv").write_text('text\nfine\n""\n')
    with pytest.raises(DataError, match="d.csv row 2"):
        read_texts(str(tmp_path / "d.csv"), None)
    with pytest.raises(DataError, match="message"):
        read_texts(str(tmp_path / "d.csv"), "message")


def test_an_id_that_json_does_not_hold_is_no_null():
    """It came back as null, so that the answer was nobody's."""
    for name in ("NaN", "-Infinity", "1e999", '{"of": [NaN]}'):
        rows, lines = lines_read([(7, f'{{"id": {name}, "text": "x"}}'.encode())], "auto")
        assert lines == [] and rows[0]["line"] == 7 and "id" not in rows[0]
        assert "line 7: the id holds NaN or infinity" in rows[0]["error"]
    for name in ("7", "1.5", '"NaN"', "12345678901234567890123", '{"of": [1]}'):
        rows, lines = lines_read([(7, f'{{"id": {name}, "text": "x"}}'.encode())], "auto")
        assert rows == [{"line": 7, "id": json.loads(name)}] and lines[0].id == json.loads(name)
