"""Atomic creation of a bundle: it is built in a folder next to its place, and renamed when it is complete."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path as FilePath

from polyhead.bundle.files import writing_bundle
from polyhead.bundle.format import LOCK, TEMPORARY
from polyhead.errors import BundleError, ConfigError, LockError
from polyhead.files import held, sync_folder
from polyhead.folders import WorkFolder, claim, dissolve, is_claimed, sweep

MADE = "bundle"  # what is being written, inside the folder that is renamed away or removed
PROOF = ".importing-"  # how the name of the folder begins where an import is proven
BUILDING = WorkFolder(purpose="a bundle or an export that is being built", is_ours=LOCK.__eq__, trees=(MADE,))
PATIENCE = 2.0  # seconds to wait for another process that builds a bundle for the same place


@contextmanager
def new_bundle_at(root: FilePath | str) -> Iterator[FilePath]:
    """A path beside `root` to write a new bundle to; at the end of the block it becomes `root` in one step.

    All or nothing, also under a kill or a full disk: an error inside, and the next call after a kill, removes the
    written files. Raises BundleError unless `root` is absent or empty, and can be written.
    """
    root = FilePath(root).resolve()
    check_absent(root)
    with workspace(root.with_name(TEMPORARY + root.name), f"the bundle {root} cannot be written") as building:
        check_absent(root)  # another process may have been faster
        yield building
        sync_folder(building)
        building.rename(root)
        sync_folder(root.parent)


def check_absent(root: FilePath) -> None:
    """Raises BundleError unless a new bundle can be at `root`: nothing is there, or an empty folder."""
    if root.is_dir():
        entries = sorted(entry.name for entry in root.iterdir())
        if entries:
            raise BundleError(f"{root} is not empty", got=entries[:5], do="name a new folder")
    if root.exists() and (not root.is_dir() or root.resolve() == FilePath.cwd()):
        reason = "is the folder that this process works in" if root.is_dir() else "is a file"
        raise BundleError(f"{root} {reason}", do="name a new folder")


@contextmanager
def workspace(folder: FilePath, problem: str) -> Iterator[FilePath]:
    """A path in `folder` to write a bundle to, for this process only; files of a killed process there are removed.

    The folder is removed at the end. Raises BundleError, which begins with `problem`, if Polyhead did not make it or
    another process works there.
    """
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        claim(folder, BUILDING)
    except ConfigError as error:
        do = "rename that folder, or name another one for the bundle"
        raise BundleError(f"{problem}: {error.what}", got=error.got, allowed=error.allowed, do=do) from None
    except OSError as error:
        raise BundleError(problem, got=error, do="give a folder that can be written") from error
    with writing_bundle(folder, problem, patience=PATIENCE):
        try:
            sweep(folder, BUILDING)
            shutil.rmtree(folder / MADE, ignore_errors=True)
            yield folder / MADE
        finally:
            dissolve(folder, BUILDING)


def sweep_beside(root: FilePath) -> None:
    """Removes files that killed merges, imports and proofs left next to a bundle; none in use."""
    root = root.resolve()
    for prefix in (TEMPORARY, PROOF):
        remove_workspace(root.with_name(prefix + root.name))


def remove_workspace(folder: FilePath) -> None:
    """Removes a folder that a killed process left; nothing of one that is in use, or somebody else's."""
    with suppress(OSError, BundleError, ConfigError, LockError):
        if is_claimed(folder, BUILDING):
            with held(folder / LOCK, patience=0.0, busy=BundleError("in use")):
                dissolve(folder, BUILDING)
        sweep(folder, BUILDING)
