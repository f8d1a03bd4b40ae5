"""Metrics of a bundle's live answers on whole splits."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from polyhead.config import Value
from polyhead.engine.session import Session
from polyhead.errors import UnknownTask
from polyhead.project.tables import Project, TaskEntry
from polyhead.tasks.kinds import kind_of
from polyhead.tasks.read import Examples, read

PIECE = 512  # inputs answered at a time: bounds memory


class Score(Value):
    """One task on one whole split."""

    task: str
    split: str
    rows: int
    metric: str
    scores: dict[str, float]


def evaluate_bundle(
    session: Session,
    project: Project,
    *,
    folder: Path,
    split: str = "test",
    only: Sequence[str] = (),
    show: Callable[[str], None] | None = None,
) -> list[Score]:
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
    return [_score(session, known[name], folder, split, show or (lambda text: None)) for name in names]


def _score(session: Session, entry: TaskEntry, folder: Path, split: str, show: Callable[[str], None]) -> Score:
    validation = None if isinstance(entry.validation, float) else entry.validation
    first, second = (entry.test, validation) if split == "test" else (validation, entry.test)
    chosen = first or second
    if chosen is None:
        raise UnknownTask(
            f"task '{entry.name}' has no file to be scored on: its validation is a share of train, and it has no test",
            do="give the task a test file; the share's score is in the bundle's scores.json",
        )
    name = "test" if chosen is entry.test else "validation"
    task = session.tasks[entry.name]
    examples: Examples = read(entry.source(chosen, folder), task)
    outputs = []
    for start in range(0, len(examples.inputs), PIECE):
        show(f"{entry.name}: {start:,} of {len(examples.inputs):,} texts")
        words = examples.words[start : start + PIECE] if examples.words is not None else None
        outputs += session.outputs(entry.name, examples.inputs[start : start + PIECE], words=words)
    return Score(
        task=task.name,
        split=name,
        rows=len(outputs),
        metric=kind_of(task).default_metric(task),
        scores=examples.scores(task, outputs),
    )
