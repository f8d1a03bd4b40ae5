"""Folders of versions: v0001, v0002, ..., each a folder of its own that never changes once it has its name."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path as FilePath

from polyhead.config import Value
from polyhead.files import is_temporary, remove_leftovers, remove_tree, rename_inside, temporary_name

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


class WrittenVersion(Value):
    """A version that is whole, under a temporary name in its owner's folder."""

    folder: FilePath
    version: str
    temporary: str
    record: str  # SHA-256


def fill(folder: FilePath, version: str, write: Writer) -> WrittenVersion:
    """Lets the writer fill a new version, under a temporary name; `settle` gives it its own."""
    temporary = temporary_name(version)
    record = write(folder / temporary)
    return WrittenVersion(folder=folder, version=version, temporary=temporary, record=record)


def settle(filled: WrittenVersion) -> None:
    """Gives a version that is whole its name.

    All of a change are filled before the first one is named: only a kill in the moment between these names and the
    list of live versions leaves one that was never live.
    """
    rename_inside(filled.folder, filled.temporary, filled.version, root=filled.folder.parent)


def discard(folder: FilePath, version: str, *, live: str | None) -> None:
    """Removes what `fill` wrote, unless it is the live version, and the folder where no version is live."""
    with suppress(OSError):
        remove_leftovers(folder, root=folder.parent)
    if live != version:
        remove_tree(folder / version, root=folder.parent)
    if live is None:
        with suppress(OSError):
            folder.rmdir()


def remove_folder(folder: FilePath, name: str) -> None:
    """Removes a folder inside another; renamed first, so that a kill leaves no half of it under its name."""
    remove_leftovers(folder, root=folder.parent)
    rename_inside(folder, name, temporary_name(name), root=folder.parent)
    remove_leftovers(folder, root=folder.parent)


def sweep_folders(folder: FilePath, is_kept: Callable[[str], bool]) -> None:
    """Removes folders of versions that are not kept, and nothing else; the folder itself where it is empty then."""
    there = [entry for entry in folder.iterdir() if entry.is_dir() and not entry.is_symlink()]
    for entry in there:
        if not is_kept(entry.name) and not is_temporary(entry.name) and _is_ours(entry):
            remove_folder(folder, entry.name)
    with suppress(OSError):
        folder.rmdir()


def _is_ours(folder: FilePath) -> bool:
    """Whether the folder holds versions and nothing else."""
    names = [entry.name for entry in folder.iterdir()]
    return all(is_temporary(name) or VERSION.fullmatch(name) for name in names)
