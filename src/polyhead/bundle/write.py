"""Creating a bundle; adding, replacing, rolling back and removing its tasks: one folder and one line each.

Every file is written under a temporary name, flushed, and renamed. bundle.json comes last when something is
added and first when something is removed, so a reader, or a kill at any moment, meets the state before or the
state after.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path as FilePath
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from polyhead.bundle.files import (
    check_hash,
    check_no_links,
    read_inside,
    remove_leftovers,
    replace_file,
    sync_folder,
    write_file,
    writing,
)
from polyhead.bundle.format import (
    BUNDLE,
    CARD,
    FORMAT,
    LARGEST_JSON,
    LOCK,
    PART,
    PROBES,
    SCORES,
    TASK,
    TASKS,
    TEMPORARY,
    TOKENIZER,
    TRUNK,
    TRUNK_RECORD,
    WEIGHTS,
)
from polyhead.bundle.manifest import (
    BundleFile,
    Live,
    TaskRecord,
    TrunkRecord,
    check_fit,
    prefix_of,
    read_bundle_file,
    read_task,
    read_trunk_record,
    task_json,
)
from polyhead.bundle.models import check_no_models
from polyhead.bundle.tensors import write_arrays
from polyhead.config import Value, to_json
from polyhead.cost import part_arrays
from polyhead.errors import BadName, BundleError, UnknownTask
from polyhead.tasks.task import owner_of
from polyhead.trunk_data import TrunkData, arrays_digest, check_arrays, trunk_digest

if TYPE_CHECKING:
    from polyhead.bundle.read import Bundle

Writer = Callable[[FilePath], str]  # fills a new folder with a version's files; the SHA-256 of its task.json


def write_bundle(root: FilePath | str, trunk: TrunkData) -> Bundle:
    """A new bundle of this trunk, without tasks; raises BundleError unless the folder is absent or empty."""
    from polyhead.bundle.read import Bundle  # here, since a bundle's methods call this module

    root = FilePath(root)
    what = f"the bundle {root} cannot be created"
    try:
        root.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BundleError(what, got=error.strerror, do="give a folder that can be written") from error
    with writing(root, what):
        foreign = sorted(entry.name for entry in root.iterdir() if not _is_leftover(entry))
        if foreign:
            raise BundleError(
                f"{root} holds something already",
                got=foreign[:5],
                do="open the bundle there, or name a new folder",
            )
        remove_leftovers(root)
        shutil.rmtree(root / TRUNK, ignore_errors=True)
        digest = _write_trunk(root, trunk)
        replace_file(root / BUNDLE, to_json(BundleFile(format=FORMAT, trunk=digest, tasks={})))
    return Bundle.open(root)


class Draft(Value, eq=False):
    """A task as it is to be written; see `Bundle.add_task`."""

    record: TaskRecord
    arrays: Mapping[str, np.ndarray]
    scores: Mapping[str, Any]
    probes: Sequence[Mapping[str, Any]]
    card: str


def add_tasks(root: FilePath, drafts: Sequence[Draft], *, replace: bool = False) -> dict[str, str]:
    """Writes a new version of each task and makes all live in one step, so that a kill leaves none or all of them.

    Gives the versions' names, by task. Raises as `Bundle.add_task` does.
    """
    names = [draft.record.task.name for draft in drafts]
    with writing(root, f"{listed(names)} cannot be added to {root}"):
        bundle = read_bundle_file(root)
        writers: dict[str, Writer] = {}
        for name, draft in zip(names, drafts, strict=True):
            _check_free([*bundle.tasks, *writers], name, replace and name not in writers)
            record = _completed(draft.record, draft.arrays, root, bundle)
            writers[name] = partial(_write_task, msgspec.structs.replace(draft, record=record))
        return new_versions(root, bundle, writers)


def new_versions(root: FilePath, bundle: BundleFile, writers: Mapping[str, Writer]) -> dict[str, str]:
    """Lets each writer fill a new version of its task, then makes all live by one replacement of bundle.json.

    Gives the versions' names. To be called under the lock; what did not become live is removed.
    """
    made: dict[str, str] = {}
    lines: dict[str, Live] = {}
    if not writers:
        return made
    check_no_models(root, writers)
    try:
        for name, write in writers.items():
            folder = root / TASKS / name
            _prepare(root, folder)
            made[name] = version = _next_version(folder)
            hashed = write(folder / f"{TEMPORARY}{version}")
            os.rename(folder / f"{TEMPORARY}{version}", folder / version)
            sync_folder(folder)
            lines[name] = Live(version=version, record=hashed)
        for changed in (root / TASKS, root):
            sync_folder(changed)
        _make_live(root, bundle, lines)
    except BaseException:
        _undo(root, made)
        raise
    return made


def set_version(root: FilePath, name: str, version: str, *, record: str | None = None) -> None:
    """Makes an older or newer version on disk the live one; see `Bundle.set_version`.

    `record` is the SHA-256 that its task.json must have, where somebody wrote that down.
    """
    with writing(root, f"version {version} of task '{name}' cannot be made live in {root}"):
        bundle = read_bundle_file(root)
        _check_known(bundle, name)
        on_disk = versions(root, name)
        if version not in on_disk:
            raise BundleError(f"task '{name}' has no version {version}", allowed=on_disk)
        raw = read_inside(root, TASKS, name, version, TASK, limit=LARGEST_JSON)
        live = Live(version=version, record=hashlib.sha256(raw).hexdigest())
        check_hash(root / TASKS / name / version / TASK, live.record, record or live.record)
        read_task(root, name, live, trunk=bundle.trunk, shape=read_trunk_record(root).architecture)
        _make_live(root, bundle, {name: live})


def remove_task(root: FilePath, name: str) -> None:
    """Takes a task's line out of bundle.json, then removes its folder with all versions."""
    with writing(root, f"task '{name}' cannot be removed from {root}"):
        _unlist(root, [name])
        # From here on the task is gone; what cannot be removed now, the next writer removes.
        with suppress(OSError):
            _remove_folder(root, name)


