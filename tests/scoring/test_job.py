"""Every row once, in order: after a kill, a full disk, an interruption; and never more rows held than a few pieces."""

import errno
import json
import weakref

import pytest

from disk import FullDisk, fsync, run_forking
from polyhead import scoring
from polyhead.engine.session import Session
from polyhead.errors import ConfigError, DataError, EmptyData, MissingColumn, UnknownTask
from polyhead.files import held
from polyhead.tasks import rows as rows_module
from scoring.scored import make_bundle, read, run, texts, write

KILLED = """
import os, sys
from pathlib import Path
from disk import Kill, exit_code, fsync
from polyhead.engine.session import Session
from scoring.scored import run

bundle, folder, ending, again = sys.argv[1], Path(sys.argv[2]), sys.argv[3], sys.argv[4] == "again"
if ending == ".parquet":
    import pyarrow.parquet  # once for all that are forked
os.fsync = fsync
session = Session(bundle, backend="reference")

def attempt(out, deadly):
    pieces = len(list(folder.glob(f".{out.name}.pieces/0*.piece")))
    is_whole = out.exists()
    if os.fork() == 0:
        if deadly:
            Kill(deadly)
        done = run(session, folder / "in.jsonl", out, tasks=("mood", "urgency"), scores=True)
        assert is_whole or done.done_before == min(3 * pieces, done.counts.rows)  # none is answered twice
        os._exit(0)
    return exit_code()

assert attempt(folder / f"whole{ending}", 0) == 0
wanted, kills, deadly, code = (folder / f"whole{ending}").read_bytes(), 0, 13 if again else 0, 9
out = folder / f"out{ending}"
while code:
    deadly += not again
    code = attempt(out, deadly)
    kills += code == 9
    assert not out.exists() or out.read_bytes() == wanted, deadly
    if code and not again:
        assert attempt(out, 0) == 0
        assert out.read_bytes() == wanted, deadly
        assert not list(folder.glob(".*")), deadly
        out.unlink()
assert out.read_bytes() == wanted and not list(folder.glob(".*"))
print(kills)
"""


@pytest.mark.parametrize(("ending", "rows"), [(".jsonl", 8), (".parquet", 4)])
def test_a_kill_at_any_step_leaves_every_row_once_and_the_bytes_of_a_run_that_was_not(
    bundle, tmp_path, ending, rows
):
    write(tmp_path / "in.jsonl", texts(rows))
    assert int(run_forking(KILLED, bundle.root, tmp_path, ending, "once")) >= 30
    assert [row["id"] for row in read(tmp_path / f"out{ending}")] == list(range(rows))


def test_runs_that_are_killed_again_and_again_come_to_the_end(bundle, tmp_path):
    """Each gets through one piece, and dies at the next."""
    write(tmp_path / "in.jsonl", texts(20))
    assert int(run_forking(KILLED, bundle.root, tmp_path, ".jsonl", "again")) >= 6
    assert [row["id"] for row in read(tmp_path / "out.jsonl")] == list(range(20))


@pytest.mark.parametrize("ending", [".csv", ".parquet"])
def test_a_full_disk_at_any_step_keeps_the_pieces_and_the_older_file(session, tmp_path, monkeypatch, ending):
    monkeypatch.setattr("os.fsync", fsync)
    source, out, failures = write(tmp_path / "in.jsonl", texts(5)), tmp_path / f"out{ending}", 0
    run(session, source, tmp_path / f"whole{ending}", tasks=("mood",))
    wanted = (tmp_path / f"whole{ending}").read_bytes()
    for failing in range(1, 100):
        out.write_bytes(b"older")
        with pytest.MonkeyPatch.context() as patch:
            disk = FullDisk(patch, failing)
            try:
                run(session, source, out, tasks=("mood",))
            except OSError as error:
                assert error.errno == errno.ENOSPC
                failures += 1
        assert out.read_bytes() in (b"older", wanted)
        run(session, source, out, tasks=("mood",))
        assert out.read_bytes() == wanted
        if disk.calls < failing:
            break
    assert failures > 20


