"""A new bundle that is built beside its place and renamed into it: there whole, or not at all."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path as FilePath

from polyhead.bundle.files import writing
from polyhead.bundle.format import LOCK, TEMPORARY
from polyhead.errors import BundleError
from polyhead.files import sync_folder

MADE = "bundle"  # what is being written, inside the folder that is renamed away or removed
PATIENCE = 2.0  # seconds to wait for another process that builds a bundle for the same place


@contextmanager
def whole_bundle(root: FilePath | str) -> Iterator[FilePath]:
    """A path beside `root` to write a new bundle to; at the end of the block it becomes `root` in one step.

    All or nothing, also under a kill or a full disk: what is raised inside, and the next call after a kill, removes
    what was written. Raises BundleError unless `root` is absent or empty, and can be written.
    """
    root = FilePath(root).resolve()
    check_absent(root)
    with _workspace(root) as made:
        yield made
        sync_folder(made)
        os.rename(made, root)
        sync_folder(root.parent)


def check_absent(root: FilePath) -> None:
    """Raises BundleError unless a new bundle can be at `root`: nothing is there, or an empty folder."""
    if root.is_dir():
        there = sorted(entry.name for entry in root.iterdir())
        if there:
            raise BundleError(f"{root} holds something already", got=there[:5], do="name a new folder")
    if root.exists() and (not root.is_dir() or root.resolve() == FilePath.cwd()):
        what = "is the folder that this process works in" if root.is_dir() else "is a file"
        raise BundleError(f"{root} {what}", do="name a new folder")


@contextmanager
def _workspace(root: FilePath) -> Iterator[FilePath]:
    """A name beside `root` to write under, this process's alone; what a killed one left there is removed."""
    workspace, what = root.with_name(TEMPORARY + root.name), f"the bundle {root} cannot be written"
    try:
        workspace.mkdir(parents=True, exist_ok=True)
        foreign = sorted({entry.name for entry in workspace.iterdir()} - {LOCK, MADE})
    except OSError as error:
        raise BundleError(what, got=error, do="give a folder that can be written") from error
    if foreign or workspace.is_symlink():
        raise BundleError(
            f"{what}: {workspace}, which it needs, is not its own",
            got=foreign[:5] or "a link",
            do="rename that folder, or name another one for the bundle",
        )
    with writing(workspace, what, patience=PATIENCE):
        try:
            check_absent(root)
            shutil.rmtree(workspace / MADE, ignore_errors=True)
            yield workspace / MADE
        finally:
            shutil.rmtree(workspace, ignore_errors=True)
