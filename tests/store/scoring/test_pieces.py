"""A folder of pieces is ours by its marker alone, and a piece counts only as it was written."""

import json
import shutil

import pytest

from polyhead.errors import ConfigError, DataError, PolyheadError
from polyhead.folders import MARKER, claim
from polyhead.store.jobs.pieces import WORKING, Pieces
from store.scoring.test_job import stopping
from support.disk_failures import fsync
from support.outside_files import PLANTS, listed, make_others, plant, untouched
from support.scoring_files import read, run, texts, write

FOLDER = ".out.jsonl.pieces"
OURS = ("job.json", "lock", "00000000.json", "00000000.piece", "00000001.piece")
OTHERS = (MARKER, "notes.txt", ".new-whole", ".new-00000000.piece", ".new-0123456789abcdef-out.jsonl", "7.piece")


@pytest.fixture
def source(tmp_path, monkeypatch):
    monkeypatch.setattr("os.fsync", fsync)
    return write(tmp_path / "in.jsonl", texts(4))


@pytest.mark.parametrize("fresh", [False, True], ids=["gone on", "fresh"])
@pytest.mark.parametrize("fails", [False, True], ids=["whole", "a command that fails"])
@pytest.mark.parametrize("kind", [*PLANTS, "their pieces", "a file"])
def test_a_folder_of_pieces_is_not_ours_by_its_name(session, source, tmp_path, kind, fails, fresh):
    """A link to another folder, or a real one, of this name: every plain file there was deleted."""
    others, folder = make_others(tmp_path, *OURS), tmp_path / FOLDER
    if kind == "their pieces":
        shutil.copytree(others / "files", folder)
    elif kind == "a file":
        folder.write_text("mine")
    else:
        plant(folder, kind, others)
    wish = {"columns": {"text": "txet"}} if fails else {}
    with untouched(tmp_path), pytest.raises(ConfigError, match="something else has its name.*Got.*Allowed.*Do"):
        run(session, source, tmp_path / "out.jsonl", tasks=("mood",), fresh=fresh, **wish)


def test_pieces_that_an_earlier_version_began_are_refused_and_left(session, source, tmp_path, monkeypatch):
    stopping(monkeypatch, session, 1)
    with pytest.raises(KeyboardInterrupt):
        run(session, source, tmp_path / "out.jsonl", tasks=("mood",))
    (tmp_path / FOLDER / MARKER).unlink()
    monkeypatch.undo()
    for fresh in (False, True):
        with untouched(tmp_path), pytest.raises(ConfigError, match=f"job.json.*without {MARKER}.*move it away"):
            run(session, source, tmp_path / "out.jsonl", tasks=("mood",), fresh=fresh)


def test_a_marker_of_another_content_is_none(session, source, tmp_path):
    (tmp_path / FOLDER).mkdir()
    (tmp_path / FOLDER / MARKER).write_text(WORKING.marker.decode() + " ")
    with untouched(tmp_path), pytest.raises(ConfigError, match="something else has its name"):
        run(session, source, tmp_path / "out.jsonl", tasks=("mood",))


@pytest.mark.parametrize("kind", PLANTS)
@pytest.mark.parametrize("name", [*OURS, *OTHERS])
def test_what_lies_in_a_folder_of_ours_is_not_followed(session, source, tmp_path, name, kind):
    out, others = tmp_path / "out.jsonl", make_others(tmp_path, *OURS)
    claim(tmp_path / FOLDER, WORKING)
    plant(tmp_path / FOLDER / name, kind, others)
    with untouched(others):
        try:
            run(session, source, out, tasks=("mood",), fresh=name == "job.json")
        except PolyheadError:
            assert not out.exists() and name in (*OURS, MARKER)
        else:
            assert [row["id"] for row in read(out)] == list(range(4))
            if name in OTHERS and name != ".new-0123456789abcdef-out.jsonl":
                assert name in listed(tmp_path / FOLDER)  # what is not ours stays


def test_what_others_put_into_a_folder_of_ours_stays(session, source, tmp_path):
    out, notes = tmp_path / "out.jsonl", tmp_path / FOLDER / "notes.txt"
    claim(tmp_path / FOLDER, WORKING)
    notes.write_text("mine")
    run(session, source, out, tasks=("mood",))
    assert notes.read_text() == "mine" and listed(tmp_path / FOLDER).keys() == {"notes.txt", MARKER}
    run(session, source, out, tasks=("mood",))  # it is ours still
    notes.unlink()
    run(session, source, out, tasks=("mood",))
    assert not (tmp_path / FOLDER).exists() and len(read(out)) == 4


