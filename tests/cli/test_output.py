"""Tables, counts and files as commands write them."""

import io
import json
import sys

import pytest

from polyhead.cli.output import Printer, counted, in_bytes, text_table, write_rows, writing_file
from polyhead.data.rows import Rows
from polyhead.errors import ConfigError
from support.cases import cases
from support.commands import run


def test_columns_are_aligned_left_and_right():
    lines = text_table([["task", "n"], ["a", 5], ["long name", 1000]], left=1)
    assert lines == ["task          n", "a             5", "long name  1000"]


def test_one_is_not_several():
    assert [counted(n, "task") for n in (0, 1, 2, 1234)] == ["0 tasks", "1 task", "2 tasks", "1,234 tasks"]
    assert counted(2, "pass", several="passes") == "2 passes"


@cases(("number", "said"), [(0, "0 B"), (999, "999 B"), (1000, "1 KB"), (2_970_000, "2.97 MB"), (10**13, "10 TB")])
def test_bytes_have_three_digits(number, said):
    assert in_bytes(number) == said


def test_a_file_takes_its_name_when_it_is_whole(tmp_path):
    path = tmp_path / "x"
    path.write_text("older")
    with writing_file(str(path)) as file:
        file.write(b"newer")
        assert path.read_text() == "older"
    assert path.read_text() == "newer"


def test_rows_of_csv_are_read_back_whatever_ends_lines_in_their_texts(tmp_path):
    rows = [{"row": 1, "text": text, "label": None} for text in ("good\rnews", "a\nb", 'a, "b"')]
    write_rows(str(tmp_path / "x.csv"), ("row", "text", "label"), rows)
    assert [row.values["text"] for row in Rows(str(tmp_path / "x.csv"))] == [row["text"] for row in rows]


def test_what_was_written_before_a_failure_stays_beside_the_older_file(tmp_path, capsys):
    path = tmp_path / "x"
    path.write_text("older")
    with pytest.raises(RuntimeError), writing_file(str(path)) as file:
        file.write(b"half")
        raise RuntimeError
    assert path.read_text() == "older"
    assert (tmp_path / "x.partial").read_text() == "half"
    assert "x.partial" in capsys.readouterr().err


def test_two_writers_of_one_file_do_not_mix(tmp_path):
    """Both wrote one temporary file; the result was a mixture of the two, and said to be whole."""
    path = str(tmp_path / "x")
    with writing_file(path) as file:
        file.write(b"first")
        with pytest.raises(ConfigError, match="another process is writing it"), writing_file(path):
            pytest.fail("both write")
    assert (tmp_path / "x").read_bytes() == b"first"
    with writing_file(path) as file:
        file.write(b"second")
    assert (tmp_path / "x").read_bytes() == b"second" and [f.name for f in tmp_path.iterdir()] == ["x"]


def test_a_symbolic_link_stays_one(tmp_path):
    (tmp_path / "disk").mkdir()
    (tmp_path / "x").symlink_to(tmp_path / "disk" / "y")
    with writing_file(str(tmp_path / "x")) as file:
        file.write(b"new")
    assert (tmp_path / "x").is_symlink() and (tmp_path / "disk" / "y").read_bytes() == b"new"


def test_a_failure_before_anything_was_written_leaves_nothing(tmp_path):
    with pytest.raises(RuntimeError), writing_file(str(tmp_path / "x")):
        raise RuntimeError
    assert list(tmp_path.iterdir()) == []


def test_json_that_cannot_be_written_is_refused_at_once(tmp_path):
    with pytest.raises(ConfigError, match="no folder"):
        Printer(str(tmp_path / "no" / "x"))


def test_progress_replaces_its_line_on_a_terminal_and_is_silent_elsewhere(monkeypatch):
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    printer = Printer()
    printer.show("a long line")
    printer.show("short")
    printer.show("")
    assert terminal.getvalue() == "\ra long line\rshort      \r     \r"
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    printer.show("nothing")
    assert sys.stderr.getvalue() == ""
    monkeypatch.setattr(sys, "stderr", None)
    printer.show("nothing")


# what a command must not write over


@pytest.fixture
def inputs(home, tmp_path):
    """The bundle, a file of texts and a table of them."""
    (tmp_path / "texts.txt").write_text("anna the lamp is broken\n")
    (tmp_path / "table.csv").write_text("id,text\n1,the lamp is good\n")
    return home / "bundle", tmp_path / "texts.txt", tmp_path / "table.csv"


def test_what_a_command_reads_or_writes_is_not_written_over_by_another_option(inputs, tmp_path):
    """Each of these replaced a file of the user's without a word."""
    bundle, texts, table = inputs
    before = {path: path.read_bytes() for path in (texts, table)}
    (tmp_path / "other-name.txt").symlink_to(texts)
    predict = ("predict", bundle, texts, "--backend", "reference", "-o")
    run(*predict, texts).refuses("it is FILE and --output of this command", "name another file")
    run(*predict, tmp_path / "other-name.txt").refuses("--output of this command")
    out, score = tmp_path / "out.csv", ("score", bundle, table)
    run(*score, out, "--json", table).refuses("IN and --json of this command")
    run(*score, out, "--json", out).refuses("OUT and --json of this command")
    run("init", table, "--kind", "single_label", "--label", "id", "-o", table).refuses("--output of this")
    words = ("init", table, "--kind", "single_label", "--label", "id", "-o", tmp_path / "p.toml")
    run(*words, "--json", table).refuses("--json of this command")
    assert {path: path.read_bytes() for path in before} == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["other-name.txt", "table.csv", "texts.txt"]


def test_a_file_of_a_bundle_is_not_written_over(inputs):
    bundle, texts, _ = inputs
    before = (bundle / "bundle.json").read_bytes()
    words = ("predict", bundle, texts, "--backend", "reference")
    for name in ("bundle.json", "notes.txt", "trunk/trunk.json"):
        run(*words, "-o", bundle / name).refuses("a file of the bundle", "outside of it")
        run("inspect", bundle, "--json", bundle / name).refuses("a file of the bundle")
    assert (bundle / "bundle.json").read_bytes() == before and not (bundle / "notes.txt").exists()


def test_a_report_replaces_json_and_nothing_else(inputs, tmp_path):
    bundle, texts, table = inputs
    (tmp_path / "two.jsonl").write_text('{"text": "a"}\n{"text": "b"}\n')
    (tmp_path / "latin.json").write_bytes('{"n": "café"}'.encode("latin-1"))
    for other in (texts, table, tmp_path / "two.jsonl", tmp_path / "latin.json"):
        run("inspect", bundle, "--json", other).refuses("something other than JSON", "name another file")
    report = tmp_path / "report.json"
    for old in ("", '{"older": 1}'):
        report.write_text(old)
        assert run("inspect", bundle, "--json", report).code == 0
        assert "tasks" in json.loads(report.read_text())
