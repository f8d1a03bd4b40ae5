"""Creating a bundle; adding, replacing and rolling back its tasks, with the families that they read: folders and lines.

Every file is written under a temporary name, flushed, and renamed. bundle.json comes last when something is
added and first when something is removed, so a reader, or a kill at any moment, meets the state before or the
state after.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path as FilePath
from typing import Any

import msgspec
import numpy as np

from polyhead.bundle.complete import OtherOwners, check_all_read, completed
from polyhead.bundle.families import FamilyDraft, write_family
from polyhead.bundle.files import check_hash, check_no_links, read_inside, writing
from polyhead.bundle.format import (
    CARD,
    FAMILIES,
    LARGEST_JSON,
    LOCK,
    PART,
    PROBES,
    SCORES,
    TASK,
    TASKS,
    TOKENIZER,
    TRUNK,
    TRUNK_RECORD,
    WEIGHTS,
)
from polyhead.bundle.lines import (
    check_free,
    check_known,
    live_owned,
    on_disk,
    replace_lines,
    version_with,
    versions,
    without_reader,
)
from polyhead.bundle.manifest import (
    BundleFile,
    Live,
    TaskRecord,
    TrunkRecord,
    read_bundle_file,
    read_task,
    read_trunk_record,
    task_json,
)
from polyhead.bundle.models import check_no_models
from polyhead.bundle.owners import Owned, is_family, listed, owner_named, place_of, task_names, titled
from polyhead.bundle.tensors import write_arrays
from polyhead.bundle.versions import Writer, WrittenVersion, discard, fill, next_version, settle
from polyhead.config import Value, to_json
from polyhead.errors import BundleError
from polyhead.files import (
    is_temporary,
    make_folder,
    remove_leftovers,
    remove_tree,
    rename_inside,
    sync_folder,
    temporary_name,
    write_file,
)
from polyhead.tasks.task import owner_of
from polyhead.trunk.data import TrunkData, arrays_digest, trunk_digest


class Draft(Value, eq=False):
    """A task as it is to be written; see `Bundle.add_task`."""

    record: TaskRecord
    arrays: Mapping[str, np.ndarray]
    scores: Mapping[str, Any]
    probes: Sequence[Mapping[str, Any]]
    card: str


class NewVersion(msgspec.Struct, frozen=True, kw_only=True):
    """A version that is to be written: what it will give and need, and what writes it."""

    owned: Owned
    write: Writer


def add_tasks(
    root: FilePath, drafts: Sequence[Draft], *, families: Sequence[FamilyDraft] = (), replace: bool = False
) -> dict[str, str]:
    """Writes a new version of each task and makes all live in one step, so that a kill leaves none or all of them.

    `families` are those that the tasks read and the bundle does not hold yet, or not with these arrays. Gives the
    versions' names, by task. Raises as `Bundle.add_task` does, and where the change would take from another task
    what it reads.
    """
    names = [draft.record.task.name for draft in drafts]
    with writing(root, f"{listed(names)} cannot be added to {root}"):
        bundle = read_bundle_file(root)
        made = new_versions(root, bundle, _new(root, bundle, drafts, families, replace=replace))
    return {name: made[owner_named(name)] for name in names}


def new_versions(root: FilePath, bundle: BundleFile, new: Mapping[str, NewVersion]) -> dict[str, str]:
    """Lets each writer fill a new version of its owner, then makes all live by one replacement of bundle.json.

    Gives the versions' names, by owner. To be called under the lock; what did not become live is removed.
    """
    made: dict[str, str] = {}
    lines: dict[str, Live] = {}
    if not new:
        return made
    check_no_models(root, task_names(new))
    gone = without_reader(root, bundle, {owner: one.owned for owner, one in new.items()})
    try:
        folders = {owner: _prepare(root, owner) for owner in new}
        filled: dict[str, WrittenVersion] = {}
        for owner, one in new.items():
            made[owner] = next_version(folders[owner])
            filled[owner] = fill(folders[owner], made[owner], one.write)
            lines[owner] = Live(version=made[owner], record=filled[owner].record)
        for version in filled.values():
            settle(version)
        for section in dict.fromkeys(place_of(owner)[0] for owner in new):
            sync_folder(root / section)
        sync_folder(root)
        lines = {**bundle.lines, **lines}
        replace_lines(root, bundle, {owner: live for owner, live in lines.items() if owner not in gone})
    except BaseException:
        _undo(root, made)
        raise
    return made


def set_versions(root: FilePath, wanted: Mapping[str, str], *, records: Mapping[str, str | None] | None = None) -> None:
    """Makes older or newer versions on disk the live ones, all in one step, with the families that they were made with.

    Those that are not the newest of their task are pinned: training leaves them until it is asked by their names.
    `records` says which SHA-256 a version's task.json must have, by task, where somebody wrote that down. Raises
    BundleError for a version that is not there, or one that does not fit what stays live.
    """
    with writing(root, f"other versions of {listed(list(wanted))} cannot be made live in {root}"):
        bundle = read_bundle_file(root)
        shape = read_trunk_record(root).architecture
        new: dict[str, tuple[Live, Owned]] = {}
        for name, version in wanted.items():
            live = _line_of(root, bundle, name, version)
            check_hash(root / TASKS / name / version / TASK, live.record, (records or {}).get(name) or live.record)
            record = read_task(root, name, live, trunk=bundle.trunk, shape=shape)
            new[owner_named(name)] = live, Owned(arrays=record.arrays, needs=record.needs)
        for _, owned in list(new.values()):
            new |= _families_of(root, bundle, owned)
        gone = without_reader(root, bundle, {owner: owned for owner, (_, owned) in new.items()})
        lines = {**bundle.lines, **{owner: live for owner, (live, _) in new.items()}}
        replace_lines(root, bundle, {owner: live for owner, live in lines.items() if owner not in gone})


def _new(
    root: FilePath, bundle: BundleFile, drafts: Sequence[Draft], families: Sequence[FamilyDraft], *, replace: bool
) -> dict[str, NewVersion]:
    """What is to be written, by owner, families first; those that are live with the same arrays are not."""
    shape, found = read_trunk_record(root).architecture, dict[str, NewVersion]()
    given = {owner_of(draft.record.task): draft.arrays for draft in drafts}
    others = OtherOwners(root, bundle, given | {family.family: family.arrays for family in families})
    records = [completed(d.record, d.arrays, others, trunk=bundle.trunk, shape=shape) for d in drafts]
    for family in families:
        owned = Owned(arrays=others.digest(family.family))
        if owned != live_owned(root, bundle, family.family):
            check_free([*bundle.lines, *found], family.family, replace and family.family not in found)
            check_all_read(family, records, shape)
            found[family.family] = NewVersion(owned=owned, write=partial(write_family, family, bundle.trunk))
    for draft, record in zip(drafts, records, strict=True):
        check_free([*bundle.lines, *found], record.owner, replace and record.owner not in found)
        owned = Owned(arrays=record.arrays, needs=record.needs)
        write = partial(_write_task, msgspec.structs.replace(draft, record=record))
        found[record.owner] = NewVersion(owned=owned, write=write)
    return found


def _line_of(root: FilePath, bundle: BundleFile, name: str, version: str) -> Live:
    check_known(bundle, name)
    there = versions(root, name)
    if version not in there:
        raise BundleError(f"task '{name}' has no version {version}", allowed=there)
    raw = read_inside(root, TASKS, name, version, TASK, limit=LARGEST_JSON)
    return Live(version=version, record=hashlib.sha256(raw).hexdigest(), pinned=version != there[-1])


def _families_of(root: FilePath, bundle: BundleFile, owned: Owned) -> dict[str, tuple[Live, Owned]]:
    """The versions of families that a task was made with, where others are live."""
    found = {}
    for owner, digest in owned.needs.items():
        wanted = Owned(arrays=digest)
        if is_family(owner) and live_owned(root, bundle, owner) != wanted:
            live = version_with(root, owner, digest)
            if live is None:
                raise BundleError(
                    f"the version needs arrays of {titled(owner)} that are no longer on disk",
                    got=f"versions {on_disk(root, owner)}",
                    allowed=f"arrays {digest}",
                    do="choose another version",
                )
            found[owner] = live, wanted
    return found


def is_leftover(entry: FilePath) -> bool:
    """Whether a writer killed before bundle.json was there left this, and nobody else."""
    if entry.name == TRUNK and entry.is_dir() and not entry.is_symlink():
        return {file.name for file in entry.iterdir()} <= {TRUNK_RECORD, WEIGHTS, TOKENIZER}
    return entry.name == LOCK or is_temporary(entry.name)


def write_trunk(root: FilePath, trunk: TrunkData) -> str:
    """Writes the folder of a trunk in one step; its digest."""
    temporary = root / temporary_name(TRUNK)
    try:
        temporary.mkdir()
        record = TrunkRecord(
            name=trunk.name,
            architecture=trunk.architecture,
            settings=trunk.settings,
            arrays=arrays_digest(trunk.arrays),
            weights=write_arrays(temporary / WEIGHTS, trunk.arrays),
            tokenizer=write_file(temporary / TOKENIZER, [trunk.tokenizer]),
        )
        write_file(temporary / TRUNK_RECORD, [to_json(record)])
        sync_folder(temporary)
        rename_inside(root, temporary.name, TRUNK)
    except BaseException:
        remove_tree(temporary, root=root)
        raise
    return trunk_digest(record.architecture, record.arrays, trunk.tokenizer, record.settings)


def _write_task(draft: Draft, folder: FilePath) -> str:
    """Writes all files of one version; the SHA-256 of its task.json, which is written last."""
    record = draft.record
    try:
        lines = b"".join(msgspec.json.encode(probe) + b"\n" for probe in draft.probes)
        contents = {SCORES: to_json(draft.scores), PROBES: lines, CARD: draft.card.encode()}
        folder.mkdir()
        hashes = {PART: write_arrays(folder / PART, draft.arrays)}
        for name, content in contents.items():
            hashes[name] = write_file(folder / name, [content])
        del hashes[CARD]  # people may edit a card
        hashed = write_file(folder / TASK, [task_json(msgspec.structs.replace(record, files=hashes))])
    except (TypeError, UnicodeEncodeError) as error:
        raise BundleError(
            f"task '{record.task.name}' holds something that is no JSON", got=error, do="give plain values"
        ) from None
    sync_folder(folder)
    return hashed


def _prepare(root: FilePath, owner: str) -> FilePath:
    """The folder of an owner's versions, made where it is not there; what killed writers left anywhere is removed."""
    folder = root.joinpath(*place_of(owner))
    check_no_links(root, *place_of(owner))
    make_folder(folder, root=root)
    remove_leftovers(root)
    for section in (root / TASKS, root / FAMILIES):
        check_no_links(root, section.name)
        for path in (section, *section.iterdir()) if section.is_dir() else ():
            if path.is_dir() and not path.is_symlink():
                remove_leftovers(path, root=root)
    return folder


def _undo(root: FilePath, made: Mapping[str, str]) -> None:
    """Removes versions that did not become live; those that did are kept, though their last flush failed."""
    try:
        lines = read_bundle_file(root).lines
    except (BundleError, OSError):
        return
    for owner, version in made.items():
        live = lines.get(owner)
        discard(root.joinpath(*place_of(owner)), version, live=None if live is None else live.version)