def unlist(root: FilePath, names: Sequence[str]) -> None:
    """Takes tasks' lines out of bundle.json, all at once; their folders stay until `sweep`, or `put_back`."""
    with writing(root, f"{listed(names)} cannot be removed from {root}"):
        _unlist(root, names)


def sweep(root: FilePath) -> None:
    """Removes folders of tasks that bundle.json does not name: of removed tasks, and of adds that were killed."""
    with writing(root, f"folders of removed tasks cannot be deleted in {root}"):
        check_no_links(root, TASKS)
        if not (root / TASKS).is_dir():
            return
        named = read_bundle_file(root).tasks
        there = [entry for entry in (root / TASKS).iterdir() if entry.is_dir() and not entry.is_symlink()]
        for folder in there:
            if folder.name not in named and not folder.name.startswith(TEMPORARY) and _is_ours(folder):
                _remove_folder(root, folder.name)
        with suppress(OSError):
            (root / TASKS).rmdir()  # of a bundle without tasks; else it is not empty and stays


def put_back(
    root: FilePath, before: BundleFile, after: BundleFile, versions_before: Mapping[str, Sequence[str]]
) -> list[str]:
    """Undoes in bundle.json what differs between two of its states; lines that others changed since are kept.

    Versions that were not there before are removed. Gives the tasks whose old version is no longer on disk, so that
    their lines cannot be put back.
    """
    with writing(root, f"bundle.json of {root} could not be put back as it was"):
        try:
            now = read_bundle_file(root)
        except BundleError:
            now = after  # what is there cannot be read, so nobody's change is lost with it
        old, new = before.tasks, after.tasks
        differing = [n for n in {**old, **new} if old.get(n) != new.get(n) == now.tasks.get(n)]
        lost = [n for n in differing if n in old and old[n].version not in versions(root, n)]
        undone = [n for n in differing if n not in lost]
        wanted = {n: live for n, live in now.tasks.items() if n not in undone}
        wanted |= {n: old[n] for n in undone if n in old}
        tasks = {n: wanted[n] for n in {**old, **now.tasks} if n in wanted}  # each in its old place
        replace_file(root / BUNDLE, to_json(msgspec.structs.replace(before, tasks=tasks)))
        for name, there in versions_before.items():
            for version in set(versions(root, name)) - {*there, tasks[name].version if name in tasks else ""}:
                with suppress(OSError):
                    _remove_version(root / TASKS / name, version)
    return lost


def listed(names: Sequence[str]) -> str:
    """Tasks, as an error names them."""
    return f"task '{names[0]}'" if len(names) == 1 else f"tasks {', '.join(names)}"


def versions(root: FilePath, name: str) -> list[str]:
    """Versions of a task on disk, oldest first, the live one included."""
    folder = root / TASKS / name
    found = [entry.name for entry in folder.iterdir()] if folder.is_dir() else []
    return sorted((v for v in found if re.fullmatch(r"v\d{4,9}", v)), key=lambda v: int(v[1:]))


def _unlist(root: FilePath, names: Sequence[str]) -> None:
    bundle = read_bundle_file(root)
    for name in names:
        _check_known(bundle, name)
        check_no_links(root, TASKS, name)
    kept = {other: live for other, live in bundle.tasks.items() if other not in names}
    replace_file(root / BUNDLE, to_json(msgspec.structs.replace(bundle, tasks=kept)))