def stopping(monkeypatch, session, calls):
    """The session's `predict` is stopped after so many calls, as by Ctrl-C; the rows it was asked in each."""
    predict, asked = session.predict, []

    def stop(inputs, **options):
        if len(asked) == calls:
            raise KeyboardInterrupt
        asked.append(len(inputs))
        return predict(inputs, **options)

    monkeypatch.setattr(session, "predict", stop)
    return asked


def test_the_same_call_goes_on_and_reads_no_answered_row_again(session, tmp_path, monkeypatch):
    source, out = write(tmp_path / "in.parquet", texts(11)), tmp_path / "out.jsonl"
    first = stopping(monkeypatch, session, 2)
    with pytest.raises(KeyboardInterrupt):
        run(session, source, out, tasks=("mood",))
    assert first == [3, 3] and not out.exists()
    monkeypatch.undo()
    rest = stopping(monkeypatch, session, 99)
    done = run(session, source, out, tasks=("mood",))
    assert (rest, done.done_before, done.counts.rows) == ([3, 2], 6, 11)
    assert done.counts.passes == 11  # also those of the first run
    assert [row["id"] for row in read(out)] == list(range(11))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in.parquet", "out.jsonl"]


def test_pieces_of_another_job_are_refused_and_say_what_differs(bundle, tmp_path, monkeypatch):
    source, out = write(tmp_path / "in.jsonl", texts(7)), tmp_path / "out.jsonl"
    session = Session(bundle, backend="reference")
    stopping(monkeypatch, session, 1)
    with pytest.raises(KeyboardInterrupt):
        run(session, source, out, tasks=("mood",), prefix="p.")
    session = Session(bundle, backend="reference")
    for differs, changes in (
        ("tasks", {"tasks": ("urgency",)}),
        ("kept", {"kept": ("id",)}),
        ("prefix", {"prefix": "q."}),
        ("piece_rows", {"piece_rows": 4}),
    ):
        with pytest.raises(ConfigError, match=f"its '{differs}' differs.*--fresh"):
            run(session, source, out, **{"tasks": ("mood",), "prefix": "p."} | changes)
    exact = Session(bundle, backend="reference", deterministic=True)
    with pytest.raises(ConfigError, match="'deterministic' differs"):
        run(exact, source, out, tasks=("mood",), prefix="p.")
    write(source, texts(7)[::-1])
    with pytest.raises(ConfigError, match="'source' differs"):
        run(session, source, out, tasks=("mood",), prefix="p.")
    run(session, source, out, tasks=("mood",), prefix="p.", fresh=True)
    assert [row["id"] for row in read(out)] == list(range(7))[::-1]


def test_a_task_that_was_replaced_in_between_is_refused(tmp_path, monkeypatch):
    from polyhead.plan import Pool
    from polyhead.testing import tiny_path, tiny_tasks, tiny_trunk
    from polyhead.testing.strategies import add_tiny

    root = make_bundle(tmp_path / "bundle").root
    source, out = write(tmp_path / "in.jsonl", texts(7)), tmp_path / "out.jsonl"
    session = Session(root, backend="reference")
    stopping(monkeypatch, session, 1)
    with pytest.raises(KeyboardInterrupt):
        run(session, source, out, tasks=("mood",))
    (mood,) = [task for task in tiny_tasks() if task.name == "mood"]
    path = tiny_path(mood, tiny_trunk(), pool=Pool(positions="mean"))
    add_tiny(root, tiny_trunk(), mood, path, seed=77, replace=True)
    with pytest.raises(ConfigError, match="'tasks' differs.*v0002.*v0001"):
        run(Session(root, backend="reference"), source, out, tasks=("mood",))


def test_a_damaged_job_file_is_named_and_fresh_helps(session, tmp_path, monkeypatch):
    source, out = write(tmp_path / "in.jsonl", texts(4)), tmp_path / "out.jsonl"
    folder = tmp_path / ".out.jsonl.pieces"
    folder.mkdir()
    (folder / "job.json").write_text("{")
    (folder / "00000000.piece").write_text("not ours\n")
    with pytest.raises(ConfigError, match="job.json.*--fresh"):
        run(session, source, out, tasks=("mood",))
    run(session, source, out, tasks=("mood",), fresh=True)
    assert len(read(out)) == 4 and not folder.exists()


