"""`polyhead predict` with what stands on the command line: texts, files, tables, and what is none of them."""

import csv
import json

import pytest

from polyhead.cli.sources import TextInput, command_for, given_in, looks_like_a_path
from polyhead.store.jobs.lines import columns_of_header
from support.cases import cases
from support.commands import run

TEXT = "anna the lamp is broken"
ROWS = [{"id": "1", "message": "the lamp is good"}, {"id": "2", "message": "the box, is bad"}]
CSV = 'id,message\n1,the lamp is good\n2,"the box, is bad"\n'


def predict(home, *words, **options):
    return run("predict", home / "bundle", *words, "--backend", "reference", "--tasks", "mood", **options)


def test_texts_are_answered_as_lines_of_standard_input_are(home):
    texts = [TEXT, "good", json.dumps({"text": "the box is bad", "id": 7})]
    by_words, by_lines = predict(home, *texts), predict(home, stdin="\n".join(texts) + "\n")
    assert by_words.code == 0 and by_words.rows == by_lines.rows
    assert [row["line"] for row in by_words.rows] == [1, 2, 3] and by_words.rows[2]["id"] == 7


def test_a_text_may_look_like_an_option_after_two_dashes_and_blank_ones_are_counted(home):
    done = run("predict", "--backend", "reference", home / "bundle", "--", "good", " ", "--bad")
    assert [row["line"] for row in done.rows] == [1, 3] and "1 blank line skipped" in done.err
    predict(home, " ").refuses("the command line holds no line")


def test_a_text_with_line_ends_is_one_text(home):
    (row,) = predict(home, "the lamp\n\nis good").rows
    (same,) = predict(home, stdin=json.dumps("the lamp\n\nis good")).rows
    assert row == same


def test_an_argument_that_names_a_file_is_the_file(home, tmp_path):
    (tmp_path / "good").write_text("bad\nbroken\nlate\n")
    assert len(predict(home, "good", cwd=tmp_path).rows) == 3
    predict(home, "good", "bad", cwd=tmp_path).refuses("good is a file", code=2)
    (tmp_path / "happy").mkdir()
    predict(home, "happy", cwd=tmp_path).refuses("'happy' is a folder", code=2)


