"""Whether rows look like those that a task was validated on: their texts, their lengths, and what the task answers."""

from __future__ import annotations

from typing import Any

import numpy as np

from polyhead.bundle.seen import Seen
from polyhead.errors import EmptyData
from polyhead.evaluate.measures import LabelledOutputs, error_of
from polyhead.evaluate.samples import SampleDistance, distance, farness, holm, sample_distance
from polyhead.tasks.calibration import Calibration
from polyhead.tasks.kinds import kind_of
from polyhead.tasks.metrics import calibration_error
from polyhead.tasks.task import Task
from polyhead.values import Value

ALPHA = 0.01  # how often a run may name drift where there is none, in any of its tasks
MOST = 1000  # rows that are compared; of more so many are drawn
LEAST = 30  # rows, of each side
FAR = 0.99  # the share of the known rows that are nearer to the others than a row that is called unlike
DRAWS = 200  # of labels, where answers were as sure as they say
ASPECTS = {"texts": "other texts", "lengths": "other lengths", "answers": "other answers"}


class Aspect(Value):
    """One way in which rows may differ from those that are known."""

    distance: float  # 0 to 1, see `samples.difference`
    p: float
    differs: bool


class UnlikeRow(Value):
    """A row that is unlike the known ones."""

    row: int
    text: str
    distance: float  # from the nearest known rows


class Sureness(Value):
    """How sure answers are, and how often they are right, on rows with labels."""

    rows: int
    accuracy: float
    confidence: float
    error: float  # expected calibration error
    usual: float  # which it exceeds one time in a hundred where answers are as sure as they say
    differs: bool


class TaskDrift(Value):
    """What one task sees."""

    task: str
    rows: int
    known: int  # rows of the summary
    aspects: dict[str, Aspect]
    unlike: float  # share of the rows that are farther from the known ones than nearly all of these are
    examples: tuple[UnlikeRow, ...] = ()
    sureness: Sureness | None = None  # where the rows have labels
    notes: tuple[str, ...] = ()

    @property
    def differs(self) -> bool:
        """Whether it sees other rows than it knows."""
        return any(aspect.differs for aspect in self.aspects.values())


def compare_profiles(
    task: str, known: Seen, rows: Seen, *, level: float, rng: np.random.Generator
) -> dict[str, SampleDistance]:
    """How rows differ from the known ones, by aspect. Raises EmptyData for too few of either."""
    for what, seen in (("the summary of the task", known), ("the file", rows)):
        if len(seen.lengths) < LEAST:
            raise EmptyData(
                f"task '{task}': {what} holds too few rows to compare",
                got=len(seen.lengths),
                allowed=f"{LEAST} or more",
                do="take more rows",
            )
    sides = _sides(known, rows)
    return {aspect: sample_distance(first, second, level=level, rng=rng) for aspect, (first, second) in sides.items()}


def distances(known: Seen, rows: Seen) -> dict[str, float]:
    """How far rows are from the known ones, by aspect, without tests; both have two rows or more."""
    return {aspect: distance(first, second) for aspect, (first, second) in _sides(known, rows).items()}


def _sides(known: Seen, rows: Seen) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """What is compared of both, by aspect; answers where both have their scores."""
    sides = {"texts": (known.vectors, rows.vectors), "lengths": (_scaled(known.lengths), _scaled(rows.lengths))}
    if known.scores.shape[1] == rows.scores.shape[1] > 0:
        sides["answers"] = (np.sqrt(np.maximum(known.scores, 0)), np.sqrt(np.maximum(rows.scores, 0)))
    return sides


def _scaled(lengths: np.ndarray) -> np.ndarray:
    return np.asarray(np.log1p(lengths)[:, None])


def unlike_rows(known: Seen, rows: Seen) -> tuple[float, np.ndarray, np.ndarray]:
    """The share of rows that are unlike, the distance of each row, and rows in order, the most unlike first."""
    usual = float(np.quantile(farness(known.vectors, known.vectors, among=True), FAR))
    distances = farness(rows.vectors, known.vectors)
    return float((distances > usual).mean()), distances, np.argsort(-distances, kind="stable")


def drift_verdict(differences: dict[str, dict[str, SampleDistance]], alpha: float) -> dict[str, dict[str, Aspect]]:
    """What differs, by task and aspect: all tests of the run together are wrong with a chance of `alpha` at most."""
    values = {f"{task}\0{name}": d.p for task, several in differences.items() for name, d in several.items()}
    held = holm(values, alpha)
    return {
        task: {
            name: Aspect(distance=d.distance, p=d.p, differs=f"{task}\0{name}" in held) for name, d in several.items()
        }
        for task, several in differences.items()
    }


def sureness(rows: LabelledOutputs, calibration: Calibration | None, *, rng: np.random.Generator) -> Sureness:
    """How sure answers are on labelled rows, with the calibration that the task has.

    Where answers were as sure as they say, labels would be drawn by their probabilities: `usual` is what the error
    of such labels seldom exceeds.
    """
    probabilities = (calibration or Calibration()).probabilities(rows.task, rows.logarithms)
    if rows.is_sigmoid:
        confidence, right = probabilities.ravel(), rows.targets.ravel().astype(np.float64)
        accuracy = float(((probabilities >= rows.task.threshold) == rows.targets).mean())
        shown = float(np.maximum(confidence, 1 - confidence).mean())
    else:
        confidence = probabilities.max(axis=-1)
        right = (probabilities.argmax(axis=-1) == rows.targets).astype(np.float64)
        accuracy, shown = float(right.mean()), float(confidence.mean())
    drawn = [calibration_error(confidence, (rng.random(len(confidence)) < confidence) * 1.0) for _ in range(DRAWS)]
    usual, error = float(np.quantile(drawn, 0.99)), error_of(rows, probabilities)
    return Sureness(
        rows=len(rows.targets), accuracy=accuracy, confidence=shown, error=error, usual=usual, differs=error > usual
    )


def has_sureness(task: Task) -> bool:
    """Whether the task's answers have probabilities that can be compared with labels."""
    kind = kind_of(task)
    return kind.per_option or (kind.scores in ("softmax", "sigmoid") and not kind.per_word)


def drift_facts(drift: TaskDrift) -> dict[str, Any]:
    """What a report says of it."""
    return {"differs": drift.differs, **{name: getattr(drift, name) for name in drift.__struct_fields__}}
