"""Models that tasks own whole, beside the trunk and its tasks in one bundle: written, read, proven untouched.

`models.json` lists them as bundle.json lists the tasks that read the trunk. It is a file of its own, so that a model
comes and goes without a change to anything that certificates prove, and readers that know no models read all the rest.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path as FilePath
from typing import Any

import msgspec

from polyhead.bundle.files import (
    check_hash,
    check_no_links,
    hash_inside,
    read_inside,
    remove_leftovers,
    replace_file,
    sync_folder,
    write_file,
    writing,
)
from polyhead.bundle.format import (
    CARD,
    LARGEST_JSON,
    LARGEST_TEXT,
    PROBES,
    SCORES,
    TASK,
    TEMPORARY,
    TOKENIZER,
)
from polyhead.bundle.manifest import Live, decoded, read_bundle_file
from polyhead.bundle.notes import Notes
from polyhead.bundle.tensors import read_arrays, write_arrays
from polyhead.config import Value, to_json
from polyhead.errors import BadName, BundleError, CorruptFile, PolyheadError, UnknownFormat, UnknownTask
from polyhead.seq2seq_data import Seq2SeqData, SummarySettings
from polyhead.tasks.kinds import kind_of
from polyhead.tasks.task import Task, check_name
from polyhead.trunk_data import arrays_digest

FORMAT = 1
LIST, MODELS = "models.json", "models"
MODEL, CONFIG, GENERATION = "model.safetensors", "config.json", "generation_config.json"
HASHED = (MODEL, CONFIG, GENERATION, TOKENIZER, SCORES, PROBES)


class ModelsFile(Value):
    """models.json: the live version of every task that owns its model."""

    format: int
    models: dict[str, Live]


class ModelRecord(Value):
    """task.json of such a task; `arrays`, `model` and `files` are filled in when it is added."""

    task: Task
    name: str  # where the model came from, for people
    settings: SummarySettings
    arrays: str = ""  # digest of the arrays, `trunk_data.arrays_digest`
    model: str = ""  # digest of the whole model, `Seq2SeqData.digest`
    files: dict[str, str] = {}  # SHA-256 of each of HASHED
    trained_with: dict[str, Any] = {}  # for people and for `train`: seed, data, precision, versions


class ModelDraft(Value, eq=False):
    """A task with its model as they are to be written."""

    task: Task
    data: Seq2SeqData
    trained_with: Mapping[str, Any]
    scores: Mapping[str, Any]
    probes: Sequence[Mapping[str, Any]]
    card: str


class Models(Notes):
    """The tasks of a bundle that own their models: a snapshot, with files read and hashed when asked for."""

    def __init__(self, root: FilePath | str) -> None:
        self.root = FilePath(root)
        self.lines: Mapping[str, Live] = _read_list(self.root).models
        self._records: dict[str, ModelRecord] = {}

    @property
    def tasks(self) -> dict[str, Task]:
        """Every task, by name."""
        return {name: self.record(name).task for name in self.lines}

    def record(self, name: str) -> ModelRecord:
        """The live task.json of a task."""
        if name not in self._records:
            path = self.root.joinpath(*self._place(name), TASK)
            raw = read_inside(self.root, *self._place(name), TASK, limit=LARGEST_JSON)
            check_hash(path, hashlib.sha256(raw).hexdigest(), self.lines[name].record)
            record = decoded(raw, ModelRecord, path)
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
        found = Seq2SeqData(
            name=record.name,
            config=self._read(name, CONFIG),
            generation=self._read(name, GENERATION),
            tokenizer=self._read(name, TOKENIZER),
            arrays=arrays,
            settings=record.settings,
        )
        check_hash(path.with_name(TASK), found.digest, record.model)
        return found

    def config(self, name: str) -> bytes:
        """The config.json of a task's model, without a look at its arrays."""
        return self._read(name, CONFIG)

    def size(self, name: str) -> int:
        """Bytes that the live version takes on disk."""
        folder = self.root.joinpath(*self._place(name))
        return sum(file.stat().st_size for file in folder.iterdir() if file.is_file())

    def headline(self, name: str) -> tuple[str, float | None]:
        """The task's metric and its value on the test split, else on the last split that has it."""
        task, splits = self.record(name).task, self.scores(name).get("splits", {})
        metric = kind_of(task).default_metric(task)
        values = {split: found[metric] for split, found in splits.items() if metric in found}
        return metric, values.get("test", next(reversed(values.values()), None))

    def touched(self) -> Iterator[PolyheadError]:
        """Hashes every live file; an error for each that is not as it was written."""
        for name in self.lines:
            checks: list[Callable[[], object]] = [partial(self.record, name)]
            checks += [partial(self._hashed, name, file) for file in HASHED]
            for check in checks:
                try:
                    check()
                except PolyheadError as error:
                    yield error
                    if name not in self._records:
                        break  # of a task.json that cannot be read no other file is known

    def _place(self, name: str) -> tuple[str, str, str]:
        if name not in self.lines:
            raise UnknownTask(f"the bundle has no model of a task '{name}'", allowed=sorted(self.lines))
        return MODELS, name, self.lines[name].version

    def _read(self, name: str, file: str) -> bytes:
        self._hashed(name, file)
        return read_inside(self.root, *self._place(name), file, limit=LARGEST_TEXT)

    def _hashed(self, name: str, file: str) -> None:
        place, expected = self._place(name), self.record(name).files[file]
        check_hash(self.root.joinpath(*place, file), hash_inside(self.root, *place, file), expected)


