"""Files of labels: what is read again, what a crash left, and labels that are not declared."""

import pytest

from polyhead.check.active_learning import LabelFile, answers_in, rows_with_text
from polyhead.errors import BadValue, UnknownLabel

TEXTS = {1: "hello", 2: "world"}
FIRST = b'{"row":1,"text":"hello","label":"good"}'


def test_the_last_answer_of_a_file_without_a_last_end_of_line_stays(tmp_path):
    """An editor had left out the end; the answer was deleted, and the next one would have been written behind it."""
    file = LabelFile(tmp_path / "labelled.jsonl")
    file.path.write_bytes(FIRST)
    assert file.read(TEXTS, ["good", "bad"]) == {1: "good"}
    file.add(2, "world", "bad")
    assert file.read(TEXTS, ["good", "bad"]) == {1: "good", 2: "bad"}
    assert file.path.read_bytes().count(b"\n") == 2


def test_what_a_crash_left_of_a_line_is_removed(tmp_path):
    file = LabelFile(tmp_path / "labelled.jsonl")
    for left in (FIRST[:-1], b'{"row":2,"text":"w\xc3', b"{"):
        file.path.write_bytes(FIRST + b"\n" + left)
        assert file.read(TEXTS, ["good", "bad"]) == {1: "good"}
        assert file.path.read_bytes() == FIRST + b"\n"


def test_answers_of_rows_and_labels_that_do_not_exist_are_refused(tmp_path):
    file = tmp_path / "answers.csv"
    for row, label, error in (("²", "good", BadValue), ("3", "good", BadValue), ("1", "Good", UnknownLabel)):
        file.write_text(f"row,text,label\n{row},hello,{label}\n")
        with pytest.raises(error):
            list(answers_in(str(file), TEXTS, ["good", "bad"]))


def test_labels_are_read_as_other_programs_write_them(tmp_path):
    file = tmp_path / "answers.csv"
    file.write_text("row,text,label\n1,hello,TRUE\n2,world,false\n")
    assert list(answers_in(str(file), TEXTS, ["true", "false"])) == [(1, "true"), (2, "false")]
    file = tmp_path / "texts.jsonl"
    file.write_text('{"text":"a","label":true}\n{"text":"b","label":2.0}\n{"text":"c","label":" "}\n')
    assert [text.label for text in rows_with_text(str(file), "text", "label")] == ["true", "2", None]
