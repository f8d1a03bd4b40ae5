"""`polyhead score`: options, what is printed, exit codes, and a process that is killed."""

import csv
import json
import os
import signal
import subprocess
import sys
import time

import pytest

from support import tiny_project
from support.commands import environment, run, shell

NO_TORCH = "import sys; sys.modules['torch'] = None; sys.modules['transformers'] = None"
SMALL_PIECES = "from polyhead.store.jobs import score; score.__kwdefaults__['piece_rows'] = 16"


@pytest.fixture
def table(tmp_path):
    """A CSV file of twenty rows: fifteen good ones, a pair, an empty text, and three with a line end inside."""
    path = tmp_path / "in.csv"
    rows = [{"id": i, "text": f"the lamp is good {i}", "text_b": ""} for i in range(15)]
    rows += [{"id": 15, "text": "the lamp is good", "text_b": "the box is bad"}, {"id": 16, "text": " "}]
    rows += [{"id": i, "text": 'the "lamp"\nis late', "text_b": ""} for i in range(17, 20)]
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, ("id", "text", "text_b"))
        writer.writeheader()
        writer.writerows(rows)
    return path


def score(home, *words, **options):
    return run("score", home / "bundle", *words, "--backend", "reference", **options)


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_every_row_is_written_with_a_column_a_task(home, table, tmp_path):
    done = score(home, table, tmp_path / "out.jsonl")
    assert done.code == 0, done.err
    rows = lines(tmp_path / "out.jsonl")
    assert [int(row["id"]) for row in rows] == list(range(20))
    columns = ["id", "text", "text_b", "mood", "topics", "urgency", "names", "same", "alike"]
    assert list(rows[0]) == columns and list(rows[16]) == [*columns, "error"]
    assert rows[0]["same"] is None and rows[15]["mood"] is None and rows[15]["same"] in ("yes", "no")
    assert rows[16]["error"] == "the text is empty" and rows[17]["text"] == 'the "lamp"\nis late'


def test_numbers_that_become_null_are_told(home, tmp_path):
    (tmp_path / "in.jsonl").write_text('{"text": "good", "x": NaN}\n{"text": "bad", "x": 1.5}\n')
    done = score(home, tmp_path / "in.jsonl", tmp_path / "out.jsonl", "--tasks", "mood")
    assert [row["x"] for row in lines(tmp_path / "out.jsonl")] == [None, 1.5]
    assert "1 number of the table not finite (NaN, Infinity): written as null" in done.err


def test_what_is_printed_is_what_json_holds(home, table, tmp_path):
    done = score(home, table, tmp_path / "out.csv", "--tasks", "mood,same", "--json", tmp_path / "said.json")
    said = json.loads((tmp_path / "said.json").read_text())
    assert done.out.splitlines()[0] == f"{tmp_path / 'out.csv'}: 20 rows, 2 tasks"
    assert ("texts a second" in done.out or " s each" in done.out) and "19 passes of the encoder" in done.out
    assert done.out.splitlines()[-1].endswith("does not fit the task: mood for 1, same for 18")
    assert "1 row not answered: column 'error' says why" in done.err
    assert (said["tasks"], said["columns"]) == (["mood", "same"], ["mood", "same", "error"])
    counts = said["counts"]
    assert (counts["rows"], counts["errors"], counts["passes"]) == (20, 1, 19)
    assert counts["unanswered"] == {"mood": 2, "same": 19} and counts["tokens"] > 19 * 3
    assert said["texts_a_second"] == pytest.approx(20 / said["seconds"], rel=1e-4)


@pytest.mark.parametrize("verb", ["predict", "score"])
@pytest.mark.parametrize("content", ["id,text\n1,a,b\n2,\n", "id,text\n1,\n", "id,text\n1,a,b\n"])
def test_a_table_of_which_no_row_is_answered_ends_with_an_error_after_all_is_written(home, tmp_path, verb, content):
    """It ended with 0, so that a script took a file without an answer for success."""
    (tmp_path / "in.csv").write_text(content)
    words = ["in.csv", *(["-o"] if verb == "predict" else []), "out.csv", "--json", "said.json"]
    done = run(verb, home / "bundle", *words, "--backend", "reference", cwd=tmp_path)
    done.refuses("not answered: column 'error' says why", "no row")
    rows, said = lines_of_csv(tmp_path / "out.csv"), json.loads((tmp_path / "said.json").read_text())
    assert len(rows) == said["counts"]["rows"] == said["counts"]["errors"] and all(row["error"] for row in rows)


def lines_of_csv(path):
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_rows_without_answers_are_said_by_their_reason(home, table, tmp_path, monkeypatch):
    """Failed rows were taken off those that do not fit, and rows with other answers called not answered."""
    tiny_project.fail_heads(monkeypatch, "mood")
    with table.open("a") as file:
        file.write("20,too,many,cells\n")
    words = ("--tasks", "mood,urgency,same", "--json", tmp_path / "said.json")
    done = score(home, table, tmp_path / "out.jsonl", *words)
    assert done.code == 0, done.err
    assert done.out.splitlines()[-2:] == [
        "no answer, since the row does not fit the task: mood for 1, urgency for 1, same for 18",
        "no answer, since the task failed: mood for 18",
    ]
    assert "2 rows not answered: column 'error' says why (1 that could not be read, 1 that fit no task)" in done.err
    assert "18 rows not answered by every task: column 'error' names those that failed" in done.err
    counts = json.loads((tmp_path / "said.json").read_text())["counts"]
    assert (counts["errors"], counts["unread"], counts["idle"], counts["partly"]) == (20, 1, 1, 18)