def model_names(root: FilePath) -> list[str]:
    """Tasks of the bundle that own their models."""
    return list(_read_list(root).models)


def check_no_models(root: FilePath, names: Iterable[str]) -> None:
    """Raises BadName for a task that is to read the trunk under the name of one that owns its model."""
    there = {name.casefold(): name for name in model_names(root)}
    for name in names:
        if name.casefold() in there:
            raise BadName(
                f"the bundle has a task '{there[name.casefold()]}' with a model of its own",
                got=name,
                do="choose another name, or remove that task",
            )


def models_touched(root: FilePath) -> Iterator[PolyheadError]:
    """Hashes every live file of every model; an error for each that is not as it was written."""
    try:
        found = Models(root)
    except PolyheadError as error:
        yield error
        return
    yield from found.touched()


def add_model(root: FilePath | str, draft: ModelDraft, *, replace: bool = False) -> str:
    """Writes a new version of a task with its model and makes it live; the version's name.

    All or nothing, also under a kill or a full disk; no task that reads the trunk is touched. Raises BadName for a name
    that is taken and not to be replaced.
    """
    root, name = FilePath(root), draft.task.name
    with writing(root, f"task '{name}' cannot be added to {root}"):
        there = _read_list(root)
        _check_free(root, there, name, replace=replace)
        folder = root / MODELS / name
        check_no_links(root, MODELS, name)
        folder.mkdir(parents=True, exist_ok=True)
        for left in (root, root / MODELS, folder):
            remove_leftovers(left)
        version = _next_version(folder)
        try:
            hashed = _write_version(draft, folder / f"{TEMPORARY}{version}")
            os.rename(folder / f"{TEMPORARY}{version}", folder / version)
            for changed in (folder, root / MODELS, root):
                sync_folder(changed)
            line = Live(version=version, record=hashed)
            _replace_list(root, {**there.models, name: line})
        except BaseException:
            _undo(root, folder, version)
            raise
    return version


def remove_model(root: FilePath | str, name: str) -> None:
    """Removes a task with its model, all versions of it."""
    root = FilePath(root)
    with writing(root, f"task '{name}' cannot be removed from {root}"):
        there = _read_list(root)
        if name not in there.models:
            raise UnknownTask(f"the bundle has no model of a task '{name}'", allowed=sorted(there.models))
        check_no_links(root, MODELS, name)
        _replace_list(root, {other: line for other, line in there.models.items() if other != name})
        remove_leftovers(root / MODELS)
        os.rename(root / MODELS / name, root / MODELS / f"{TEMPORARY}{name}")
        remove_leftovers(root / MODELS)


def _read_list(root: FilePath) -> ModelsFile:
    path = root / LIST
    if not (path.is_file() or path.is_symlink()):
        return ModelsFile(format=FORMAT, models={})
    raw = read_inside(root, LIST, limit=LARGEST_JSON)
    number = decoded(raw, _Numbered, path).format
    if number != FORMAT:
        raise UnknownFormat(
            f"{path} was written by another version of polyhead",
            got=f"format {number}",
            allowed=f"format {FORMAT}",
            do="install the version that wrote it, or train the models again",
        )
    found = decoded(raw, ModelsFile, path)
    for name, line in found.models.items():
        check_name(name)
        if not re.fullmatch(r"v\d{4,9}", line.version) or not re.fullmatch(r"[0-9a-f]{64}", line.record):
            raise CorruptFile(f"{path}: task '{name}' has no version or digest", got=line, path=path)
    return found


class _Numbered(msgspec.Struct):
    """The one field that every format has."""

    format: int


def _replace_list(root: FilePath, models: Mapping[str, Live]) -> None:
    replace_file(root / LIST, to_json(ModelsFile(format=FORMAT, models=dict(models))))


def _check_free(root: FilePath, there: ModelsFile, name: str, *, replace: bool) -> None:
    taken = [*read_bundle_file(root).tasks, *(n for n in there.models if n != name or not replace)]
    same = [other for other in taken if other.casefold() == name.casefold()]
    if same:
        raise BadName(
            f"the bundle has a task '{same[0]}' already",
            got=name,
            do="choose another name, or replace or remove that task",
        )


def _next_version(folder: FilePath) -> str:
    numbers = [int(entry.name[1:]) for entry in folder.iterdir() if re.fullmatch(r"v\d{4,9}", entry.name)]
    return f"v{max(numbers, default=0) + 1:04d}"


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


def _undo(root: FilePath, folder: FilePath, version: str) -> None:
    """Removes a version that did not become live; one that did is kept, though its last flush failed."""
    try:
        live = _read_list(root).models.get(folder.name)
    except (BundleError, OSError):
        return
    shutil.rmtree(folder / f"{TEMPORARY}{version}", ignore_errors=True)
    if live is None or live.version != version:
        shutil.rmtree(folder / version, ignore_errors=True)
    if live is None and folder.is_dir() and not any(folder.iterdir()):
        folder.rmdir()
