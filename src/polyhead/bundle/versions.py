"""Folders of versions: v0001, v0002, ..., which never change once they have their name.

Tasks and families are added through `add_versions`. Every file is written under a temporary name, flushed and
renamed; the list of live versions is replaced last. A reader, or a kill at any moment, finds the state before or after.
"""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path as FilePath

import msgspec

from polyhead.bundle.files import check_no_links, hash_inside, read_inside
from polyhead.bundle.format import BUNDLE, FAMILIES, LARGEST_JSON, TASK, TASKS
from polyhead.bundle.manifest import VERSION, BundleFile, Live, read_bundle_file
from polyhead.bundle.owners import (
    Owned,
    check_whole_owners,
    owner_at,
    owner_named,
    place_of,
    record_file,
    titled,
    unread,
)
from polyhead.errors import BadName, BundleError, CorruptFile, UnknownTask
from polyhead.files import is_temporary, make_folder, remove_leftovers, replace_file, sync_folder, temporary_name
from polyhead.values import Value, to_json


class NewVersion(Value, eq=False):
    """A version to write: the arrays it gives, the arrays it needs, and what writes it."""

    owned: Owned
    write: Callable[[FilePath], str]  # fills a new folder with the version's files; returns the SHA-256 of its record
    pinned: bool = False


def on_disk(root: FilePath, owner: str) -> list[str]:
    """Versions of a task or family on disk, oldest first, the live one included."""
    folder = root.joinpath(*place_of(owner))
    names = [entry.name for entry in folder.iterdir()] if folder.is_dir() else []
    return sorted((name for name in names if VERSION.fullmatch(name)), key=lambda name: int(name[1:]))


def next_version(root: FilePath, owner: str) -> str:
    """The name of the version after the newest one of a task or family."""
    versions = on_disk(root, owner)
    return f"v{int(versions[-1][1:]) + 1 if versions else 1:04d}"


def version_on_disk(root: FilePath, name: str, version: str, live: Live) -> Live:
    """The line that makes a version on disk of a task the `live` one, pinned unless it is the newest.

    Raises BundleError for a version that does not exist.
    """
    known = on_disk(root, owner_named(name))
    if version not in known:
        raise BundleError(f"task '{name}' has no version {version}", allowed=known)
    record = hash_inside(root, TASKS, name, version, TASK)
    return msgspec.structs.replace(live, version=version, record=record, pinned=version != known[-1])


def add_versions(root: FilePath, bundle: BundleFile, new: Mapping[str, NewVersion]) -> dict[str, str]:
    """Writes a new version of each owner, and makes all live by one replacement of bundle.json.

    Returns the versions' names by owner. Call it under the bundle's lock; what did not become live is removed.
    """
    if not new:
        return {}
    gone = without_reader(root, bundle, {owner: version.owned for owner, version in new.items()})
    lines, versions = bundle.lines, dict[str, str]()
    try:
        _sweep(root)
        folders = {owner: _versions_folder(root, owner) for owner in new}
        temporary: dict[str, str] = {}
        for owner, version in new.items():
            versions[owner] = next_version(root, owner)
            temporary[owner] = temporary_name(versions[owner])
            record = version.write(folders[owner] / temporary[owner])
            lines[owner] = Live(version=versions[owner], record=record, pinned=version.pinned)
        # All versions are complete before the first gets its name: only a kill between these names and the list of
        # live versions leaves a version that was never live.
        for owner, folder in folders.items():
            (folder / temporary[owner]).rename(folder / versions[owner])
            sync_folder(folder)
        for section in dict.fromkeys(folder.parent for folder in folders.values()):
            sync_folder(section)
        sync_folder(root)
        replace_lines(root, bundle, {owner: live for owner, live in lines.items() if owner not in gone})
    except BaseException:
        _undo(root, versions)
        raise
    return versions


def remove_folder(folder: FilePath, name: str) -> None:
    """Removes a folder inside another; renamed first, so that a kill leaves no half of it under its name."""
    remove_leftovers(folder)
    (folder / name).rename(folder / temporary_name(name))
    sync_folder(folder)
    remove_leftovers(folder)


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


def _sweep(root: FilePath) -> None:
    """Removes what killed writers left in the bundle."""
    remove_leftovers(root)
    for section in (root / TASKS, root / FAMILIES):
        check_no_links(root, section.name)
        for path in (section, *section.iterdir()) if section.is_dir() else ():
            if path.is_dir() and not path.is_symlink():
                remove_leftovers(path)


def _versions_folder(root: FilePath, owner: str) -> FilePath:
    """The folder of an owner's versions, created if it is missing."""
    check_no_links(root, *place_of(owner))
    folder = root.joinpath(*place_of(owner))
    make_folder(folder, root=root)
    return folder


def _undo(root: FilePath, versions: Mapping[str, str]) -> None:
    """Removes versions that did not become live; live ones are kept, even if their last flush failed."""
    try:
        lines = read_bundle_file(root).lines
    except (BundleError, OSError):
        return
    for owner, version in versions.items():
        folder, live = root.joinpath(*place_of(owner)), lines.get(owner)
        with suppress(OSError):
            remove_leftovers(folder)
        if live is None or live.version != version:
            shutil.rmtree(folder / version, ignore_errors=True)
        if live is None:
            with suppress(OSError):
                folder.rmdir()


def families_on_disk(root: FilePath) -> list[str]:
    """Families that have a folder, whether bundle.json names them or not."""
    folder = root / FAMILIES
    names = sorted(entry.name for entry in folder.iterdir()) if folder.is_dir() else []
    return [owner_at(FAMILIES, name) for name in names if not is_temporary(name)]