# what was written


def begun(session, tmp_path, monkeypatch, pieces):
    """The folder of a job of 5 pieces of two rows, so many of which are done."""
    source = write(tmp_path / "in.jsonl", texts(10))
    with monkeypatch.context() as patch:
        stopping(patch, session, pieces)
        with pytest.raises(KeyboardInterrupt):
            again(session, tmp_path)
    assert source.exists()
    return tmp_path / FOLDER


def again(session, tmp_path):
    return run(session, tmp_path / "in.jsonl", tmp_path / "out.jsonl", tasks=("mood",), piece_rows=2)


def truncated(path):
    path.write_bytes(path.read_bytes()[:-40])


def emptied(path):
    path.write_bytes(b"")


def altered(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def without_a_row(path):
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[1:]))


def counted_twice(path):
    path.write_text(path.read_text().replace('"rows": 2', '"rows": 4'))


def exchanged(path):
    path.write_bytes(path.with_name(f"00000000{path.suffix}").read_bytes())


DAMAGES = [
    *((damage, "piece") for damage in (truncated, emptied, altered, without_a_row, exchanged)),
    *((damage, "json") for damage in (truncated, emptied, altered, counted_twice, exchanged)),
]


@pytest.mark.parametrize("number", [1, 2])
@pytest.mark.parametrize(("damage", "ending"), DAMAGES)
def test_a_damaged_piece_is_answered_again(session, tmp_path, monkeypatch, caplog, damage, ending, number):
    """A truncated piece lost its rows, and all of them were reported."""
    monkeypatch.setattr("os.fsync", fsync)
    folder = begun(session, tmp_path, monkeypatch, 3)
    damage(folder / f"{number:08d}.{ending}")
    asked = stopping(monkeypatch, session, 99)
    done = again(session, tmp_path)
    assert (done.done_before, len(asked)) == (2 * number, 5 - number)
    assert [row["id"] for row in read(tmp_path / "out.jsonl")] == list(range(10)) and done.counts.rows == 10
    assert f"{number:08d}.piece is not as it was written" in caplog.text and not folder.exists()


@pytest.mark.parametrize("damage", [truncated, emptied, altered, without_a_row])
def test_a_piece_that_is_damaged_before_all_are_joined_is_named(session, tmp_path, monkeypatch, damage):
    monkeypatch.setattr("os.fsync", fsync)
    folder, add = begun(session, tmp_path, monkeypatch, 2), Pieces.add

    def adding(pieces, content, counts):
        add(pieces, content, counts)
        if len(pieces.done) == 5:
            damage(folder / "00000001.piece")

    with monkeypatch.context() as patch:
        patch.setattr(Pieces, "add", adding)
        with pytest.raises(DataError, match="00000001.piece was changed since.*the same command again"):
            again(session, tmp_path)
    assert not (tmp_path / "out.jsonl").exists()
    assert again(session, tmp_path).done_before == 2
    assert [row["id"] for row in read(tmp_path / "out.jsonl")] == list(range(10))


def test_pieces_that_are_not_of_all_rows_give_no_output(session, tmp_path, monkeypatch):
    """The survey of a job was edited, so that what is counted is not what is read."""
    folder = begun(session, tmp_path, monkeypatch, 2)
    job = json.loads((folder / "job.json").read_text())
    job["survey"]["rows"] = 12
    (folder / "job.json").write_text(json.dumps(job))
    with pytest.raises(DataError, match="not of all rows.*10.*12.*--fresh"):
        again(session, tmp_path)
    assert not (tmp_path / "out.jsonl").exists()


@pytest.mark.parametrize("rows", [0, -1, True, 2.0, "3", None])
def test_pieces_without_rows_are_refused(session, source, tmp_path, rows):
    """With 0 nothing was written, and the call succeeded."""
    with untouched(tmp_path), pytest.raises(ConfigError, match="piece_rows.*Got.*Allowed: (1 or more|a whole number)"):
        run(session, source, tmp_path / "out.jsonl", tasks=("mood",), piece_rows=rows)
