"""Measures of how sure answers are and whether they are right: calibration error, log loss, bounds, quantiles."""

from __future__ import annotations

from math import ceil

import numpy as np

from polyhead.tasks.kinds import base, kind_of
from polyhead.tasks.metrics import calibration_error
from polyhead.tasks.task import Task
from polyhead.values import Value

SMALLEST = 1e-300


class LabelledOutputs(Value, eq=False):
    """A task's outputs for labelled rows, as calibration reads them."""

    task: Task
    logarithms: np.ndarray  # float64 (rows, labels): log probabilities, with a sigmoid a label the log odds
    targets: np.ndarray  # (rows,): indices; with a sigmoid a label (rows, labels) of 0 and 1

    @property
    def is_sigmoid(self) -> bool:
        """Whether each label has a probability of its own."""
        return kind_of(self.task).scores == "sigmoid"

    def take(self, rows: np.ndarray) -> LabelledOutputs:
        """The same of some rows."""
        return LabelledOutputs(task=self.task, logarithms=self.logarithms[rows], targets=self.targets[rows])


def label_scores_of(task: Task, outputs: list[np.ndarray], targets: list[np.ndarray]) -> LabelledOutputs:
    """Of raw outputs; a question with fewer options than another has -inf for those that it lacks."""
    if kind_of(task).scores == "sigmoid":
        return LabelledOutputs(
            task=task, logarithms=np.stack(outputs).astype(np.float64), targets=np.stack(targets) > 0
        )
    width = max(len(row) for row in outputs)
    padded = np.full((len(outputs), width), -np.inf)
    for row, output in zip(padded, outputs, strict=True):
        row[: len(output)] = output
    with np.errstate(divide="ignore"):
        logarithms = np.log(base.softmax(padded))
    return LabelledOutputs(task=task, logarithms=logarithms, targets=np.array(targets, np.int64))


def error_of(rows: LabelledOutputs, probabilities: np.ndarray) -> float:
    """Expected calibration error: of the answered label, or of each label's probability where each has its own."""
    if rows.is_sigmoid:
        return calibration_error(probabilities.ravel(), rows.targets.ravel().astype(np.float64))
    chosen = probabilities.argmax(axis=-1)
    return calibration_error(probabilities.max(axis=-1), (chosen == rows.targets).astype(np.float64))


def log_loss(rows: LabelledOutputs, probabilities: np.ndarray) -> float:
    """Mean negative logarithm of the probability of the truth, of a row or of a row's label."""
    return float(-np.log(np.maximum(of_truth(rows, probabilities), SMALLEST)).mean())


def of_truth(rows: LabelledOutputs, probabilities: np.ndarray) -> np.ndarray:
    """The probability of what is true: (rows,), with a sigmoid a label (rows, labels)."""
    if rows.is_sigmoid:
        return np.where(rows.targets, probabilities, 1 - probabilities)
    return np.asarray(probabilities[np.arange(len(rows.targets)), rows.targets])


def conformal_quantile(values: np.ndarray, coverage: float) -> float | None:
    """What a new value does not exceed with a chance of at least `coverage`; None where these are too few to say.

    Split conformal prediction (Papadopoulos et al. 2002): the ceil((n + 1) coverage)-th smallest of n.
    """
    place = ceil((len(values) + 1) * coverage - 1e-9)
    return float(np.partition(values, place - 1)[place - 1]) if 0 < place <= len(values) else None


def rows_for(coverage: float) -> int:
    """The fewest rows from which `conformal_quantile` can say something."""
    return ceil(coverage / (1 - coverage) - 1e-9)