def test_pieces_without_a_job_are_nobodys(session, tmp_path, monkeypatch):
    """As a kill leaves them right after OUT was whole."""
    source, out = write(tmp_path / "in.jsonl", texts(4)), tmp_path / "out.jsonl"
    folder = tmp_path / ".out.jsonl.pieces"
    folder.mkdir()
    (folder / "00000000.piece").write_text("old\n")
    (folder / "00000000.json").write_text('{"rows": 3}')
    stopping(monkeypatch, session, 0)
    with pytest.raises(KeyboardInterrupt):
        run(session, source, out, tasks=("mood",))
    monkeypatch.undo()
    assert run(session, source, out, tasks=("mood",)).done_before == 0
    assert [row["id"] for row in read(out)] == list(range(4))


def test_a_file_that_changes_while_it_is_read_gives_no_output(session, tmp_path, monkeypatch):
    source, out = write(tmp_path / "in.jsonl", texts(7)), tmp_path / "out.jsonl"
    predict = session.predict

    def grown(inputs, **options):
        with source.open("a") as file:
            file.write(json.dumps({"text": "new"}) + "\n")
        return predict(inputs, **options)

    monkeypatch.setattr(session, "predict", grown)
    with pytest.raises(DataError, match="changed while it was read"):
        run(session, source, out, tasks=("mood",))
    assert not out.exists()


def test_a_task_that_fails_is_named_and_the_others_are_answered(session, tmp_path, monkeypatch):
    import msgspec

    predict = session.predict

    def failing(inputs, **options):
        found = predict(inputs, **options)
        first = msgspec.structs.replace(
            found[0], answers={"mood": found[0].answers["mood"]}, failed={"urgency": "it broke"}
        )
        return [first, *found[1:]]

    monkeypatch.setattr(session, "predict", failing)
    source, out = write(tmp_path / "in.jsonl", texts(2)), tmp_path / "out.jsonl"
    done = run(session, source, out, tasks=("mood", "urgency"))
    broken, whole = read(out)
    assert broken["mood"] and broken["urgency"] is None and broken["error"] == "urgency: it broke"
    assert "error" not in whole and whole["urgency"] is not None
    assert (done.counts.errors, done.counts.unanswered) == (1, {"mood": 0, "urgency": 1})


def test_two_processes_do_not_write_one_file(session, tmp_path):
    source, out = write(tmp_path / "in.jsonl", texts(4)), tmp_path / "out.jsonl"
    folder = tmp_path / ".out.jsonl.pieces"
    folder.mkdir()
    with (
        held(folder / "lock", patience=0.0, busy=RuntimeError()),
        pytest.raises(ConfigError, match="another process is writing"),
    ):
        run(session, source, out)
    run(session, source, out, tasks=("mood",))


class Counted(dict):
    """A row that can be watched."""

    alive, most = 0, 0


def watched(made):
    Counted.alive += 1
    Counted.most = max(Counted.most, Counted.alive)

    def gone():
        Counted.alive -= 1

    weakref.finalize(made, gone)
    return made


