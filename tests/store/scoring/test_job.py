"""Every row once, in order: after a kill, a full disk, an interruption; and never more rows held than a few pieces."""

import errno
import importlib
import json
import os
import re
import shutil
import weakref
from pathlib import Path

import msgspec
import pytest

from polyhead.bundle.merge import copy_tasks
from polyhead.bundle.read import Bundle
from polyhead.data.rows import open_file
from polyhead.data.tables import json_rows as rows_module
from polyhead.engine.backends.base import whole
from polyhead.engine.backends.reference.backend import ReferenceBackend
from polyhead.engine.session import Session
from polyhead.errors import ConfigError, DataError, EmptyData, MissingColumn, UnknownTask
from polyhead.files import held
from polyhead.folders import claim, dissolve
from polyhead.plan import Pool
from polyhead.store import jobs as scoring
from polyhead.store.jobs.pieces import WORKING, Pieces, ScoreJob
from polyhead.testing import tiny_path, tiny_tasks, tiny_trunk
from polyhead.testing.strategies import add_tiny, tiny_bundle
from polyhead.values import to_json
from support.disk_failures import FullDisk, fsync, run_forking
from support.scoring_files import failed, make_bundle, read, run, texts, unfit, write

KILLED = """
import os, sys
from pathlib import Path
from support.disk_failures import Kill, exit_code, fsync
from polyhead.engine.session import Session
from support.scoring_files import run

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
            Kill(deadly, each=None if again else 2)
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


@pytest.mark.slow
@pytest.mark.parametrize(("ending", "rows"), [(".jsonl", 8), (".parquet", 4)])
def test_a_kill_at_any_step_leaves_every_row_once_and_the_bytes_of_a_run_that_was_not(bundle, tmp_path, ending, rows):
    write(tmp_path / "in.jsonl", texts(rows))
    assert int(run_forking(KILLED, bundle.root, tmp_path, ending, "once")) >= 20
    assert [row["id"] for row in read(tmp_path / f"out{ending}")] == list(range(rows))


@pytest.mark.slow
def test_runs_that_are_killed_again_and_again_come_to_the_end(bundle, tmp_path):
    """Each gets through one piece, and dies at the next."""
    write(tmp_path / "in.jsonl", texts(20))
    assert int(run_forking(KILLED, bundle.root, tmp_path, ".jsonl", "again")) >= 4
    assert [row["id"] for row in read(tmp_path / "out.jsonl")] == list(range(20))


@pytest.mark.slow
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
    """The session's `columns` is stopped after so many calls, as by Ctrl-C; the rows it was asked in each."""
    columns, asked = session.columns, []

    def stop(inputs, **options):
        if len(asked) == calls:
            raise KeyboardInterrupt
        asked.append(len(inputs))
        return columns(inputs, **options)

    monkeypatch.setattr(session, "columns", stop)
    return asked


def test_first_pieces_are_small_and_end_at_the_same_rows_in_the_next_call(session, tmp_path, monkeypatch):
    source, out = write(tmp_path / "in.jsonl", texts(200)), tmp_path / "out.jsonl"
    first = stopping(monkeypatch, session, 2)
    with pytest.raises(KeyboardInterrupt, match="160"):
        run(session, source, out, tasks=("mood",), piece_rows=2048)
    monkeypatch.undo()
    rest = stopping(monkeypatch, session, 99)
    run(session, source, out, tasks=("mood",), piece_rows=2048)
    assert first == [32, 128] and rest == [40]


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
        ("other tasks", {"tasks": ("urgency",)}),
        ("--keep", {"kept": ("id",)}),
        ("--prefix", {"prefix": "q."}),
        ("--scores", {"scores": True}),
        ("of another size", {"piece_rows": 4}),
    ):
        with pytest.raises(ConfigError, match=f"{differs}.*--fresh"):
            run(session, source, out, **{"tasks": ("mood",), "prefix": "p."} | changes)
    exact = Session(bundle, backend="reference", deterministic=True)
    with pytest.raises(ConfigError, match="--deterministic differs"):
        run(exact, source, out, tasks=("mood",), prefix="p.")
    with pytest.raises(ConfigError, match="other arithmetic: --backend"):
        run(Session(bundle, backend="torch"), source, out, tasks=("mood",), prefix="p.")
    other = tiny_trunk(seed=7)  # a task's file names its trunk
    pool = tiny_path(tiny_tasks()[0], other, pool=Pool(positions="mean"))
    moved = tiny_bundle(tmp_path / "moved", other, {"mood": pool})
    with pytest.raises(ConfigError, match="other tasks, or other versions"):
        run(Session(moved, backend="reference"), source, out, tasks=("mood",), prefix="p.")
    write(source, texts(7)[::-1])
    with pytest.raises(ConfigError, match="what is read has changed"):
        run(session, source, out, tasks=("mood",), prefix="p.")
    run(session, source, out, tasks=("mood",), prefix="p.", fresh=True)
    assert [row["id"] for row in read(out)] == list(range(7))[::-1]


