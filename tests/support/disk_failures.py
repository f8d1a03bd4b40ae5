"""Disks that fail and processes that die at the n-th step of a writer."""

import errno
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from polyhead import files


class FullDisk:
    """Counts the calls that touch the disk, and fails the n-th with ENOSPC.

    With `each`, calls that are alike, the same one for files of the same name, count that many times: what is done for
    every task of many is then tried for the first ones.
    """

    def __init__(self, patch, failing, *, each=None):
        self.calls, self.failing, self.names = 0, failing, []
        self.each, self.alike = each, Counter()
        for owner, name in ((os, "fsync"), (os, "replace"), (os, "rename"), (Path, "mkdir")):
            patch.setattr(owner, name, self.counted(getattr(owner, name)))
        patch.setattr(files, "open", self.open, raising=False)

    def tick(self, name, path):
        if not self.counts(name, path):
            return
        self.calls += 1
        self.names.append(name)
        if self.calls == self.failing:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def counts(self, name, path):
        if isinstance(path, int):
            path = os.readlink(f"/proc/self/fd/{path}")
        step = name, os.path.basename(path)
        self.alike[step] += 1
        return self.each is None or self.alike[step] <= self.each

    def counted(self, function):
        def call(*args, **options):
            self.tick(function.__name__, args[1 if function.__name__ in ("replace", "rename") else 0])
            return function(*args, **options)

        return call

    def open(self, path, mode, **options):
        self.tick("open", path)
        return _Counted(open(path, mode, **options), self, path)


class _Counted:
    def __init__(self, file, disk, path):
        self.file, self.disk, self.path = file, disk, path

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.file.close()

    def write(self, data):
        self.disk.tick("write", self.path)
        self.file.write(data)

    def __getattr__(self, name):
        return getattr(self.file, name)


class Kill(FullDisk):
    """Ends the process without any cleaning up right before its n-th step on the disk.

    Flushing is no step: a process that dies before it leaves what one leaves that dies before the next step.
    """

    def __init__(self, failing, *, each=2):
        super().__init__(pytest.MonkeyPatch(), failing, each=each)

    def tick(self, name, path):
        if name == "fsync" or not self.counts(name, path):
            return
        self.calls += 1
        if self.calls == self.failing:
            os._exit(9)


flush = os.fsync


def fsync(handle):
    """In place of `os.fsync`, whose flushing decides after a power cut only: the file must be open."""
    os.fstat(handle)


def exit_code():
    """Of the forked process."""
    return os.waitstatus_to_exitcode(os.wait()[1])


def run_forking(script, *arguments):
    """What a script prints that forks: in a process of its own, without threads that a fork would lose."""
    paths = [str(Path(files.__file__).parents[1]), str(Path(__file__).parents[1])]
    single = {"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
    done = subprocess.run(
        [sys.executable, "-c", script, *map(str, arguments)],
        env=os.environ | single | {"PYTHONPATH": os.pathsep.join([*sys.path, *paths])},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout
