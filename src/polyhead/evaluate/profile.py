"""Profiles of rows for a task: its outputs, mean vectors of the texts, lengths and scores."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec
import numpy as np

from polyhead.bundle.seen import Seen
from polyhead.data.columns import Source
from polyhead.data.read import read
from polyhead.data.rows import open_rows
from polyhead.engine.familiar import directions, reads_one_text
from polyhead.engine.inputs import AnyInput, input_type_of, input_types_of, task_input
from polyhead.engine.session import Session, attach_vectors
from polyhead.errors import BadValue, EmptyData
from polyhead.evaluate.probabilities import label_scores_of
from polyhead.store.jobs.columns import RowInput, roles_of
from polyhead.store.jobs.documents import PIECE_ROWS
from polyhead.tasks.calibration import Calibration
from polyhead.tasks.kinds import base, kind_of
from polyhead.tasks.task import Task
from polyhead.text.question import TaskInput, texts_of
from polyhead.values import Value


class FileRows(Value, eq=False):
    """Inputs that a task reads, their places, and their labels if known."""

    inputs: list[TaskInput]
    words: Sequence[np.ndarray | None] | None
    rows: list[int]
    targets: list[np.ndarray] | None
    whole: int  # number of rows in the file

    def text(self, place: int) -> str:
        """The text of a row."""
        return " | ".join(text for text in texts_of(self.inputs[place]) if text.strip())


def labelled_rows(source: Source, task: Task, *, most: int, seed: int) -> FileRows:
    """At most this many labelled rows, sampled; raises the errors of reading the file."""
    examples = read(source, task)
    kept = sample(len(examples.inputs), most, seed)
    taken = examples.take(kept)
    own_words = taken.words if taken.gold is None else None  # None: the words of the text, which gold has cut here
    return FileRows(
        inputs=taken.inputs, words=own_words, rows=taken.rows, targets=taken.targets, whole=len(examples.inputs)
    )


def plain_rows(
    path: str, task: Task, roles: Mapping[str, str], *, most: int, seed: int, show: Callable[[str], None]
) -> FileRows:
    """At most this many rows that the task can read, sampled; raises EmptyData if there are none."""
    file = open_rows(path)
    known = roles_of(path, file.survey(show), dict(roles))
    read_types = input_types_of(task)
    read_rows: list[tuple[int, RowInput]] = []
    start = 0
    for chunk in file.chunks(known.wanted, start=0, size=PIECE_ROWS):
        for place, row in enumerate(known.inputs(chunk)):
            if not isinstance(row, BadValue) and _fits(row.input, read_types):
                read_rows.append((start + place + 1, row))
        start += len(chunk)
    if not read_rows:
        raise EmptyData(
            f"{path} holds no row that task '{task.name}' reads",
            got=f"{start:,} rows",
            allowed=read_types,
            do="name the columns: --text COLUMN",
        )
    kept = [read_rows[place] for place in sample(len(read_rows), most, seed)]
    return FileRows(
        inputs=[task_input(row.input) for _, row in kept],
        words=_words([row.words for _, row in kept]),
        rows=[number for number, _ in kept],
        targets=None,
        whole=len(read_rows),
    )


def _fits(entry: AnyInput, read_types: Sequence[str]) -> bool:
    return input_type_of(entry) in read_types and all(text.strip() for text in texts_of(task_input(entry))[:1])


def _words(words: list[np.ndarray | None]) -> list[np.ndarray | None] | None:
    return words if any(each is not None for each in words) else None


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


def seen_rows(task: Task, inputs: Sequence[TaskInput], answers: ModelView) -> Seen:
    """The profile of the rows: directions, lengths, and the scores of kinds whose answers are probabilities."""
    seen = seen_texts(inputs, answers.vectors)
    return msgspec.structs.replace(seen, scores=answer_scores(task, answers.outputs))


def seen_texts(inputs: Sequence[TaskInput], vectors: np.ndarray) -> Seen:
    """The same without scores; `vectors` are directions."""
    lengths = np.array([len(text) for (text,) in as_texts(inputs)], np.float32)
    return Seen(vectors=vectors, lengths=lengths, scores=np.zeros((len(lengths), 0), np.float32))


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
