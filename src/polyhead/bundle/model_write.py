"""Models that tasks own, written: added, replaced, rolled back and removed, each time in one step that readers see."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path as FilePath
from typing import Any

import msgspec

from polyhead.bundle.files import check_no_links, hash_inside, writing
from polyhead.bundle.format import CARD, PROBES, SCORES, TASK
from polyhead.bundle.lines import was_trained
from polyhead.bundle.manifest import Live, read_bundle_file
from polyhead.bundle.models import FORMAT, LIST, MODEL, MODELS, ModelRecord, Models, ModelsFile, read_models_file
from polyhead.bundle.owners import listed
from polyhead.bundle.tensors import write_arrays
from polyhead.bundle.versions import Writer, WrittenVersion, discard, fill, next_version, settle, sweep_folders
from polyhead.config import Value, to_json
from polyhead.errors import BadName, BundleError, UnknownTask
from polyhead.files import make_folder, remove_leftovers, replace_file, sync_folder, write_file
from polyhead.seq2seq.data import Seq2SeqData
from polyhead.tasks.task import Task
from polyhead.trunk.data import arrays_digest


class ModelDraft(Value, eq=False):
    """A task with its model as they are to be written."""

    task: Task
    data: Seq2SeqData
    trained_with: Mapping[str, Any]
    scores: Mapping[str, Any]
    probes: Sequence[Mapping[str, Any]]
    card: str


def add_model(root: FilePath | str, draft: ModelDraft, *, replace: bool = False) -> str:
    """Writes a new version of a task with its model and makes it live; the version's name.

    All or nothing, also under a kill or a full disk; no task that reads the trunk is touched. Raises BadName for a name
    that is taken and not to be replaced.
    """
    root, name = FilePath(root), draft.task.name
    with writing(root, f"task '{name}' cannot be added to {root}"):
        return new_models(root, {name: partial(_write_version, draft)}, replace=replace)[name]


def new_models(root: FilePath, writers: Mapping[str, Writer], *, replace: bool = False) -> dict[str, str]:
    """Lets each writer fill a new version of its task, and makes all live in one step; to be called under the lock.

    Gives the versions' names. What did not become live is removed.
    """
    there, made = read_models_file(root), dict[str, str]()
    if not writers:
        return made
    for name in writers:
        check_model_name(root, name, replace=replace)
    _sweep(root, there)
    lines = dict(there.models)
    try:
        folders = {name: _prepare(root, name) for name in writers}
        filled: dict[str, WrittenVersion] = {}
        for name, write in writers.items():
            made[name] = next_version(folders[name])
            filled[name] = fill(folders[name], made[name], write)
            lines[name] = Live(version=made[name], record=filled[name].record)
        for version in filled.values():
            settle(version)
        for changed in (root / MODELS, root):
            sync_folder(changed)
        _replace_list(root, lines, there.removed)
    except BaseException:
        _undo(root, made)
        raise
    return made


def set_models(root: FilePath | str, wanted: Mapping[str, str]) -> None:
    """Makes older or newer versions on disk the live ones, all in one step; every file of them is hashed first.

    Those that are not the newest of their task are pinned: training leaves them until it is asked by their names.
    """
    root = FilePath(root)
    with writing(root, f"other versions of {listed(list(wanted))} cannot be made live in {root}"):
        models, found = Models(root), dict[str, Live]()
        for name, version in wanted.items():
            there = models.versions(name)
            if version not in there:
                raise BundleError(f"task '{name}' has no version {version}", allowed=there)
            record = hash_inside(root, MODELS, name, version, TASK)
            found[name] = Live(version=version, record=record, pinned=version != there[-1])
        for error in Models(root, found).touched():
            raise error
        _replace_list(root, {**models.lines, **found}, read_models_file(root).removed)


def remove_models(root: FilePath | str, names: Sequence[str], *, removed: Sequence[str] | None = None) -> None:
    """Removes tasks with their models, all versions of them.

    `removed` are the names that models.json keeps as those of removed tasks, so that training does not make them again
    unasked; by default also those of the ones here that training made.
    """
    root = FilePath(root)
    with writing(root, f"{listed(names)} cannot be removed from {root}"):
        there = read_models_file(root)
        unknown = [name for name in names if name not in there.models]
        if unknown:
            raise UnknownTask(f"{root} has no such model", got=unknown, allowed=sorted(there.models))
        kept = {name: line for name, line in there.models.items() if name not in names}
        made = [name for name in names if was_trained(root, MODELS, name, there.models[name].version)]
        _replace_list(root, kept, (*there.removed, *made) if removed is None else removed)
        _sweep(root, msgspec.structs.replace(there, models=kept))


def _replace_list(root: FilePath, models: Mapping[str, Live], removed: Sequence[str]) -> None:
    left = tuple(name for name in dict.fromkeys(removed) if name not in models)
    replace_file(root / LIST, to_json(ModelsFile(format=FORMAT, models=dict(models), removed=left)))


def _sweep(root: FilePath, there: ModelsFile) -> None:
    """Removes models that the list does not name: of tasks that were removed, and of adds that were killed."""
    check_no_links(root, MODELS)
    if (root / MODELS).is_dir():
        sweep_folders(root / MODELS, lambda name: name in there.models)


def _prepare(root: FilePath, name: str) -> FilePath:
    """The folder of a task's versions, made where it is not there; what killed writers left is removed."""
    folder = root / MODELS / name
    check_no_links(root, MODELS, name)
    make_folder(folder, root=root)
    for left in (root, root / MODELS, folder):
        remove_leftovers(left, root=root)
    return folder


def _undo(root: FilePath, made: Mapping[str, str]) -> None:
    """Removes versions that did not become live; those that did are kept, though their last flush failed."""
    try:
        lines = read_models_file(root).models
    except (BundleError, OSError):
        return
    for name, version in made.items():
        live = lines.get(name)
        discard(root / MODELS / name, version, live=None if live is None else live.version)


def check_model_name(root: FilePath, name: str, *, replace: bool) -> None:
    """Raises BadName for the name of another task, or of this one where it is not to be replaced."""
    there = read_models_file(root)
    taken = [*read_bundle_file(root).tasks, *(n for n in there.models if n != name or not replace)]
    same = [other for other in taken if other.casefold() == name.casefold()]
    if same:
        raise BadName(
            f"the bundle has a task '{same[0]}' already",
            got=name,
            do="choose another name, or replace or remove that task",
        )


def _write_version(draft: ModelDraft, folder: FilePath) -> str:
    """Writes all files of one version; the SHA-256 of its task.json, which is written last."""
    data = draft.data
    try:
        lines = b"".join(msgspec.json.encode(probe) + b"\n" for probe in draft.probes)
        contents = {**data.files, SCORES: to_json(draft.scores), PROBES: lines, CARD: draft.card.encode()}
        folder.mkdir()
        hashes = {MODEL: write_arrays(folder / MODEL, data.arrays)}
        for name, content in contents.items():
            hashes[name] = write_file(folder / name, [content])
        del hashes[CARD]  # people may edit a card
        record = ModelRecord(
            task=draft.task,
            name=data.name,
            settings=data.settings,
            arrays=arrays_digest(data.arrays),
            model=data.digest,
            files=hashes,
            trained_with=dict(draft.trained_with),
        )
        hashed = write_file(folder / TASK, [to_json(record)])
    except (TypeError, UnicodeEncodeError) as error:
        raise BundleError(
            f"task '{draft.task.name}' holds something that is no JSON", got=error, do="give plain values"
        ) from None
    sync_folder(folder)
    return hashed
