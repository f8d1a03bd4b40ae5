"""Metrics of a bundle's live answers on whole splits."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from polyhead.data.columns import Source
from polyhead.data.read import Examples, read
from polyhead.engine.session import Session
from polyhead.errors import UnknownTask
from polyhead.project.tables import DataFile, Project, TaskEntry
from polyhead.tasks.kinds import kind_of
from polyhead.tasks.metrics import LabelScore
from polyhead.tasks.task import Answer, Example, Task
from polyhead.text.question import TaskInput
from polyhead.values import Value

PIECE = 512  # inputs answered at a time: bounds memory


class SplitScore(Value):
    """One task on one whole split."""

    task: str
    split: str
    rows: int
    metric: str
    scores: dict[str, float]
    labels: tuple[LabelScore, ...] = ()  # of a kind whose answers are labels
    wrong: int | None = None  # rows with a wrong answer; None of a kind that does not tell


class WrongRow(Value):
    """A row whose answer is wrong."""

    task: str
    row: int  # its number in the file
    input: TaskInput
    truth: Any
    answer: Any
    score: float | None  # see `Mistake`


class SplitOutputs(Value, eq=False):
    """A task's outputs for all rows of a file."""

    task: Task
    source: Source
    examples: Examples
    outputs: list[np.ndarray]  # of each example


class Evaluation(Value, eq=False):
    """A task's score, and the rows that it gets wrong: the surest first, those without a score last."""

    score: SplitScore
    errors: tuple[WrongRow, ...]
    digest: str  # SHA-256 of the rows, as a task's record names those of its training
    answered: SplitOutputs  # what all of it was computed from


def evaluate_bundle(
    session: Session,
    project: Project,
    *,
    folder: Path,
    split: str = "test",
    only: Sequence[str] = (),
    show: Callable[[str], None] | None = None,
) -> list[SplitScore]:
    """Every declared task (or `only` these) that the bundle holds, on the file of the split."""
    evaluated = evaluations(session, project, folder=folder, split=split, only=only, show=show)
    return [evaluation.score for evaluation in evaluated]


def evaluations(
    session: Session,
    project: Project,
    *,
    folder: Path,
    split: str = "test",
    only: Sequence[str] = (),
    show: Callable[[str], None] | None = None,
) -> list[Evaluation]:
    """Every declared task (or `only` these) that the bundle holds, on the file of the split.

    A task without a test file, or with a validation share in place of a file, is scored on what there is: the split
    that the score names. A validation share was drawn from train in training, so its task has no file to read here.
    """
    known = {entry.name: entry for entry in project.tasks}
    names = only or [name for name in known if name in session.tasks]
    unknown = [name for name in names if name not in known or name not in session.tasks]
    if unknown:
        raise UnknownTask(
            f"project and bundle do not both have {unknown}",
            allowed=sorted(set(known) & set(session.tasks)),
            do="train the task first, or name another",
        )
    evaluated = []
    for name in names:
        chosen, used = file_of(known[name], split)
        evaluated.append(evaluation_of(session, name, known[name].source(chosen, folder), split=used, show=show))
    return evaluated


def evaluation_of(
    session: Session, name: str, source: Source, *, split: str = "data", show: Callable[[str], None] | None = None
) -> Evaluation:
    """The task on all rows of a file, by its fresh answers; `split` is what the score calls them."""
    return evaluation_from(outputs_of_split(session, name, source, show=show), split=split)


def evaluation_from(answered: SplitOutputs, *, split: str) -> Evaluation:
    """The evaluation of outputs that are there."""
    task, examples, outputs = answered.task, answered.examples, answered.outputs
    kind = kind_of(task)
    errors = _errors(task, examples, outputs) if kind.tells_mistakes else ()
    score = SplitScore(
        task=task.name,
        split=split,
        rows=len(outputs),
        metric=kind.default_metric(task),
        scores=examples.scores(task, outputs),
        labels=kind.label_scores(task, outputs, examples.targets, examples.each()),
        wrong=len(errors) if kind.tells_mistakes else None,
    )
    return Evaluation(score=score, errors=errors, digest=examples.digest, answered=answered)


def outputs_of_split(
    session: Session, name: str, source: Source, *, show: Callable[[str], None] | None = None
) -> SplitOutputs:
    """The task's outputs for all rows of a file."""
    task, outputs = session.tasks[name], list[np.ndarray]()
    examples = read(source, task)
    for start in range(0, len(examples.inputs), PIECE):
        if show is not None:
            show(f"{name}: {start:,} of {len(examples.inputs):,} texts")
        words = examples.words[start : start + PIECE] if examples.words is not None else None
        outputs += session.outputs(name, examples.inputs[start : start + PIECE], words=words)
    return SplitOutputs(task=task, source=source, examples=examples, outputs=outputs)


def decoded_answers(task: Task, outputs: Sequence[np.ndarray], examples: Sequence[Example]) -> Iterator[Answer]:
    """Every answer in order; few are in memory at a time."""
    for start in range(0, len(outputs), PIECE):
        here = slice(start, start + PIECE)
        yield from kind_of(task).decode_all(task, outputs[here], examples[here])


def file_of(entry: TaskEntry, split: str) -> tuple[str | DataFile, str]:
    """The file of the split, or of the other one, and which it is; raises UnknownTask where there is none."""
    validation = None if isinstance(entry.validation, float) else entry.validation
    first, second = (entry.test, validation) if split == "test" else (validation, entry.test)
    chosen = first or second
    if chosen is None:
        raise UnknownTask(
            f"task '{entry.name}' has no file to be scored on: its validation is a share of train, and it has no test",
            do="give the task a test file; `polyhead evaluate` scores the rows that training held out",
        )
    return chosen, "test" if chosen is entry.test else "validation"


def _errors(task: Task, examples: Examples, outputs: Sequence[np.ndarray]) -> tuple[WrongRow, ...]:
    kind, each = kind_of(task), examples.each()
    errors = []
    for place, answer in enumerate(decoded_answers(task, outputs, each)):
        mistake = kind.mistake(task, answer, examples.targets[place], each[place])
        if mistake is not None:
            errors.append(
                WrongRow(
                    task=task.name,
                    row=examples.rows[place],
                    input=each[place].input,
                    truth=mistake.truth,
                    answer=mistake.answer,
                    score=mistake.score,
                )
            )
    return tuple(sorted(errors, key=lambda error: -1.0 if error.score is None else error.score, reverse=True))