@cases(
    "word, is_path",
    [
        ("gone.csv", True),
        ("gone.jsonl", True),
        ("see my list.tsv", True),
        ("gone.parquet", True),
        ("GONE.TXT", True),
        ("gone.csv.gz", True),
        ("./gone", True),
        ("/gone", True),
        ("data/gone", True),
        ("and/or", False),
        ("good", False),
        ("is it in the file.csv or not", False),
        ("what of data/gone", False),
        ("50 km/h", False),
        ("", False),
        ("x" * 10_000 + "/", False),
    ],
)
def test_what_looks_like_a_path_is_known_by_its_ending_or_its_folder(word, is_path, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data").mkdir(exist_ok=True)
    assert looks_like_a_path(word) == is_path


def test_a_missing_file_is_told_and_not_answered_as_a_text(home, tmp_path):
    done = predict(home, "gone.csv", cwd=tmp_path).refuses("DataError", "no file at gone.csv")
    assert done.out == ""
    assert given_in(["good", "and/or"]) == TextInput(texts=("good", "and/or"))


@pytest.mark.parametrize("ending", [".csv", ".tsv", ".jsonl", ".json", ".xlsx", ".parquet"])
def test_the_rows_of_a_table_are_answered_as_their_texts_are(home, tmp_path, ending):
    file, out = tmp_path / f"in{ending}", tmp_path / "out.csv"
    if ending == ".parquet":
        pyarrow = pytest.importorskip("pyarrow")
        pytest.importorskip("pyarrow.parquet").write_table(pyarrow.Table.from_pylist(ROWS), file)
    elif ending == ".xlsx":
        book = pytest.importorskip("openpyxl").Workbook()
        for cells in [list(ROWS[0]), *(list(row.values()) for row in ROWS)]:
            book.active.append(cells)
        book.save(file)
    elif ending == ".json":
        file.write_text(json.dumps(ROWS, indent=1))
    elif ending == ".jsonl":
        file.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    else:
        file.write_text(CSV if ending == ".csv" else "id\tmessage\n1\tthe lamp is good\n2\tthe box, is bad\n")
    done = predict(home, file, "--text", "message", "-o", out)
    assert done.code == 0, done.err
    with out.open(newline="") as opened:
        rows = list(csv.DictReader(opened))
    wanted = [row["answers"]["mood"]["label"] for row in predict(home, *(row["message"] for row in ROWS)).rows]
    assert [row["mood"] for row in rows] == wanted
    assert [{name: row[name] for name in ROWS[0]} for row in rows] == ROWS
    assert predict(home, file, "--text", "message", "-o", tmp_path / "out.jsonl").code == 0
    assert [json.loads(line)["mood"] for line in (tmp_path / "out.jsonl").read_text().splitlines()] == wanted


def test_a_table_that_has_a_column_of_a_tasks_name_gets_the_answers_under_another_one(home, tmp_path):
    """The advice in the error is an option of the command."""
    file, out = tmp_path / "in.csv", tmp_path / "out.csv"
    file.write_text("message,mood\nthe lamp is good,bad\n")
    words = (file, "--text", "message", "-o", out)
    predict(home, *words).refuses("ConfigError", "--prefix")
    assert predict(home, *words, "--prefix", "new ", "--scores", "--keep", "mood").code == 0
    assert out.read_text().splitlines()[0] == "mood,new mood,new mood.scores,new error"
    predict(home, "good", "--scores").refuses("--scores is for the rows of a table", code=2)


def test_a_form_of_lines_does_not_go_with_columns(home, tmp_path):
    """The rows of the table were answered, and `--format` was ignored without a word."""
    file, out = tmp_path / "in.csv", tmp_path / "out.csv"
    file.write_text(CSV)
    predict(home, file, "--text", "message", "-o", out, "--format", "json").refuses("--format", "--text", code=2)
    assert not out.exists()


def test_a_table_needs_a_place_for_its_rows_and_a_column_needs_a_table(home, tmp_path):
    file = tmp_path / "in.csv"
    file.write_text(CSV)
    predict(home, file, "--text", "message").refuses("-o answered.csv", code=2)
    predict(home, file, "--text", "mesage", "-o", tmp_path / "out.csv").refuses(
        "MissingColumn", "did you mean 'message'?"
    )
    predict(home, file, "--text", "message", "-o", file).refuses("cannot write")
    predict(home, "good", "--text", "message", "-o", tmp_path / "out.csv").refuses("give its FILE", code=2)
    predict(home, "--text", "message", stdin=CSV).refuses("give its FILE", code=2)
    assert file.read_text() == CSV and not (tmp_path / "out.csv").exists()


def test_a_file_of_rows_is_refused_with_a_command_that_answers_it(home, tmp_path):
    """The command that is printed is run as it stands."""
    import shlex

    (tmp_path / "my data.csv").write_text(CSV)
    done = predict(home, "my data.csv", cwd=tmp_path).refuses("DataError")
    command = done.err.split("`")[1]
    assert command == f"polyhead predict {home / 'bundle'} 'my data.csv' --text message -o answered.csv"
    assert run(*shlex.split(command)[1:], "--backend", "reference", cwd=tmp_path).code == 0
    assert len((tmp_path / "answered.csv").read_text().splitlines()) == 3


@cases(
    "content",
    [
        CSV,
        "text\tlabel\ngood\t1\n",
        "Nr;Nachricht;Klasse\n1;gut;a\n2;schlecht;b\n3;gut;a\n",
        "label,text\n",
        "\ufeffid,text\n1,good\n",
    ],
)
def test_a_table_that_is_piped_in_is_refused_and_no_line_of_it_is_answered(home, content):
    done = predict(home, stdin=content).refuses("DataError", "standard input holds a table", "--text ", "--format text")
    assert done.out == ""
    assert len(predict(home, "--format", "text", stdin=content).rows) == len(content.splitlines())


@cases(
    "content",
    [
        "good, bad\nlate, sad\n",
        "the lamp, which is broken\nthe box\n",
        "yes,no\ngood,bad\n",
        "Hello, text\n",
        "text\ngood\n",
        "good,late,sad\nwhy\n",
    ],
)
def test_lines_with_commas_are_still_texts(home, content):
    done = predict(home, stdin=content)
    assert done.code == 0 and len(done.rows) == len(content.splitlines())


def test_a_file_without_an_ending_that_holds_a_table_is_refused_too(home, tmp_path):
    (tmp_path / "rows.txt").write_text(CSV)
    assert predict(home, tmp_path / "rows.txt").refuses("rows.txt holds a table").out == ""


def test_the_columns_of_a_header_are_read_and_the_likeliest_holds_the_texts():
    assert columns_of_header([b"id;body;label\r", b"1;a;b"]) == ["id", "body", "label"]
    assert columns_of_header([]) is None
    assert columns_of_header([b'"id","text"']) == ["id", "text"]
    assert columns_of_header([b"text,text"]) is None
    assert command_for("b", "x.tsv.gz", ["Id", "Text"]).endswith("x.tsv.gz --text Text -o answered.csv")
    assert command_for("b", "x.parquet", ["a", "c"]).endswith("--text COLUMN -o answered.parquet")