@pytest.mark.parametrize("name", ["v.2.jsonl", "in.JSONL", "v.1.jsonl.gz"])
def test_a_file_that_was_renamed_is_gone_on_with_unless_its_format_is_another(session, tmp_path, monkeypatch, name):
    """All that followed the first point of its name was taken for its format."""
    source, out = write(tmp_path / "v.1.jsonl", texts(7)), tmp_path / "out.jsonl"
    with monkeypatch.context() as patch:
        stopping(patch, session, 1)
        with pytest.raises(KeyboardInterrupt):
            run(session, source, out, tasks=("mood",))
    if name.endswith(".gz"):
        with pytest.raises(ConfigError, match="another file|another format"):
            run(session, write(tmp_path / name, texts(7)), out, tasks=("mood",))
    else:
        source.rename(tmp_path / name)
        assert run(session, tmp_path / name, out, tasks=("mood",)).done_before == 3


@pytest.mark.parametrize(
    ("names", "scores", "said"),
    [
        (("mood", "error"), False, "Got: error. Do: name other tasks with --tasks.$"),
        (("mood", "mood.scores"), True, "Got: mood.scores. Do: name other tasks with --tasks, or leave out --scores"),
    ],
    ids=["error", "scores"],
)
def test_added_columns_of_one_name_are_refused_as_such(tmp_path, names, scores, said):
    """Columns of the file were blamed, and --prefix advised, which changes both names alike."""
    whole = make_bundle(tmp_path / "whole")
    bundle = Bundle.open(make_bundle(tmp_path / "bundle").root)
    copy_tasks(whole, ["mood"], bundle, called={"mood": names[1]})
    session, source = Session(bundle.root, backend="reference"), write(tmp_path / "in.jsonl", texts(2))
    for prefix in ("", "our "):
        with pytest.raises(ConfigError, match="added would have the same names.*--prefix does not"):
            run(session, source, tmp_path / "out.jsonl", tasks=names, scores=scores, prefix=prefix)
    with pytest.raises(ConfigError, match=said):
        run(session, source, tmp_path / "out.jsonl", tasks=names, scores=scores)


def test_a_task_that_was_replaced_in_between_is_refused(tmp_path, monkeypatch):
    root = make_bundle(tmp_path / "bundle").root
    source, out = write(tmp_path / "in.jsonl", texts(7)), tmp_path / "out.jsonl"
    session = Session(root, backend="reference")
    stopping(monkeypatch, session, 1)
    with pytest.raises(KeyboardInterrupt):
        run(session, source, out, tasks=("mood",))
    replaced(root, "mood")
    with pytest.raises(ConfigError, match="other versions of them.*v0002.*v0001"):
        run(Session(root, backend="reference"), source, out, tasks=("mood",))


def test_a_damaged_job_file_is_named_and_fresh_helps(session, tmp_path, monkeypatch):
    source, out = write(tmp_path / "in.jsonl", texts(4)), tmp_path / "out.jsonl"
    folder = tmp_path / ".out.jsonl.pieces"
    claim(folder, WORKING)
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
    claim(folder, WORKING)
    (folder / "00000000.piece").write_text("old\n")
    (folder / "00000000.json").write_text('{"rows": 3}')
    stopping(monkeypatch, session, 0)
    with pytest.raises(KeyboardInterrupt):
        run(session, source, out, tasks=("mood",))
    monkeypatch.undo()
    assert run(session, source, out, tasks=("mood",)).done_before == 0
    assert [row["id"] for row in read(out)] == list(range(4))


