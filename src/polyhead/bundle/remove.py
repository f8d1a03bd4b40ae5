"""Removal of tasks from a bundle, deletion of unnamed files, and undoing of an operation's changes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path as FilePath

import msgspec

from polyhead.bundle.atomic import sweep_beside
from polyhead.bundle.files import check_no_links, writing_bundle
from polyhead.bundle.format import FAMILIES, TASKS
from polyhead.bundle.manifest import BundleFile, read_bundle_file
from polyhead.bundle.owners import (
    check_whole_owners,
    is_family,
    owner_at,
    owner_named,
    place_of,
    task_names,
    tasks_text,
)
from polyhead.bundle.versions import (
    check_known,
    families_on_disk,
    on_disk,
    owned,
    remove_folder,
    replace_lines,
    sweep_section,
    was_trained,
    without_reader,
)
from polyhead.errors import BundleError


def remove_tasks(root: FilePath, names: Sequence[str]) -> None:
    """Removes tasks from bundle.json, then their folders with all versions, and families that no other task reads.

    bundle.json keeps the names of those that training made, so that it does not make them again by itself.
    Raises UnknownTask, and BundleError if a remaining task reads arrays of one of them.
    """
    with writing_bundle(root, f"{tasks_text(names)} cannot be removed from {root}"):
        _unlist(root, names)
        # From here on the tasks are gone; what cannot be removed now, the next writer removes.
        with suppress(OSError):
            for name in names:
                remove_folder(root / TASKS, name)
            _sweep(root, FAMILIES)


def unlist(root: FilePath, names: Sequence[str]) -> None:
    """Takes tasks' lines out of bundle.json, all at once; their folders stay until `sweep_bundle`, or `put_back`."""
    with writing_bundle(root, f"{tasks_text(names)} cannot be removed from {root}"):
        _unlist(root, names)


def sweep_bundle(root: FilePath) -> None:
    """Removes files that bundle.json does not name: removed tasks, killed adds, families that no version needs.

    It also removes files that killed processes left next to the bundle.
    """
    with writing_bundle(root, f"folders of removed tasks cannot be deleted in {root}"):
        for section in (TASKS, FAMILIES):
            _sweep(root, section)
    sweep_beside(root)


def put_back(
    root: FilePath, before: BundleFile, after: BundleFile, versions_before: Mapping[str, Sequence[str]]
) -> list[str]:
    """Undoes in bundle.json what differs between two of its states; lines that others changed since are kept.

    Versions that were not there before are removed; `versions_before` says which were, by owner. Gives the tasks and
    families whose old version is no longer on disk, so that their lines cannot be put back.
    """
    with writing_bundle(root, f"bundle.json of {root} could not be put back as it was"):
        try:
            current, is_read = read_bundle_file(root), True
        except BundleError:
            current, is_read = after, False  # nobody's change is lost with what cannot be read
        now = current.lines
        old, new = before.lines, after.lines
        differing = [o for o in {**old, **new} if old.get(o) != new.get(o) == now.get(o)]
        lost = [o for o in differing if o in old and old[o].version not in on_disk(root, o)]
        undone = [o for o in differing if o not in lost]
        wanted = {o: live for o, live in now.items() if o not in undone} | {o: old[o] for o in undone if o in old}
        lines = {o: wanted[o] for o in {**old, **now} if o in wanted}  # each in its old place
        facts = {o: owned(root, o, live.version, live.record) for o, live in lines.items()}
        if undone or not is_read:  # a bundle that may not be written, and was not, needs no writing
            check_whole_owners({}, facts, undone)
            removed = tuple(dict.fromkeys((*before.removed, *current.removed)))
            replace_lines(root, msgspec.structs.replace(before, removed=removed), lines)
        for owner, known in versions_before.items():
            for version in set(on_disk(root, owner)) - {*known, lines[owner].version if owner in lines else ""}:
                with suppress(OSError):
                    remove_folder(root.joinpath(*place_of(owner)), version)
    return [*task_names(lost), *(owner for owner in lost if is_family(owner))]


def _unlist(root: FilePath, names: Sequence[str]) -> None:
    bundle, owners = read_bundle_file(root), [owner_named(name) for name in names]
    for name, owner in zip(names, owners, strict=True):
        check_known(bundle, name)
        check_no_links(root, *place_of(owner))
    gone = {*owners, *without_reader(root, bundle, {}, gone=owners)}
    trained = [name for name in names if was_trained(root, owner_named(name), bundle.tasks[name].version)]
    bundle = msgspec.structs.replace(bundle, removed=tuple(dict.fromkeys((*bundle.removed, *trained))))
    replace_lines(root, bundle, {owner: live for owner, live in bundle.lines.items() if owner not in gone})


def _sweep(root: FilePath, section: str) -> None:
    bundle = read_bundle_file(root)
    kept = {*bundle.lines, *(_needed(root, bundle) if section == FAMILIES else ())}
    sweep_section(root, section, lambda name: owner_at(section, name) in kept)


def _needed(root: FilePath, bundle: BundleFile) -> set[str]:
    """Families that some version on disk needs, live or not, so that tasks can be rolled back."""
    families = set[str]()
    for name in bundle.tasks:
        for version in on_disk(root, owner_named(name)):
            facts = owned(root, owner_named(name), version)
            if facts is None:  # it might need any
                return set(families_on_disk(root))
            families.update(facts.needs)
    return families
