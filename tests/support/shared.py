"""Folders that tests of several files read, such as trained bundles: made once for all workers of a run."""

import fcntl
import os
import shutil


def made_once(tmp_path_factory, name, make):
    """The folder of this name, which `make` fills where no other test or worker has; tests leave it as it is."""
    base = tmp_path_factory.getbasetemp()
    shared = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "shared"
    shared.mkdir(exist_ok=True)
    with (shared / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # it is given back when its file is closed
        folder = shared / name
        done = shared / f"{name}.done"
        if not done.exists():
            shutil.rmtree(folder, ignore_errors=True)  # of a worker that failed
            folder.mkdir()
            make(folder)
            done.touch()
    return folder
