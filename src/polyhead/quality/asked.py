"""A task's outputs for the rows of a file, and the mean vectors of their texts: from one pass where it reads one text."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from polyhead.config import Value
from polyhead.engine.session import Session
from polyhead.engine.vectors import attach_vectors
from polyhead.tasks.kinds import kind_of
from polyhead.tasks.read import Examples
from polyhead.text.question import TaskInput, texts_of

PIECE = 512  # inputs answered at a time: bounds memory


class Asked(Value, eq=False):
    """Of each row what the task gave, and the direction of its text's mean vector."""

    outputs: list[np.ndarray]
    vectors: np.ndarray  # float32 (rows, width), of length 1


def asked(
    session: Session, name: str, examples: Examples, *, show: Callable[[str], None] = lambda line: None
) -> Asked:
    """The task and the mean vectors over all rows; several texts of a row are read as one for its vector.

    Raises what the task raises, and BackendError where a text has no vector.
    """
    vector, task = attach_vectors(session), session.tasks[name]
    is_text = task.pair == "none" and not kind_of(task).per_option
    outputs, vectors = list[np.ndarray](), list[np.ndarray]()
    try:
        for start in range(0, len(examples.inputs), PIECE):
            show(f"{name}: {start:,} of {len(examples.inputs):,} texts")
            inputs = examples.inputs[start : start + PIECE]
            words = None if examples.words is None else examples.words[start : start + PIECE]
            if is_text:
                columns = session.columns(inputs, tasks=[name, vector], words=words)
                for column in (columns[name], columns[vector]):
                    for error in column.errors.values():
                        raise error
                outputs += list(columns[name].outputs)
                vectors.append(np.asarray(columns[vector].outputs))
            else:
                outputs += session.outputs(name, inputs, words=words)
                vectors.append(np.stack(session.outputs(vector, as_texts(inputs))))
    finally:
        session.detach(vector)
    show("")
    return Asked(outputs=outputs, vectors=directions(np.concatenate(vectors)))


def vectors_of(session: Session, inputs: Sequence[TaskInput]) -> np.ndarray:
    """The directions of the texts' mean vectors alone, float32 (rows, width)."""
    vector = attach_vectors(session)
    try:
        pieces = [
            np.stack(session.outputs(vector, as_texts(inputs[start : start + PIECE])))
            for start in range(0, len(inputs), PIECE)
        ]
    finally:
        session.detach(vector)
    return directions(np.concatenate(pieces))


def as_texts(inputs: Sequence[TaskInput]) -> list[tuple[str]]:
    """Each input as one text."""
    return [(" ".join(text for text in texts_of(each) if text.strip()),) for each in inputs]


def directions(vectors: np.ndarray) -> np.ndarray:
    """Vectors of length 1; one of length 0 stays."""
    lengths = np.linalg.norm(vectors, axis=-1, keepdims=True)
    return np.asarray(vectors / np.where(lengths > 0, lengths, 1), np.float32)
