"""Models that tasks own whole, beside the trunk and its tasks in one bundle: read, and proven untouched.

`models.json` lists them as bundle.json lists the tasks that read the trunk. It is a file of its own, so that a model
comes and goes without a change to anything that certificates prove, and readers that know no models read all the rest.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path as FilePath
from typing import Any

import msgspec

from polyhead.bundle.files import check_hash, hash_inside, read_arrays, writing_bundle
from polyhead.bundle.format import LIST, MODEL, MODELS, PROBES, SCORES, TASK, TOKENIZER
from polyhead.bundle.manifest import Live, check_lines, read_bundle_file, read_list, read_record
from polyhead.bundle.notes import LiveVersions, NotesDraft
from polyhead.bundle.owners import MODEL_OF, model_owner, tasks_text
from polyhead.bundle.versions import Writer, add_versions, sweep_section, version_on_disk, versions_in, was_trained
from polyhead.encoder.data import arrays_digest
from polyhead.encoder.summarizer import Seq2SeqData, SummarySettings
from polyhead.errors import BadName, CorruptFile, PolyheadError, UnknownTask, WeightsMismatch
from polyhead.files import replace_file
from polyhead.tasks.task import Task
from polyhead.values import Value, to_json

FORMAT = 1
CONFIG, GENERATION = "config.json", "generation_config.json"
HASHED = (MODEL, CONFIG, GENERATION, TOKENIZER, SCORES, PROBES)


class ModelsFile(Value, omit_defaults=True):
    """models.json: the live version of every task that owns its model."""

    format: int
    models: dict[str, Live]
    removed: tuple[str, ...] = ()  # tasks that training made and a person removed; written where there are any


class ModelRecord(Value):
    """task.json of such a task; `arrays`, `model` and `files` are filled in when it is added."""

    task: Task
    name: str  # where the model came from, for people
    settings: SummarySettings
    arrays: str = ""  # digest of the arrays, `trunk.data.arrays_digest`
    model: str = ""  # digest of the whole model, `Seq2SeqData.digest`
    files: dict[str, str] = {}  # SHA-256 of each of HASHED
    trained_with: dict[str, Any] = {}  # for people and for `train`: seed, data, precision, versions


class Models(LiveVersions):
    """The tasks of a bundle that own their models: a snapshot, with files read and hashed when asked for."""

    section = MODELS

    def __init__(self, root: FilePath | str, lines: Mapping[str, Live] | None = None) -> None:
        """`lines` are the versions to read; by default those that models.json says are live."""
        self.root = FilePath(root)
        self.lines: Mapping[str, Live] = read_models_file(self.root).models if lines is None else lines
        self._records: dict[str, ModelRecord] = {}

    @property
    def removed(self) -> tuple[str, ...]:
        """Tasks that training made and a person removed since, as models.json says now."""
        return read_models_file(self.root).removed

    @property
    def tasks(self) -> dict[str, Task]:
        """Every task, by name."""
        return {name: self.record(name).task for name in self.lines}

    def view(self, names: Iterable[str]) -> Models:
        """Some of them."""
        return Models(self.root, {name: self.lines[name] for name in names})

    def record(self, name: str) -> ModelRecord:
        """The live task.json of a task."""
        if name not in self._records:
            record, path = read_record(self.root, model_owner(name), self._live(name), ModelRecord)
            if record.task.name != name or set(record.files) != set(HASHED):
                raise CorruptFile(
                    f"{path} contradicts itself",
                    got=f"task '{record.task.name}', files {sorted(record.files)}",
                    allowed=f"task '{name}', files {sorted(HASHED)}",
                    path=path,
                )
            self._records[name] = record
        return self._records[name]

    def data(self, name: str) -> Seq2SeqData:
        """The task's model, its arrays memory-mapped; every file and array is hashed."""
        record, path = self.record(name), self.root.joinpath(*self._place(name), MODEL)
        arrays = read_arrays(self.root, *self._place(name), MODEL)
        check_hash(path, arrays_digest(arrays), record.arrays)
        files = {"config": CONFIG, "generation": GENERATION, "tokenizer": TOKENIZER}
        content = {field: self._read(name, file) for field, file in files.items()}
        try:
            model = Seq2SeqData(name=record.name, arrays=arrays, settings=record.settings, **content)
        except WeightsMismatch as error:
            what, do = f"{path} holds what is no model", "restore the file"
            raise CorruptFile(what, got=error, do=do, path=path) from None
        check_hash(path.with_name(TASK), model.digest, record.model)
        return model

    def config(self, name: str) -> bytes:
        """The config.json of a task's model, without a look at its arrays."""
        return self._read(name, CONFIG)

    def size(self, name: str) -> int:
        """Bytes that the live version takes on disk."""
        folder = self.root.joinpath(*self._place(name))
        return sum(file.stat().st_size for file in folder.iterdir() if file.is_file())

    def same_as(self, source: Models, names: Mapping[str, str]) -> dict[str, str]:
        """Live versions here that are the source's file for file, by name; `names` are the tasks' there and here."""
        equal = {}
        for old, new in names.items():
            theirs = source.record(old)
            wanted = msgspec.structs.replace(theirs, task=msgspec.structs.replace(theirs.task, name=new))
            if new in self.lines and self.record(new) == wanted:
                equal[new] = self.version(new)
        return equal

    def touched(self) -> Iterator[PolyheadError]:
        """Hashes every live file; an error for each that is not as it was written."""
        for name in self.lines:
            checks: list[Callable[[], object]] = [partial(self.record, name)]
            checks += [partial(self._hashed, name, file) for file in HASHED]
            errors = 0
            for check in checks:
                try:
                    check()
                except PolyheadError as error:
                    errors += 1
                    yield error
                    if name not in self._records:
                        break  # of a task.json that cannot be read no other file is known
            if not errors:  # whole files may still hold what is no model
                try:
                    self.data(name)
                except PolyheadError as error:
                    yield error

    def _live(self, name: str) -> Live:
        if name not in self.lines:
            raise UnknownTask(f"the bundle has no model of a task '{name}'", allowed=sorted(self.lines))
        return self.lines[name]


