"""Files are there whole or not at all; a lock is one process's, also where its file is removed by who held it."""

import hashlib
import os
import threading

import pytest

from polyhead.errors import LockError
from polyhead.files import held, is_temporary, remove_leftovers, replace_file, write_file
from support.disk_failures import FullDisk, flush, run_forking

BUSY = RuntimeError("somebody has it")


@pytest.fixture(autouse=True)
def _flushed(monkeypatch):
    """Elsewhere nothing that is written is waited for."""
    monkeypatch.setattr("os.fsync", flush)


def test_what_is_written_is_hashed(tmp_path):
    found = write_file(tmp_path / "x", [b"ab", memoryview(b"cd"), b""])
    assert (tmp_path / "x").read_bytes() == b"abcd" and found == hashlib.sha256(b"abcd").hexdigest()


def test_a_full_disk_at_any_step_leaves_the_old_content_or_the_new(tmp_path):
    path, failures = tmp_path / "x", 0
    for failing in range(1, 20):
        path.write_bytes(b"old")
        with pytest.MonkeyPatch.context() as patch:
            disk = FullDisk(patch, failing)
            try:
                replace_file(path, b"new")
            except OSError:
                failures += 1
        assert path.read_bytes() == (b"new" if "replace" in disk.names[: failing - 1] else b"old")
        assert [entry.name for entry in tmp_path.iterdir()] == ["x"]
        if disk.calls < failing:
            break
    assert failures == 5  # open, write, fsync, replace, fsync of the folder


KILLED = """
import os, sys
from pathlib import Path
from support.disk_failures import Kill, exit_code
from polyhead.files import replace_file

path, found, deadly, code = Path(sys.argv[1]), set(), 0, 9
while code:
    path.write_bytes(b"old")
    deadly += 1
    if os.fork() == 0:
        Kill(deadly)
        replace_file(path, b"new")
        os._exit(0)
    code = exit_code()
    found.add(path.read_bytes())
print(deadly, sorted(found))
"""


def test_a_kill_at_any_step_leaves_the_old_content_or_the_new(tmp_path):
    assert run_forking(KILLED, tmp_path / "x").strip() == "4 [b'new', b'old']"
    assert all(is_temporary(entry.name, of="x") for entry in tmp_path.iterdir() if entry.name != "x")
    assert remove_leftovers(tmp_path) and [entry.name for entry in tmp_path.iterdir()] == ["x"]


FORKED = """
import os, sys
from polyhead import Model
from support.disk_failures import exit_code

model = Model(verbose=False)
model.folder.mkdir()
if os.fork() == 0:
    sys.exit(0)
print(exit_code(), model.folder.is_dir())
place = model.folder
del model
print(place.is_dir())
"""


def test_a_fork_that_ends_leaves_the_temporary_folder_of_a_model():
    """Its end removed the only copy of a model that was not saved yet."""
    assert run_forking(FORKED).split() == ["0", "True", "False"]


def test_a_lock_is_one_holders_at_a_time(tmp_path):
    lock = tmp_path / "lock"
    again = held(lock, patience=0.0, busy=BUSY)
    with held(lock, patience=0.0, busy=BUSY), pytest.raises(RuntimeError, match="somebody"), again:
        pytest.fail("both hold it")
    with held(lock, patience=0.0, busy=BUSY):
        pass


def test_who_waits_gets_the_lock_of_the_file_that_is_there(tmp_path):
    """The holder removes the file and another is made: the lock of the removed one keeps nobody out."""
    lock, got, free = tmp_path / "lock", threading.Event(), threading.Event()

    def wait():
        with held(lock, patience=60.0, busy=BUSY):
            got.set()
            free.wait(60.0)

    waiting = threading.Thread(target=wait)
    with held(lock, patience=0.0, busy=BUSY):
        waiting.start()
        assert not got.wait(0.2)
        lock.unlink()
    assert got.wait(60.0)
    with pytest.raises(RuntimeError), held(lock, patience=0.0, busy=BUSY):
        pytest.fail("both hold it")
    free.set()
    waiting.join()


def test_a_link_in_the_place_of_a_lock_is_refused(tmp_path):
    os.symlink(tmp_path / "elsewhere", tmp_path / "lock")
    with pytest.raises(LockError, match="lock.*cannot be used"), held(tmp_path / "lock", patience=0.0, busy=BUSY):
        pytest.fail("it is followed")
    assert not (tmp_path / "elsewhere").exists()


def test_a_lock_is_for_all_who_share_the_folder(tmp_path, monkeypatch):
    """As their umask has it; and who may read the file of another may lock it."""
    before = os.umask(0o002)
    try:
        with held(tmp_path / "lock", patience=0.0, busy=BUSY):
            assert (tmp_path / "lock").stat().st_mode & 0o777 == 0o664
    finally:
        os.umask(before)
    real = os.open

    def refused(path, flags, *rest):
        if flags & os.O_RDWR:
            raise PermissionError
        return real(path, flags, *rest)

    monkeypatch.setattr(os, "open", refused)
    again = held(tmp_path / "lock", patience=0.0, busy=BUSY)
    with held(tmp_path / "lock", patience=0.0, busy=BUSY), pytest.raises(RuntimeError, match="somebody"), again:
        pytest.fail("both hold it")