def test_a_job_that_was_killed_when_its_output_was_whole_binds_nobody(session, tmp_path, monkeypatch):
    source, out = write(tmp_path / "in.jsonl", texts(4)), tmp_path / "out.jsonl"
    folder, files = tmp_path / ".out.jsonl.pieces", []

    def killed(pieces):
        files.append(pieces.target.parent)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Pieces, "forget", killed)
        with pytest.raises(KeyboardInterrupt):
            run(session, source, out, tasks=("mood",))
    assert files == [tmp_path] and len(read(out)) == 4 and (folder / "00000000.piece").exists()
    kept = tmp_path / "kept"
    shutil.copytree(folder, kept)
    assert run(session, source, out, tasks=("mood",), kept=("id",)).done_before == 0
    assert read(out)[0].keys() >= {"id", "mood"} and "text" not in read(out)[0] and not folder.exists()
    # The same pieces beside an output that is older than they, or none: a job that is still to be finished.
    for age in (3600, None):
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(kept, folder)
        os.utime(out, ns=(0, 0)) if age else out.unlink()
        with pytest.raises(ConfigError, match="pieces of another job"):
            run(session, source, out, tasks=("mood",), kept=("id",))
    assert run(session, source, out, tasks=("mood",)).done_before == 4
    assert len(read(out)) == 4 and not folder.exists()


def test_a_file_that_changes_while_it_is_read_gives_no_output(session, tmp_path, monkeypatch):
    source, out = write(tmp_path / "in.jsonl", texts(7)), tmp_path / "out.jsonl"
    columns = session.columns

    def grown(inputs, **options):
        with source.open("a") as file:
            file.write(json.dumps({"text": "new"}) + "\n")
        return columns(inputs, **options)

    monkeypatch.setattr(session, "columns", grown)
    with pytest.raises(DataError, match="changed while it was read"):
        run(session, source, out, tasks=("mood",))
    assert not out.exists() and not (tmp_path / ".out.jsonl.pieces").exists()  # no piece of other bytes


def test_fresh_drops_what_was_begun_only_for_a_command_that_makes_sense(session, tmp_path, monkeypatch):
    source, out = write(tmp_path / "in.jsonl", texts(7)), tmp_path / "out.jsonl"
    stopping(monkeypatch, session, 2)
    with pytest.raises(KeyboardInterrupt):
        run(session, source, out, tasks=("mood",))
    monkeypatch.undo()
    for mistake in ({"columns": {"text": ("txet",)}}, {"kept": ("nothing",)}):
        with pytest.raises((MissingColumn, ConfigError), match="column"):
            run(session, source, out, **{"tasks": ("mood",), "fresh": True} | mistake)
    assert run(session, source, out, tasks=("mood",)).done_before == 6


def test_a_file_in_the_place_of_the_pieces_is_named(session, tmp_path):
    source = write(tmp_path / "in.jsonl", texts(4))
    (tmp_path / ".out.jsonl.pieces").write_text("mine")
    with pytest.raises(ConfigError, match="out.jsonl.pieces is where .*something else has its name.*a file"):
        run(session, source, tmp_path / "out.jsonl", tasks=("mood",))
    assert (tmp_path / ".out.jsonl.pieces").read_text() == "mine"


def test_a_folder_that_another_process_takes_away_meanwhile_is_made_again(session, tmp_path, monkeypatch):
    """Between making the folder and holding its lock."""
    source, out, taken = write(tmp_path / "in.jsonl", texts(4)), tmp_path / "out.jsonl", []

    def gone(folder, working):
        claim(folder, working)
        if len(taken) < 2:
            taken.append(dissolve(folder, working))

    monkeypatch.setattr("polyhead.store.jobs.pieces.claim", gone)
    run(session, source, out, tasks=("mood",))
    assert len(taken) == 2 and len(read(out)) == 4


def test_a_task_that_fails_is_named_and_the_others_are_answered(session, tmp_path, monkeypatch):
    columns = session.columns

    def failing(inputs, **options):
        return failed(columns(inputs, **options), "urgency", {0: RuntimeError("it broke")})

    monkeypatch.setattr(session, "columns", failing)
    source, out = write(tmp_path / "in.jsonl", texts(2)), tmp_path / "out.jsonl"
    done = run(session, source, out, tasks=("mood", "urgency"))
    broken, whole = read(out)
    assert broken["mood"] and broken["urgency"] is None and broken["error"] == "urgency: RuntimeError: it broke"
    assert "error" not in whole and whole["urgency"] is not None
    assert (done.counts.errors, done.counts.unanswered) == (1, {"mood": 0, "urgency": 1})