def model_names(root: FilePath) -> list[str]:
    """Tasks of the bundle that own their models."""
    return list(read_models_file(root).models)


def check_no_models(root: FilePath, names: Iterable[str]) -> None:
    """Raises BadName for a task that is to read the trunk under the name of one that owns its model."""
    taken = {name.casefold(): name for name in model_names(root)}
    for name in names:
        if name.casefold() in taken:
            raise BadName(
                f"the bundle has a task '{taken[name.casefold()]}' with a model of its own",
                got=name,
                do="choose another name, or remove that task",
            )


def models_touched(root: FilePath) -> Iterator[PolyheadError]:
    """Hashes every live file of every model; an error for each that is not as it was written."""
    try:
        models = Models(root)
    except PolyheadError as error:
        yield error
        return
    yield from models.touched()


def old_models_touched(root: FilePath) -> Iterator[PolyheadError]:
    """The same for versions that a model could be rolled back to, whose task.json nothing else vouches for."""
    try:
        lines = read_models_file(root).models
    except PolyheadError:
        return  # `models_touched` tells
    for name, line in lines.items():
        for version in versions_in(root / MODELS / name):
            if version == line.version:
                continue
            try:
                old = Live(version=version, record=hash_inside(root, MODELS, name, version, TASK))
            except PolyheadError as error:
                yield error
                continue
            yield from Models(root, {name: old}).touched()


def read_models_file(root: FilePath) -> ModelsFile:
    """models.json, checked; an empty one where there is none."""
    path = root / LIST
    if not (path.is_file() or path.is_symlink()):
        return ModelsFile(format=FORMAT, models={})
    content = read_list(path, ModelsFile, again="train the models again")
    check_lines(path, {model_owner(name): line for name, line in content.models.items()}, content.removed)
    return content


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
    with writing_bundle(root, f"task '{name}' cannot be added to {root}"):
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
    with writing_bundle(root, f"other versions of {tasks_text(list(versions))} cannot be made live in {root}"):
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
    with writing_bundle(root, f"{tasks_text(names)} cannot be removed from {root}"):
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