def test_columns_are_chosen_and_named(home, table, tmp_path):
    words = ("--tasks", "mood", "--text", "text_b", "--prefix", "our_", "--scores", "--keep", "id,text")
    score(home, table, tmp_path / "out.jsonl", *words)
    empty, row = lines(tmp_path / "out.jsonl")[14:16]
    assert list(row) == ["id", "text", "our_mood", "our_mood.scores"]
    assert "row 15: column 'text_b' is empty" in empty["our_error"]
    assert sum(row["our_mood.scores"].values()) == pytest.approx(1.0)
    score(home, table, tmp_path / "bare.jsonl", "--tasks", "mood", "--only-answers")
    assert list(lines(tmp_path / "bare.jsonl")[0]) == ["mood"]
    score(home, table, tmp_path / "x.csv", "--keep", "id", "--only-answers").refuses("--only-answers", code=2)


def test_mistakes_are_said_at_the_start(home, table, tmp_path):
    out = tmp_path / "out.csv"
    score(home, table, out, "--scores", "--tasks", "urgency").refuses("none of the tasks scores labels", "regression")
    score(home, table, out, "--text", "texts").refuses("MissingColumn", "'texts'", "did you mean 'text'")
    score(home, table, out, "--tasks", "mod").refuses("UnknownTask", "'mod'")
    score(home, tmp_path / "none.csv", out).refuses("no file at")
    score(home, table, tmp_path / "out.xls").refuses("not known by its name", ".parquet")
    score(home, table, table).refuses("IN and OUT of this command")
    score(home, table, out, "--precision", "bfloat16").refuses("float32")
    (tmp_path / "labelled.csv").write_text("text,mood\ngood,x\n")
    score(home, tmp_path / "labelled.csv", out).refuses("same names", "mood", "--prefix answer_", "answer_mood")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in.csv", "labelled.csv"]


def test_the_prefix_that_is_advised_lets_a_labelled_table_through(home, tmp_path):
    for columns, prefix in (("text,mood", "answer_"), ("text,mood,answer_mood", "answer_answer_")):
        table, out = tmp_path / "gold.csv", tmp_path / f"{prefix}.csv"
        table.write_text(f"{columns}\ngood{',x' * columns.count(',')}\n")
        words = ("--tasks", "mood", "--prefix", prefix)
        score(home, table, out, "--tasks", "mood").refuses(f"--prefix {prefix},", f"{prefix}mood")
        assert score(home, table, out, *words).code == 0
        assert out.read_text().startswith(f"{columns},{prefix}mood,")


def test_a_column_that_makes_what_no_task_reads_is_refused(home, table, tmp_path):
    """All rows were answered by nobody, and the command ended well."""
    words = ("--tasks", "mood", "--text-b", "id")
    score(home, table, tmp_path / "out.csv", *words).refuses("none of the tasks reads", "mood reads a text")
    assert not (tmp_path / "out.csv").exists()


def test_an_older_output_is_replaced_by_a_whole_one_alone(home, table, tmp_path):
    out = tmp_path / "out.jsonl"
    out.write_text("older\n")
    score(home, table, out, "--text", "none").refuses("none")
    assert out.read_text() == "older\n"
    score(home, table, out, "--tasks", "mood")
    assert len(lines(out)) == 20


@pytest.mark.slow
def test_a_killed_command_goes_on_and_writes_the_same_bytes(home, tmp_path):
    """Killed by the system once its second piece is there; then the same words, once refused and once begun anew."""
    source, out = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    source.write_text("".join(json.dumps({"text": f"the lamp is good {i}"}) + "\n" for i in range(320)))
    words = [str(w) for w in ("score", home / "bundle", source, out, "--backend", "reference", "--scores")]
    code = f"import sys; {SMALL_PIECES}\nfrom polyhead.cli.main import main\nmain(sys.argv[1:])"
    process = subprocess.Popen(
        [sys.executable, "-c", code, *words], env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    piece, until = tmp_path / ".out.jsonl.pieces" / "00000001.piece", time.monotonic() + 100
    while not piece.exists() and time.monotonic() < until and process.poll() is None:
        time.sleep(0.001)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert process.returncode == -signal.SIGKILL and piece.exists() and not out.exists()

    shell([*words, "--tasks", "mood"], before=SMALL_PIECES).refuses("other tasks, or other versions", "--fresh")
    done = shell(words, before=SMALL_PIECES)
    assert done.code == 0, done.err
    assert "were answered before" in done.out
    whole = tmp_path / "whole.jsonl"
    assert shell([*words[:3], whole, *words[4:]], before=SMALL_PIECES).code == 0
    assert out.read_bytes() == whole.read_bytes() and len(lines(out)) == 320
    assert sorted(os.listdir(tmp_path)) == ["in.jsonl", "out.jsonl", "whole.jsonl"]


@pytest.mark.slow
def test_neither_torch_nor_pyarrow_is_needed_for_lines(home, table, tmp_path):
    before = f"{NO_TORCH}; sys.modules['pyarrow'] = None"
    words = ["score", home / "bundle", table, tmp_path / "out.csv", "--backend", "reference"]
    assert shell(words, before=before).code == 0
    words[3] = tmp_path / "out.parquet"
    shell(words, before=before).refuses("pip install 'polyhead[store]'", "writing Parquet")
    (tmp_path / "in.parquet").write_bytes(b"PAR1")
    words[2:4] = tmp_path / "in.parquet", tmp_path / "more.csv"
    shell(words, before=before).refuses("pip install 'polyhead[store]'", "reading in.parquet")
