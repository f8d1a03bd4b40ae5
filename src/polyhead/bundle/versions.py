"""Folders of versions: v0001, v0002, ..., each a folder of its own that never changes once it has its name."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path as FilePath

from polyhead.bundle.files import remove_leftovers
from polyhead.bundle.format import TEMPORARY
from polyhead.files import sync_folder

VERSION = re.compile(r"v\d{4,9}")
Writer = Callable[[FilePath], str]  # fills a new folder with a version's files; the SHA-256 of its record


def versions_in(folder: FilePath) -> list[str]:
    """All versions there, oldest first; none where there is no folder."""
    found = [entry.name for entry in folder.iterdir()] if folder.is_dir() else []
    return sorted((v for v in found if VERSION.fullmatch(v)), key=lambda v: int(v[1:]))


def next_version(folder: FilePath) -> str:
    """The name of the version after the newest one."""
    there = versions_in(folder)
    return f"v{int(there[-1][1:]) + 1 if there else 1:04d}"


def fill(folder: FilePath, version: str, write: Writer) -> str:
    """Lets the writer fill a new version, under a temporary name; gives what the writer gave. `settle` names it."""
    return write(folder / f"{TEMPORARY}{version}")


def settle(folder: FilePath, version: str) -> None:
    """Gives a version that is whole its name.

    All of a change are filled before the first one is named: only a kill in the moment between these names and the
    list of live versions leaves one that was never live.
    """
    os.rename(folder / f"{TEMPORARY}{version}", folder / version)
    sync_folder(folder)


def discard(folder: FilePath, version: str, *, live: str | None) -> None:
    """Removes what `fill` wrote, unless it is the live version, and the folder where no version is live."""
    shutil.rmtree(folder / f"{TEMPORARY}{version}", ignore_errors=True)
    if live != version:
        shutil.rmtree(folder / version, ignore_errors=True)
    if live is None and folder.is_dir() and not any(folder.iterdir()):
        folder.rmdir()


def remove_folder(folder: FilePath, name: str) -> None:
    """Removes a folder inside another; renamed first, so that a kill leaves no half of it under its name."""
    remove_leftovers(folder)
    os.rename(folder / name, folder / f"{TEMPORARY}{name}")
    remove_leftovers(folder)


def sweep_folders(folder: FilePath, is_kept: Callable[[str], bool]) -> None:
    """Removes folders of versions that are not kept, and nothing else; the folder itself where it is empty then."""
    there = [entry for entry in folder.iterdir() if entry.is_dir() and not entry.is_symlink()]
    for entry in there:
        if not is_kept(entry.name) and not entry.name.startswith(TEMPORARY) and _is_ours(entry):
            remove_folder(folder, entry.name)
    with suppress(OSError):
        folder.rmdir()


def _is_ours(folder: FilePath) -> bool:
    """Whether the folder holds versions and nothing else."""
    names = [entry.name for entry in folder.iterdir()]
    return all(name.startswith(TEMPORARY) or VERSION.fullmatch(name) for name in names)