@pytest.mark.parametrize("count", [40, 400])
def test_rows_held_do_not_grow_with_the_file(session, tmp_path, monkeypatch, count):
    source = write(tmp_path / "in.jsonl", texts(count))
    loads, calls = json.loads, []
    monkeypatch.setattr(Counted, "alive", 0)
    monkeypatch.setattr(Counted, "most", 0)
    monkeypatch.setattr(rows_module.json, "loads", lambda text: watched(Counted(loads(text))))
    monkeypatch.setattr(
        session, "predict", lambda inputs, **_: calls.append(len(inputs)) or [_nothing()] * len(inputs)
    )
    monkeypatch.setattr("os.fsync", fsync)
    run(session, source, tmp_path / "out.jsonl", piece_rows=5, tasks=("mood",))
    assert calls == [5] * (count // 5)
    assert 5 <= Counted.most <= 11  # the piece that is answered, the one that is read, the row in hand


def _nothing():
    from polyhead.engine.session import Receipt, Result

    return Result(answers={}, receipt=Receipt(passes=0, layers=0, tokens=0), skipped={"mood": "no"})


@pytest.mark.parametrize("count", [40, 400])
def test_tables_held_do_not_grow_with_the_file(session, tmp_path, monkeypatch, count):
    from polyhead.scoring import table

    monkeypatch.setattr(Counted, "alive", 0)
    monkeypatch.setattr(Counted, "most", 0)
    made, sizes = table.TableChunk, []
    monkeypatch.setattr(table, "TableChunk", lambda *given: watched(made(*given)))
    monkeypatch.setattr(
        session, "predict", lambda inputs, **_: sizes.append(len(inputs)) or [_nothing()] * len(inputs)
    )
    monkeypatch.setattr("os.fsync", fsync)
    source = write(tmp_path / "in.parquet", texts(count))
    run(session, source, tmp_path / "out.jsonl", piece_rows=5, tasks=("mood",))
    assert set(sizes) == {5} and sum(sizes) == count
    assert 1 <= Counted.most <= 2


def test_progress_says_rows_rate_and_time_left(session, tmp_path):
    source, shown = write(tmp_path / "in.csv", texts(7)), []
    wish = scoring.Wish(tasks=("mood",))
    scoring.score(session, str(source), str(tmp_path / "out.csv"), wish, piece_rows=3, show=shown.append)
    assert "in.csv: 0 of 7 texts" in shown
    lines = [line for line in shown if "a second" in line]
    assert [line.split(",")[0] for line in lines] == [f"in.csv: {done} of 7 texts" for done in (3, 6, 7)]
    assert all("a second, about" in line and line.endswith("left") for line in lines)


@pytest.mark.parametrize(
    ("name", "content", "error", "said"),
    [
        ("in.jsonl", "", EmptyData, "no row"),
        ("in.csv", "text\n", EmptyData, "no row"),
        ("in.jsonl", '{"id": 1}\n', MissingColumn, "Got: id. Allowed: text, text_a.*--text COLUMN"),
        ("in.jsonl", '{"text": 1}\n', DataError, "'text'.*type int.*strings"),
        ("in.jsonl", "no JSON\n", DataError, "no row of .* can be read.*row 1"),
        ("in.txt", "x\n", DataError, "not known by its name.*parquet"),
        ("in.parquet", "PAR1", DataError, "cannot read"),
        ("in.jsonl.gz", "plain", DataError, "cannot read"),
        ("in.csv", "text,text\na,b\n", DataError, "two columns of one name"),
        ("in.csv", "text,mood\na,b\n", ConfigError, "mood.*--prefix"),
        ("in.csv", "text,error\na,b\n", ConfigError, "error.*--prefix"),
    ],
)
def test_what_cannot_be_read_is_refused_at_the_start_and_leaves_nothing(
    session, tmp_path, name, content, error, said
):
    source = tmp_path / name
    source.write_text(content)
    with pytest.raises(error, match=said):
        run(session, source, tmp_path / "out.jsonl", tasks=("mood",))
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_what_cannot_be_written_or_asked_is_refused(session, tmp_path):
    source = write(tmp_path / "in.csv", texts(2))
    for target, said in (
        ("out.txt", "not known by its name.*parquet"),
        ("out.tsv", "not known by its name"),
        ("no/out.csv", "no folder"),
        ("in.csv", "the file that is read"),
    ):
        with pytest.raises(ConfigError, match=said):
            run(session, source, tmp_path / target)
    with pytest.raises(DataError, match="no file at"):
        run(session, tmp_path / "none.csv", tmp_path / "out.csv")
    with pytest.raises(DataError, match="is no file"):
        run(session, tmp_path, tmp_path / "out.csv")
    with pytest.raises(UnknownTask, match="'mod'"):
        run(session, source, tmp_path / "out.csv", tasks=("mod",))
    with pytest.raises(ConfigError, match="no column 'no' to keep.*id, text"):
        run(session, source, tmp_path / "out.csv", kept=("no",))
    with pytest.raises(ConfigError, match="none of the tasks reads.*same reads a pair"):
        run(session, source, tmp_path / "out.csv", tasks=("same",))
    assert [path.name for path in tmp_path.iterdir()] == ["in.csv"]