def _remove_folder(root: FilePath, name: str) -> None:
    """Renamed first, so that a kill leaves no half of a folder under the task's name."""
    remove_leftovers(root / TASKS)
    os.rename(root / TASKS / name, root / TASKS / f"{TEMPORARY}{name}")
    remove_leftovers(root / TASKS)


def _remove_version(folder: FilePath, version: str) -> None:
    remove_leftovers(folder)
    os.rename(folder / version, folder / f"{TEMPORARY}{version}")
    remove_leftovers(folder)


def _is_ours(folder: FilePath) -> bool:
    """Whether the folder holds versions of a task and nothing else."""
    names = [entry.name for entry in folder.iterdir()]
    return all(name.startswith(TEMPORARY) or re.fullmatch(r"v\d{4,9}", name) for name in names)


def _is_leftover(entry: FilePath) -> bool:
    """Whether a writer killed before bundle.json was there left this, and nobody else."""
    if entry.name == TRUNK and entry.is_dir() and not entry.is_symlink():
        return {file.name for file in entry.iterdir()} <= {TRUNK_RECORD, WEIGHTS, TOKENIZER}
    return entry.name == LOCK or entry.name.startswith(TEMPORARY)


def _write_trunk(root: FilePath, trunk: TrunkData) -> str:
    temporary = root / f"{TEMPORARY}{TRUNK}"
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
        os.rename(temporary, root / TRUNK)
        sync_folder(root)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    return trunk_digest(record.architecture, record.arrays, trunk.tokenizer, record.settings)


def _completed(
    record: TaskRecord, arrays: Mapping[str, np.ndarray], root: FilePath, bundle: BundleFile
) -> TaskRecord:
    """The record with its empty fields filled in; what was given must agree."""
    shape, given = read_trunk_record(root).architecture, record
    record = msgspec.structs.replace(
        record, owner=record.owner or owner_of(record.task), arrays=arrays_digest(arrays)
    )
    check_fit(record, trunk=bundle.trunk, shape=shape)
    check_arrays(arrays, part_arrays(record.path, shape, record.owner), owner=f"task '{record.task.name}'")
    record = msgspec.structs.replace(record, prefix=prefix_of(record))
    for field in ("prefix", "arrays"):
        if getattr(given, field) not in ("", getattr(record, field)):
            raise BundleError(
                f"the record of task '{record.task.name}' has another digest of its {field}",
                got=getattr(given, field),
                allowed=getattr(record, field),
                do="leave the field empty",
            )
    return record


def _prepare(root: FilePath, folder: FilePath) -> None:
    check_no_links(root, TASKS, folder.name)
    folder.mkdir(parents=True, exist_ok=True)
    remove_leftovers(root)
    for path in (root / TASKS, *(root / TASKS).iterdir()):
        if path.is_dir() and not path.is_symlink():
            remove_leftovers(path)


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


def _make_live(root: FilePath, bundle: BundleFile, lines: Mapping[str, Live]) -> None:
    tasks = {**bundle.tasks, **lines}
    replace_file(root / BUNDLE, to_json(msgspec.structs.replace(bundle, tasks=tasks)))


def _undo(root: FilePath, made: Mapping[str, str]) -> None:
    """Removes versions that did not become live; those that did are kept, though their last flush failed."""
    try:
        tasks = read_bundle_file(root).tasks
    except (BundleError, OSError):
        return
    for name, version in made.items():
        folder, live = root / TASKS / name, tasks.get(name)
        shutil.rmtree(folder / f"{TEMPORARY}{version}", ignore_errors=True)
        if live is None or live.version != version:
            shutil.rmtree(folder / version, ignore_errors=True)
        if live is None and not any(folder.iterdir()):
            folder.rmdir()


def _next_version(folder: FilePath) -> str:
    on_disk = versions(folder.parents[1], folder.name)
    return f"v{int(on_disk[-1][1:]) + 1 if on_disk else 1:04d}"


def _check_free(tasks: Sequence[str], name: str, replace: bool) -> None:
    if name in tasks and not replace:
        raise BadName(
            f"the bundle has a task '{name}' already",
            got=name,
            do="choose another name, or replace that task",
        )
    # Folders of these two would be one on systems that ignore case.
    same = [other for other in tasks if other != name and other.casefold() == name.casefold()]
    if same:
        raise BadName(
            f"task '{name}' differs from another in case alone", got=name, allowed=f"not like '{same[0]}'"
        )


def _check_known(bundle: BundleFile, name: str) -> None:
    if name not in bundle.tasks:
        raise UnknownTask(f"the bundle has no task '{name}'", got=name, allowed=sorted(bundle.tasks))