def test_two_processes_do_not_write_one_file(session, tmp_path):
    source, out = write(tmp_path / "in.jsonl", texts(4)), tmp_path / "out.jsonl"
    folder = tmp_path / ".out.jsonl.pieces"
    claim(folder, WORKING)
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
    read, calls = rows_module.strict_json, []
    monkeypatch.setattr(Counted, "alive", 0)
    monkeypatch.setattr(Counted, "most", 0)
    monkeypatch.setattr(rows_module, "strict_json", lambda text: watched(Counted(read(text))))
    monkeypatch.setattr(
        session, "columns", lambda inputs, **_: calls.append(len(inputs)) or unfit(session, inputs, "mood")
    )
    monkeypatch.setattr("os.fsync", fsync)
    run(session, source, tmp_path / "out.jsonl", piece_rows=5, tasks=("mood",))
    assert calls == [5] * (count // 5)
    assert 5 <= Counted.most <= 11  # the piece that is answered, the one that is read, the row in hand


@pytest.mark.parametrize("count", [40, 400])
def test_tables_held_do_not_grow_with_the_file(session, tmp_path, monkeypatch, count):
    from polyhead.data.tables import parquet as tables

    monkeypatch.setattr(Counted, "alive", 0)
    monkeypatch.setattr(Counted, "most", 0)
    made, sizes = tables.ArrowChunk, []
    monkeypatch.setattr(tables, "ArrowChunk", lambda *given: watched(made(*given)))
    monkeypatch.setattr(
        session, "columns", lambda inputs, **_: sizes.append(len(inputs)) or unfit(session, inputs, "mood")
    )
    monkeypatch.setattr("os.fsync", fsync)
    source = write(tmp_path / "in.parquet", texts(count))
    run(session, source, tmp_path / "out.jsonl", piece_rows=5, tasks=("mood",))
    assert set(sizes) == {5} and sum(sizes) == count
    assert 1 <= Counted.most <= 2


def test_progress_says_rows_rate_and_time_left(session, tmp_path):
    source, shown = write(tmp_path / "in.csv", texts(7)), []
    wish = scoring.ScoreRequest(tasks=("mood",))
    scoring.score(session, str(source), str(tmp_path / "out.csv"), wish, piece_rows=3, show=shown.append)
    assert "in.csv: 0 of 7 texts" in shown
    lines = [line for line in shown if "a second" in line]
    assert [line.split(",")[0] for line in lines] == [f"in.csv: {done} of 7 texts" for done in (3, 6, 7)]
    assert all(re.fullmatch(r"in\.csv: \d of 7 texts, [\d.,]+ a second(, about \d+ s left)?", line) for line in lines)


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
def test_what_cannot_be_read_is_refused_at_the_start_and_leaves_nothing(session, tmp_path, name, content, error, said):
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


def replaced(root, name, seed=77):
    """Puts other weights of a tiny task into a bundle, as its next version."""
    (task,) = [one for one in tiny_tasks() if one.name == name]
    path = tiny_path(task, tiny_trunk(), pool=Pool(positions="mean"))
    add_tiny(root, tiny_trunk(), task, path, seed=seed, replace=True)


def meanwhile(monkeypatch, session, at, change):
    """`change` is called before the session answers its call number `at`, from 0."""
    columns, calls = session.columns, []

    def answer(inputs, **options):
        if len(calls) == at:
            change()
        calls.append(len(inputs))
        return columns(inputs, **options)

    monkeypatch.setattr(session, "columns", answer)


def test_a_task_that_is_replaced_meanwhile_stops_the_job_and_keeps_its_pieces(tmp_path, monkeypatch):
    """Rows of both versions stood in one file, without a word."""
    root = make_bundle(tmp_path / "bundle").root
    source, out = write(tmp_path / "in.jsonl", texts(8)), tmp_path / "out.jsonl"
    session, older = Session(root, backend="reference"), Session(root, backend="reference")

    def change():
        replaced(root, "mood")
        session.refresh()

    meanwhile(monkeypatch, session, 1, change)
    with pytest.raises(ConfigError, match="replaced or removed while.*is kept. Got: mood.*--fresh"):
        run(session, source, out, tasks=("mood", "urgency"))
    assert not out.exists()
    assert run(older, source, out, tasks=("mood", "urgency")).done_before == 3
    run(older, source, tmp_path / "whole.jsonl", tasks=("mood", "urgency"))
    assert out.read_bytes() == (tmp_path / "whole.jsonl").read_bytes()


def test_a_task_that_is_removed_meanwhile_stops_the_job(bundle, tmp_path, monkeypatch):
    source, out = write(tmp_path / "in.jsonl", texts(8)), tmp_path / "out.jsonl"
    session = Session(bundle, backend="reference")
    meanwhile(monkeypatch, session, 1, lambda: session.detach("mood"))
    with pytest.raises(ConfigError, match="replaced or removed while.*Got: mood"):
        run(session, source, out, tasks=("mood", "urgency"))
    assert not out.exists()


def test_changes_of_other_tasks_touch_no_job(tmp_path, monkeypatch):
    root = make_bundle(tmp_path / "bundle").root
    source, out = write(tmp_path / "in.jsonl", texts(8)), tmp_path / "out.jsonl"
    session = Session(root, backend="reference")

    def change():
        replaced(root, "urgency")
        session.refresh()
        session.detach("topics")

    meanwhile(monkeypatch, session, 1, change)
    assert run(session, source, out, tasks=("mood",)).counts.rows == 8


def test_a_task_that_is_attached_and_not_in_the_bundle_is_refused(tmp_path):
    """Such a task was a KeyError; one that stood in place of the bundle's was taken for that."""
    root = make_bundle(tmp_path / "bundle").root
    source, out = write(tmp_path / "in.jsonl", texts(2)), tmp_path / "out.jsonl"
    session = Session(root, backend="reference")
    record = session.bundle.tasks["mood"]
    alone = msgspec.structs.replace(record, task=msgspec.structs.replace(record.task, name="alone"))
    other = msgspec.structs.replace(record, trained_with={"seed": 9}, arrays="0" * 64)
    session.attach(msgspec.structs.replace(alone, owner=record.owner), session.bundle.part("mood"))
    for name in ("alone", "mood"):
        with pytest.raises(ConfigError, match=f"attached to the session alone. Got: {name}. Allowed: .*topics"):
            run(session, source, out, tasks=(name, "urgency"))
        session.attach(other, session.bundle.part("mood"))
    assert run(session, source, out, tasks=("urgency",)).counts.rows == 2


def test_rows_that_every_task_fails_on_have_the_reason_and_the_job_goes_on(session, tmp_path, monkeypatch):
    """Alone in its piece such a row stopped the job each time, with the error of the one task that was asked."""
    inner = ReferenceBackend.stages

    def stages(self, plan, batch):
        if batch.ids.shape[1] > 40:
            raise RuntimeError("too much")
        yield from inner(self, plan, batch)

    monkeypatch.setattr(ReferenceBackend, "stages", stages)
    monkeypatch.setattr(ReferenceBackend, "run", lambda self, plan, batch: whole(self.stages(plan, batch)))
    rows = texts(5)
    rows[3]["text"] = "lamp " * 60
    source, out = write(tmp_path / "in.jsonl", rows), tmp_path / "out.jsonl"
    done = run(session, source, out, tasks=("mood", "urgency"), piece_rows=1)
    found = read(out)
    assert found[3]["error"] == "mood: RuntimeError: too much; urgency: RuntimeError: too much"
    assert found[3]["mood"] is None and found[3]["urgency"] is None
    assert all(row["mood"] and "error" not in row for row in found[:3] + found[4:])
    assert (done.counts.errors, done.counts.unanswered) == (1, {"mood": 1, "urgency": 1})


def test_what_is_no_tasks_own_failure_stops_the_job(session, tmp_path, monkeypatch):
    from polyhead.engine.request import Request
    from polyhead.errors import MissingExtra

    def lacking(self, *given, **options):
        raise MissingExtra("torch", "train", "answering task 'mood'")

    monkeypatch.setattr(Request, "_steps", lacking)
    source, out = write(tmp_path / "in.jsonl", texts(2)), tmp_path / "out.jsonl"
    with pytest.raises(MissingExtra):
        run(session, source, out, tasks=("mood",))
    assert not out.exists()


def test_a_job_without_a_finished_piece_is_not_begun(session, tmp_path, monkeypatch):
    """What it left was taken for another job's, as soon as an option changed."""
    source, out = write(tmp_path / "in.jsonl", texts(4)), tmp_path / "out.jsonl"
    folder = tmp_path / ".out.jsonl.pieces"
    with monkeypatch.context() as patch:
        stopping(patch, session, 0)
        with pytest.raises(KeyboardInterrupt):
            run(session, source, out, tasks=("mood",))
    assert not folder.exists()
    with monkeypatch.context() as patch:  # as a kill leaves it
        patch.setattr("polyhead.store.jobs.pieces.dissolve", lambda *given: None)
        stopping(patch, session, 0)
        with pytest.raises(KeyboardInterrupt):
            run(session, source, out, tasks=("mood",))
    assert (folder / "job.json").exists()
    assert run(session, source, out, tasks=("mood",), kept=("id",)).counts.rows == 4
    assert not folder.exists()


def test_a_symbolic_link_stays_one_and_its_file_is_written(session, tmp_path):
    source, file, link = (write(tmp_path / "in.jsonl", texts(4)), tmp_path / "there" / "data", tmp_path / "out.csv")
    file.parent.mkdir()
    link.symlink_to(file)
    for _ in ("new", "older"):
        run(session, source, link, tasks=("mood",))
        assert link.is_symlink() and len(file.read_text().splitlines()) == 5
        assert [path.name for path in file.parent.iterdir()] == ["data"]
    source_link = tmp_path / "same.jsonl"
    source_link.symlink_to(source)
    with pytest.raises(ConfigError, match="the file that is read"):
        run(session, source, source_link, tasks=("mood",))
    around = tmp_path / "around.csv"
    around.symlink_to(around)
    with pytest.raises(ConfigError, match="a link that leads to itself"):
        run(session, source, around, tasks=("mood",))


def test_a_survey_of_another_format_or_version_is_not_taken(session, tmp_path):
    """After a kill before the first piece the columns of the wrong format were blamed until --fresh."""
    content, wish = "id\ttext\n1\tthe lamp\n", scoring.ScoreRequest(tasks=("mood",))

    def begun(name, before):
        (tmp_path / name).write_text(content)
        source = open_file(str(tmp_path / name))
        work = importlib.import_module("polyhead.store.jobs.score")._Work(
            session, source, tmp_path / "out.jsonl", wish, None
        )
        return work.job(before, 3, lambda text: None)

    first = begun("in.tsv", None)
    wrong = msgspec.structs.replace(first.survey, columns={"id\ttext": "text"})
    assert begun("in.tsv", msgspec.structs.replace(first, survey=wrong, form="csv to jsonl")).survey == first.survey
    assert begun("in.tsv", msgspec.structs.replace(first, survey=wrong, version="0")).survey == first.survey
    with pytest.raises(MissingColumn):  # what is of the same format, bytes and version is taken
        begun("in.tsv", msgspec.structs.replace(first, survey=wrong))


def test_a_name_that_is_no_utf8_is_written_and_told(session, tmp_path):
    source, out = (write(tmp_path / "in.jsonl", texts(2)), Path(os.fsdecode(bytes(tmp_path) + b"/caf\xe9.jsonl")))
    summary = run(session, source, out, tasks=("mood",))
    assert len(read(out)) == 2 and b"caf" in to_json(summary)
    with pytest.raises(ConfigError, match="prefix .* is not UTF-8"):
        scoring.ScoreRequest(prefix="caf\udce9")


def test_a_table_whose_name_is_no_utf8_is_read(session, tmp_path):
    pytest.importorskip("pyarrow")
    source = write(tmp_path / "in.parquet", texts(2))
    source = source.rename(os.fsdecode(bytes(tmp_path) + b"/caf\xe9.parquet"))
    run(session, source, tmp_path / "out.jsonl", tasks=("mood",))
    assert len(read(tmp_path / "out.jsonl")) == 2


def test_every_part_of_a_job_has_a_reason_why_pieces_may_be_of_another():
    assert ScoreJob.why_other.keys() == set(ScoreJob.__struct_fields__)