def owned(root: FilePath, owner: str, version: str, record: str | None = None) -> Owned | None:
    """The arrays that a version has and needs; None if its record cannot be read or has another SHA-256."""
    try:
        raw = read_inside(root, *place_of(owner), version, record_file(owner), limit=LARGEST_JSON)
        facts = msgspec.json.decode(raw, type=_Facts)
    except (CorruptFile, msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    if record not in (None, hashlib.sha256(raw).hexdigest()):
        return None
    return Owned(arrays=facts.arrays, needs=facts.needs)


def was_trained(root: FilePath, owner: str, version: str) -> bool:
    """True if `polyhead train` made this version of a task, and where its record cannot be read."""
    section, name = place_of(owner)
    try:
        raw = read_inside(root, section, name, version, TASK, limit=LARGEST_JSON)
        training = msgspec.json.decode(raw, type=_Made).trained_with
        return training.fingerprint is not None and training.task.get("name") == name
    except (CorruptFile, msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return True


def live_owned(root: FilePath, bundle: BundleFile, owner: str) -> Owned | None:
    """The arrays that the live version has and needs; None also if there is no live version."""
    live = bundle.live(owner)
    return None if live is None else owned(root, owner, live.version, live.record)


def version_with(root: FilePath, owner: str, arrays: str) -> Live | None:
    """The newest version on disk with arrays of this digest."""
    for version in reversed(on_disk(root, owner)):
        facts = owned(root, owner, version)
        if facts is not None and facts.arrays == arrays:
            return Live(version=version, record=hash_inside(root, *place_of(owner), version, record_file(owner)))
    return None


def made_with(root: FilePath, names: Sequence[str], version: str | None = None) -> dict[str, str]:
    """The versions of these tasks to return to: of the first task `version`, or the one before its live one.

    Every other task gets the version that was made with those chosen before it, if one of them needs it, else the one
    before its live one. Raises UnknownTask, and BundleError where there is no such version.
    """
    bundle, chosen, known = read_bundle_file(root), dict[str, str](), dict[str, Owned]()
    for name in names:
        check_known(bundle, name)
        owner, live = owner_named(name), bundle.tasks[name].version
        versions_there = on_disk(root, owner)
        earlier = versions_there[: versions_there.index(live)] if live in versions_there else []
        needed = {facts.needs[owner] for facts in known.values() if owner in facts.needs}
        if needed:
            fitting = [v for v in versions_there if _fits(owned(root, owner, v), needed, known)]
            problem = f"task '{name}' has no version that was made with those chosen of {', '.join(chosen)}"
        else:
            fitting = [version] if version is not None and not chosen else earlier
            problem = f"task '{name}' has no version before {live}, the live one"
        if not fitting:
            raise BundleError(problem, allowed=versions_there)
        chosen[name] = fitting[-1]
        chosen_facts = owned(root, owner, fitting[-1]) if fitting[-1] in versions_there else None
        if chosen_facts is not None:
            known[owner] = chosen_facts
    return chosen


def _fits(facts: Owned | None, needed: Collection[str], known: Mapping[str, Owned]) -> bool:
    """True if a version has the arrays that others need, and needs only arrays that they have."""
    if facts is None or any(digest != facts.arrays for digest in needed):
        return False
    return all(known[o].arrays == digest for o, digest in facts.needs.items() if o in known)


def without_reader(
    root: FilePath, bundle: BundleFile, new: Mapping[str, Owned], *, gone: Collection[str] = ()
) -> list[str]:
    """Families that no task reads once `new` versions are live and the owners in `gone` are removed.

    Raises BundleError, with the names of a group's members, if the bundle would lack needed arrays then.
    """
    before = {owner: live_owned(root, bundle, owner) for owner in bundle.lines}
    after = {owner: facts for owner, facts in {**before, **new}.items() if owner not in gone}
    check_whole_owners(before, after, {*new, *gone})
    return unread(after)


def replace_lines(root: FilePath, bundle: BundleFile, lines: Mapping[str, Live]) -> None:
    """Makes these versions, by owner, the live ones: the one step that readers see."""
    replace_file(root / BUNDLE, to_json(bundle.of(lines)))


def check_known(bundle: BundleFile, name: str) -> None:
    """Raises UnknownTask where bundle.json does not name the task."""
    if not isinstance(name, str) or name not in bundle.tasks:
        raise UnknownTask(f"the bundle has no task '{name}'", got=name, allowed=sorted(bundle.tasks))


class TakenNames:
    """Owners that a bundle has or will get: two whose names differ only in case would share a folder."""

    def __init__(self, owners: Iterable[str]) -> None:
        self._known, self._added = {owner.casefold(): owner for owner in owners}, set[str]()

    def add(self, owner: str, *, replace: bool) -> None:
        """Raises BadName if the name is taken, unless it is to be replaced, or differs from another only in case."""
        other = self._known.get(owner.casefold())
        if other == owner and (owner in self._added or not replace):
            problem = f"the bundle has a {titled(owner)} already"
            raise BadName(problem, got=owner, do="choose another name, or replace it")
        if other not in (None, owner):
            problem = f"{titled(owner)} differs from another in case alone"
            raise BadName(problem, got=owner, allowed=f"not like {titled(str(other))}")
        self._known[owner.casefold()] = owner
        self._added.add(owner)


class _Facts(msgspec.Struct):
    """The fields of task.json and family.json that bind tasks together; the rest is not looked at."""

    arrays: str
    needs: dict[str, str] = {}


class _Training(msgspec.Struct, frozen=True):
    """The facts that `polyhead train` records of each part it trained."""

    fingerprint: object = None
    task: dict[str, object] = {}


class _Made(msgspec.Struct):
    """The origin of a version."""

    trained_with: _Training = _Training()
