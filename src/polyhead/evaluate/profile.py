"""Profiles of rows for a task: its outputs, mean vectors of the texts, lengths and scores."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import msgspec
import numpy as np

from polyhead.bundle.row_profile import RowProfile
from polyhead.data.columns import Source
from polyhead.data.read import every_input, read_each
from polyhead.data.rows import Rows, open_rows
from polyhead.data.tables import Row
from polyhead.engine.familiar import directions, reads_one_text
from polyhead.engine.inputs import AnyInput, input_type_of, input_types_of, task_input
from polyhead.engine.session import Session, attach_vectors
from polyhead.errors import BadValue, EmptyData
from polyhead.evaluate.probabilities import label_scores_of
from polyhead.progress import counted
from polyhead.store.jobs.columns import Roles, roles_of
from polyhead.store.jobs.documents import PIECE_ROWS
from polyhead.tasks.calibration import Calibration
from polyhead.tasks.kinds import base, kind_of
from polyhead.tasks.task import Example, Task
from polyhead.text.question import TaskInput, texts_of
from polyhead.values import Value


class FileRows(Value, eq=False):
    """Inputs that a task reads, their places, and their labels if known."""

    inputs: list[TaskInput]
    words: Sequence[np.ndarray | None] | None
    rows: list[int]
    targets: list[np.ndarray] | None
    whole: int  # number of rows in the file
    notes: tuple[str, ...] = ()

    def text(self, place: int) -> str:
        """The text of a row."""
        return " | ".join(text for text in texts_of(self.inputs[place]) if text.strip())


def labelled_rows(source: Source, task: Task, *, most: int, seed: int) -> tuple[FileRows, FileRows | None]:
    """At most this many of the rows that the task can read, and of those with a label, each sampled; None without any.

    Raises EmptyData if it reads none, MissingColumn, DataError for a file that cannot be read.
    """
    reading = read_each(source, task)
    readable = every_input(source, task)
    labelled = None
    if reading.examples is not None:
        examples = reading.examples
        taken = examples.take(sample(len(examples.inputs), most, seed))
        own_words = taken.words if taken.gold is None else None  # None: the words of the text, which gold has cut here
        labelled = FileRows(
            inputs=taken.inputs, words=own_words, rows=taken.rows, targets=taken.targets, whole=len(examples.inputs)
        )
    if not readable:
        raise reading.wrong[0] if reading.wrong else _nothing_read(source.path, task, reading.rows)
    notes = [f"{counted(len(reading.unlabelled), 'row')} without a label"] if reading.unlabelled else []
    for error in reading.wrong[:1]:
        notes.append(f"{counted(len(reading.wrong), 'row')} with what the task cannot read, the first: {error.what}")
    return _sampled(readable, most, seed, notes=notes), labelled


def plain_rows(
    path: str, task: Task, roles: Mapping[str, str], *, most: int, seed: int, show: Callable[[str], None]
) -> FileRows:
    """At most this many rows that the task can read, sampled; raises EmptyData if there are none."""
    file = open_rows(path)
    survey = file.survey(show)
    readable = _readable(file, roles_of(path, survey, dict(roles)), task)
    if not readable:
        raise _nothing_read(path, task, survey.rows)
    return _sampled(readable, most, seed)


def _readable(file: Rows, roles: Roles, task: Task) -> list[Example]:
    """The input of each row that the task can read, with its words if it is given as tokens."""
    readable, read_types = list[Example](), input_types_of(task)
    for chunk in file.chunks(roles.wanted, start=0, size=PIECE_ROWS):
        for row in chunk.rows(roles.wanted):
            with suppress(BadValue):
                if isinstance(row, Row):
                    read_row = roles.row_input(row.values, where=chunk.name, from_cells=chunk.has_cells)
                    if _fits(read_row.input, read_types):
                        entry = task_input(read_row.input)
                        readable.append(Example(input=entry, words=read_row.words, row=row.number))
    return readable


def _sampled(readable: Sequence[Example], most: int, seed: int, *, notes: Sequence[str] = ()) -> FileRows:
    kept = [readable[place] for place in sample(len(readable), most, seed)]
    words = [example.words for example in kept]
    return FileRows(
        inputs=[example.input for example in kept],
        words=words if any(each is not None for each in words) else None,
        rows=[example.row or 0 for example in kept],
        targets=None,
        whole=len(readable),
        notes=tuple(notes),
    )


def _nothing_read(path: str, task: Task, rows: int) -> EmptyData:
    return EmptyData(
        f"{path} holds no row that task '{task.name}' reads",
        got=f"{rows:,} rows",
        allowed=input_types_of(task),
        do="name the columns: --text COLUMN",
    )


def _fits(entry: AnyInput, read_types: Sequence[str]) -> bool:
    return input_type_of(entry) in read_types and all(text.strip() for text in texts_of(task_input(entry))[:1])


def sample(count: int, most: int, seed: int) -> list[int]:
    """At most this many of the numbers below `count`, sampled without replacement, in order."""
    places: list[int] = np.sort(np.random.default_rng(seed).permutation(count)[:most]).tolist()
    return places


PIECE = 512  # inputs answered at a time: bounds memory


class ModelView(Value, eq=False):
    """For each row, the task's outputs, and the direction of its text's mean vector."""

    outputs: list[np.ndarray]
    vectors: np.ndarray  # float32 (rows, width), of length 1


def asked(
    session: Session,
    name: str,
    inputs: Sequence[TaskInput],
    words: Sequence[np.ndarray | None] | None = None,
    *,
    show: Callable[[str], None] = lambda line: None,
) -> ModelView:
    """The task's outputs and the mean vectors for all rows; several texts of a row count as one for its vector.

    Raises the task's errors, and BackendError for a text without a vector.
    """
    vector, task = attach_vectors(session), session.tasks[name]
    is_text = reads_one_text(task)
    outputs, vectors = list[np.ndarray](), list[np.ndarray]()
    try:
        for start in range(0, len(inputs), PIECE):
            show(f"{name}: {start:,} of {len(inputs):,} texts")
            piece = inputs[start : start + PIECE]
            piece_words = None if words is None else words[start : start + PIECE]
            if is_text:
                columns = session.columns(piece, tasks=[name, vector], words=piece_words)
                for column in (columns[name], columns[vector]):
                    for error in column.errors.values():
                        raise error
                outputs += list(columns[name].outputs)
                vectors.append(np.asarray(columns[vector].outputs))
            else:
                outputs += session.outputs(name, piece, words=piece_words)
                vectors.append(np.stack(session.outputs(vector, as_texts(piece))))
    finally:
        session.detach(vector)
    show("")
    return ModelView(outputs=outputs, vectors=directions(np.concatenate(vectors)))


def profile_rows(task: Task, inputs: Sequence[TaskInput], answers: ModelView) -> RowProfile:
    """The profile of the rows: directions, lengths, and the scores of kinds whose answers are probabilities."""
    seen = profile_texts(inputs, answers.vectors)
    return msgspec.structs.replace(seen, scores=answer_scores(task, answers.outputs))


def profile_texts(inputs: Sequence[TaskInput], vectors: np.ndarray) -> RowProfile:
    """The same without scores; `vectors` are directions."""
    lengths = np.array([len(text) for (text,) in as_texts(inputs)], np.float32)
    return RowProfile(vectors=vectors, lengths=lengths, scores=np.zeros((len(lengths), 0), np.float32))


def answer_scores(task: Task, outputs: list[np.ndarray]) -> np.ndarray:
    """Probabilities, or numbers in the range, float32 (rows, width); for other kinds (rows, 0).

    For a task that labels words they are the means over a text's words.
    """
    kind = kind_of(task)
    if kind.labels_words:
        return np.stack([_of_words(row) for row in outputs]).astype(np.float32)
    if kind.scores == "range":
        return np.clip(np.array(outputs, np.float32).reshape(len(outputs), -1), 0, 1)
    if kind.scores not in ("softmax", "sigmoid"):
        return np.zeros((len(outputs), 0), np.float32)
    nothing = np.zeros(len(task.labels) if kind.scores == "sigmoid" else (), np.int64)
    rows = label_scores_of(task, outputs, [nothing] * len(outputs))
    return Calibration().probabilities(task, rows.logarithms).astype(np.float32)


def scores_in(task: Task, answer: Mapping[str, Any]) -> np.ndarray:
    """The scores of one answer, float32 (width,); (0,) for an answer without scores."""
    if kind_of(task).scores == "range" and task.range is not None:
        low, high = task.range
        return np.array([(answer["value"] - low) / (high - low)], np.float32)
    scores = answer.get("scores")
    return np.array([scores[label] for label in task.labels] if isinstance(scores, dict) else [], np.float32)


def _of_words(outputs: np.ndarray) -> np.ndarray:
    """The mean probabilities over the words read, (labels,); zeros without words."""
    read = outputs[~np.isnan(outputs).any(axis=1)]
    return base.softmax(read).mean(axis=0) if len(read) else np.zeros(outputs.shape[1])


def as_texts(inputs: Sequence[TaskInput]) -> list[tuple[str]]:
    """Each input as one text."""
    return [(" ".join(text for text in texts_of(each) if text.strip()),) for each in inputs]
