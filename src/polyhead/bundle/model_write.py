"""Writing tasks that own their models: each change takes one step that readers see, the new models.json."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path as FilePath
from typing import Any

from polyhead.bundle.files import writing
from polyhead.bundle.format import LIST, MODEL, MODELS
from polyhead.bundle.lines import was_trained
from polyhead.bundle.manifest import Live, read_bundle_file
from polyhead.bundle.models import FORMAT, ModelRecord, Models, ModelsFile, read_models_file
from polyhead.bundle.notes import NotesDraft
from polyhead.bundle.owners import MODEL_OF, listed, model_owner
from polyhead.bundle.versions import Writer, add_versions, sweep_section, version_on_disk
from polyhead.config import to_json
from polyhead.errors import BadName, UnknownTask
from polyhead.files import replace_file
from polyhead.seq2seq.data import Seq2SeqData
from polyhead.tasks.task import Task
from polyhead.trunk.data import arrays_digest


class ModelDraft(NotesDraft, eq=False):
    """A task and its model to write."""

    task: Task
    data: Seq2SeqData
    trained_with: Mapping[str, Any]

    def write_version(self, folder: FilePath) -> str:
        """Writes all files of one version; the SHA-256 of its task.json."""

        def record(hashes: dict[str, str]) -> bytes:
            return to_json(
                ModelRecord(
                    task=self.task,
                    name=self.data.name,
                    settings=self.data.settings,
                    arrays=arrays_digest(self.data.arrays),
                    model=self.data.digest,
                    files=hashes,
                    trained_with=dict(self.trained_with),
                )
            )

        return self.write(folder, self.task.name, (MODEL, self.data.arrays), record, files=self.data.files)


def add_model(root: FilePath | str, draft: ModelDraft, *, replace: bool = False) -> str:
    """Writes a new version of a task with its model and makes it live; the version's name.

    All or nothing, also under a kill or a full disk; no task that reads the trunk is touched. Raises BadName for a name
    that is taken, unless `replace` is set.
    """
    root, name = FilePath(root), draft.task.name
    with writing(root, f"task '{name}' cannot be added to {root}"):
        return new_models(root, {name: draft.write_version}, replace=replace)[name]


def new_models(root: FilePath, writers: Mapping[str, Writer], *, replace: bool = False) -> dict[str, str]:
    """Writes a new version of each task and makes all of them live in one step; call it under the bundle's lock.

    Returns the versions' names by task. What did not become live is removed.
    """
    if not writers:
        return {}
    for name in writers:
        check_model_name(root, name, replace=replace)
    before = read_models_file(root)
    _sweep(root, before.models)

    def publish(lines: Mapping[str, Live]) -> None:
        models = {owner.removeprefix(MODEL_OF): line for owner, line in lines.items()}
        _replace_list(root, {**before.models, **models}, before.removed)

    def read_live() -> dict[str, Live]:
        return {model_owner(name): line for name, line in read_models_file(root).models.items()}

    by_owner = {model_owner(name): write for name, write in writers.items()}
    versions = add_versions(root, by_owner, read_live=read_live, publish=publish)
    return {name: versions[model_owner(name)] for name in writers}


def set_models(root: FilePath | str, versions: Mapping[str, str]) -> None:
    """Makes versions on disk, by task, the live ones in one step; every file of them is hashed first.

    A version that is not the newest of its task is pinned: training leaves it until it is asked by the task's name.
    """
    root = FilePath(root)
    with writing(root, f"other versions of {listed(list(versions))} cannot be made live in {root}"):
        models = Models(root)
        for name in versions:
            models.version(name)  # UnknownTask for a name that is not a model's
        lines = {name: version_on_disk(root, model_owner(name), version) for name, version in versions.items()}
        for error in Models(root, lines).touched():
            raise error
        _replace_list(root, {**models.lines, **lines}, models.removed)


def remove_models(root: FilePath | str, names: Sequence[str], *, removed: Sequence[str] | None = None) -> None:
    """Removes tasks with their models, all versions of them.

    `removed` are the names that models.json keeps as those of removed tasks, so that training does not make them again
    unasked; by default those it has, and those of `names` that training made.
    """
    root = FilePath(root)
    with writing(root, f"{listed(names)} cannot be removed from {root}"):
        before = read_models_file(root)
        unknown = [name for name in names if name not in before.models]
        if unknown:
            raise UnknownTask(f"{root} has no such model", got=unknown, allowed=sorted(before.models))
        kept = {name: line for name, line in before.models.items() if name not in names}
        trained = [name for name in names if was_trained(root, model_owner(name), before.models[name].version)]
        _replace_list(root, kept, (*before.removed, *trained) if removed is None else removed)
        _sweep(root, kept)


def check_model_name(root: FilePath, name: str, *, replace: bool) -> None:
    """Raises BadName for the name of another task, or of this one unless it may be replaced."""
    models = read_models_file(root).models
    taken = [*read_bundle_file(root).tasks, *(other for other in models if other != name or not replace)]
    same = [other for other in taken if other.casefold() == name.casefold()]
    if same:
        raise BadName(
            f"the bundle has a task '{same[0]}' already",
            got=name,
            do="choose another name, or replace or remove that task",
        )


def _replace_list(root: FilePath, models: Mapping[str, Live], removed: Sequence[str]) -> None:
    left = tuple(name for name in dict.fromkeys(removed) if name not in models)
    replace_file(root / LIST, to_json(ModelsFile(format=FORMAT, models=dict(models), removed=left)))


def _sweep(root: FilePath, models: Mapping[str, Live]) -> None:
    """Removes models that the list does not name: of removed tasks, and of adds that were killed."""
    sweep_section(root, MODELS, models.__contains__)
