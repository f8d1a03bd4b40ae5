"""Tasks that own their models: an encoder-decoder in place of a part that reads the trunk."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path as FilePath
from typing import Any

from polyhead.bundle.files import check_hash, read_arrays
from polyhead.bundle.format import CONFIG, GENERATION, MODEL, TASK, TASKS, TOKENIZER
from polyhead.bundle.manifest import ModelRecord
from polyhead.bundle.notes import LiveVersions, NotesDraft
from polyhead.encoder.data import arrays_digest
from polyhead.encoder.summarizer import Seq2SeqData
from polyhead.errors import CorruptFile, UnknownTask, WeightsMismatch
from polyhead.tasks.task import Task
from polyhead.values import to_json


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


def read_model(bundle: LiveVersions, name: str) -> Seq2SeqData:
    """The model of a task that owns it, its arrays memory-mapped; every file and array is hashed."""
    record = bundle.record(name)
    if not isinstance(record, ModelRecord):
        raise UnknownTask(f"task '{name}' has no model of its own: it reads the trunk", got=name)
    place = (TASKS, name, bundle.version(name))
    path = bundle.root.joinpath(*place, MODEL)
    arrays = read_arrays(bundle.root, *place, MODEL)
    check_hash(path, arrays_digest(arrays), record.arrays)
    files = {"config": CONFIG, "generation": GENERATION, "tokenizer": TOKENIZER}
    content = {field: bundle.read_file(name, file) for field, file in files.items()}
    try:
        model = Seq2SeqData(name=record.name, arrays=arrays, settings=record.settings, **content)
    except WeightsMismatch as error:
        what, do = f"{path} holds what is no model", "restore the file"
        raise CorruptFile(what, got=error, do=do, path=path) from None
    check_hash(path.with_name(TASK), model.digest, record.model)
    return model
