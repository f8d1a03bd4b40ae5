"""Disks that fail and processes that die at the n-th step of a writer."""

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from polyhead import files


class FullDisk:
    """Counts the calls that touch the disk, and fails the n-th with ENOSPC."""

    def __init__(self, patch, failing):
        self.calls, self.failing, self.names = 0, failing, []
        for owner, name in ((os, "fsync"), (os, "replace"), (os, "rename"), (Path, "mkdir")):
            patch.setattr(owner, name, self.counted(getattr(owner, name)))
        patch.setattr(os, "mkdir", self.mkdir(os.mkdir))
        patch.setattr(files, "open", self.open, raising=False)

    def tick(self, name):
        self.calls += 1
        self.names.append(name)
        if self.calls == self.failing:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def counted(self, function):
        def call(*args, **options):
            self.tick(function.__name__)
            return function(*args, **options)

        return call

    def mkdir(self, function):
        """Calls of `Path.mkdir` were counted already; those relative to an open folder are made by name."""

        def call(path, mode=0o777, *, dir_fd=None):
            if dir_fd is not None:
                self.tick("mkdir")
            return function(path, mode, dir_fd=dir_fd)

        return call

    def open(self, path, mode, **options):
        self.tick("open")
        return _Counted(open(path, mode, **options), self)


class _Counted:
    def __init__(self, file, disk):
        self.file, self.disk = file, disk

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.file.close()

    def write(self, data):
        self.disk.tick("write")
        self.file.write(data)

    def __getattr__(self, name):
        return getattr(self.file, name)


class Kill(FullDisk):
    """Ends the process without any cleaning up right before its n-th step on the disk."""

    def __init__(self, failing):
        super().__init__(pytest.MonkeyPatch(), failing)

    def tick(self, name):
        self.calls += 1
        if self.calls == self.failing:
            os._exit(9)


def fsync(handle):
    """In place of `os.fsync`, whose flushing decides after a power cut only: the file must be open."""
    os.fstat(handle)


def exit_code():
    """Of the forked process."""
    return os.waitstatus_to_exitcode(os.wait()[1])


def run_forking(script, *arguments):
    """What a script prints that forks: in a process of its own, without threads that a fork would lose."""
    paths = [str(Path(files.__file__).parents[1]), str(Path(__file__).parent)]
    single = {"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
    done = subprocess.run(
        [sys.executable, "-c", script, *map(str, arguments)],
        env=os.environ | single | {"PYTHONPATH": os.pathsep.join([*sys.path, *paths])},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout
