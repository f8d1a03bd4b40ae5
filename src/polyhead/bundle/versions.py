"""Folders of versions: v0001, v0002, ..., each a folder of its own that never changes once it has its name.

Tasks, families and models are added through `add_versions`. Every file is written under a temporary name, flushed and
renamed; the list of live versions is replaced last. A reader, or a kill at any moment, meets the state before or after.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path as FilePath

from polyhead.bundle.files import check_no_links, hash_inside
from polyhead.bundle.format import FAMILIES, MODELS, TASK, TASKS
from polyhead.bundle.manifest import Live
from polyhead.bundle.owners import place_of, titled
from polyhead.errors import BundleError
from polyhead.files import (
    is_temporary,
    make_folder,
    remove_leftovers,
    remove_tree,
    rename_inside,
    sync_folder,
    temporary_name,
)

VERSION = re.compile(r"v\d{4,9}")
Writer = Callable[[FilePath], str]  # fills a new folder with a version's files; returns the SHA-256 of its record


def versions_in(folder: FilePath) -> list[str]:
    """All versions in a folder, oldest first; none where the folder does not exist."""
    names = [entry.name for entry in folder.iterdir()] if folder.is_dir() else []
    return sorted((name for name in names if VERSION.fullmatch(name)), key=lambda name: int(name[1:]))


def next_version(folder: FilePath) -> str:
    """The name of the version after the newest one."""
    versions = versions_in(folder)
    return f"v{int(versions[-1][1:]) + 1 if versions else 1:04d}"


def version_on_disk(root: FilePath, owner: str, version: str) -> Live:
    """The line that makes a version on disk the live one, pinned unless it is the newest.

    Raises BundleError for a version that does not exist.
    """
    versions = versions_in(root.joinpath(*place_of(owner)))
    if version not in versions:
        raise BundleError(f"{titled(owner)} has no version {version}", allowed=versions)
    record = hash_inside(root, *place_of(owner), version, TASK)
    return Live(version=version, record=record, pinned=version != versions[-1])


def add_versions(
    root: FilePath,
    writers: Mapping[str, Writer],
    *,
    read_live: Callable[[], Mapping[str, Live]],
    publish: Callable[[Mapping[str, Live]], None],
) -> dict[str, str]:
    """Writes a new version of each owner, then lets `publish` make all of them live in one step.

    Call it under the bundle's lock. `read_live` reads the live versions by owner: when something fails, new versions
    that are not live are removed. Returns the names of the new versions by owner.
    """
    versions: dict[str, str] = {}
    try:
        folders = {owner: _prepare(root, owner) for owner in writers}
        temporary: dict[str, str] = {}
        lines: dict[str, Live] = {}
        for owner, write in writers.items():
            versions[owner] = next_version(folders[owner])
            temporary[owner] = temporary_name(versions[owner])
            record = write(folders[owner] / temporary[owner])
            lines[owner] = Live(version=versions[owner], record=record)
        # All versions are complete before the first gets its name: only a kill between these names and the list of
        # live versions leaves a version that was never live.
        for owner, folder in folders.items():
            rename_inside(folder, temporary[owner], versions[owner], root=folder.parent)
        for section in dict.fromkeys(folder.parent for folder in folders.values()):
            sync_folder(section)
        sync_folder(root)
        publish(lines)
    except BaseException:
        _undo(root, versions, read_live)
        raise
    return versions


def remove_folder(folder: FilePath, name: str) -> None:
    """Removes a folder inside another; renamed first, so that a kill leaves no half of it under its name."""
    remove_leftovers(folder, root=folder.parent)
    rename_inside(folder, name, temporary_name(name), root=folder.parent)
    remove_leftovers(folder, root=folder.parent)


def sweep_section(root: FilePath, section: str, is_kept: Callable[[str], bool]) -> None:
    """Removes the folders of versions in a section that are not kept, and the section itself when it is empty.

    `is_kept` takes a folder's name. Folders that hold anything but versions stay.
    """
    check_no_links(root, section)
    folder = root / section
    if not folder.is_dir():
        return
    for entry in [entry for entry in folder.iterdir() if entry.is_dir() and not entry.is_symlink()]:
        if not is_kept(entry.name) and not is_temporary(entry.name) and _holds_versions_only(entry):
            remove_folder(folder, entry.name)
    with suppress(OSError):
        folder.rmdir()


def _holds_versions_only(folder: FilePath) -> bool:
    names = [entry.name for entry in folder.iterdir()]
    return all(is_temporary(name) or VERSION.fullmatch(name) for name in names)


def _prepare(root: FilePath, owner: str) -> FilePath:
    """The folder of an owner's versions, made if missing; what killed writers left in the bundle is removed."""
    folder = root.joinpath(*place_of(owner))
    check_no_links(root, *place_of(owner))
    make_folder(folder, root=root)
    remove_leftovers(root)
    for section in (root / TASKS, root / FAMILIES, root / MODELS):
        check_no_links(root, section.name)
        for path in (section, *section.iterdir()) if section.is_dir() else ():
            if path.is_dir() and not path.is_symlink():
                remove_leftovers(path, root=root)
    return folder


def _undo(root: FilePath, versions: Mapping[str, str], read_live: Callable[[], Mapping[str, Live]]) -> None:
    """Removes versions that did not become live; live ones are kept, even if their last flush failed."""
    try:
        lines = read_live()
    except (BundleError, OSError):
        return
    for owner, version in versions.items():
        folder, live = root.joinpath(*place_of(owner)), lines.get(owner)
        with suppress(OSError):
            remove_leftovers(folder, root=folder.parent)
        if live is None or live.version != version:
            remove_tree(folder / version, root=folder.parent)
        if live is None:
            with suppress(OSError):
                folder.rmdir()
