"""Lines of input: a file that is read whole names itself in its errors."""

import pytest

from polyhead.cli.lines import read_lines
from polyhead.errors import DataError


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
    with pytest.raises(DataError, match="no file at"):
        read_lines(str(tmp_path / "none"))
