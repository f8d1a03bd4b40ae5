"""Kind `regression`: a number in the task's range."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

import numpy as np

from polyhead.errors import ConfigError
from polyhead.tasks import metrics
from polyhead.tasks.judging import Judged, confusion_of, correlations
from polyhead.tasks.kinds import base
from polyhead.tasks.task import Answer, Arrays, Decoded, Example, Mistake, RowKind, Task

PARTS = 10  # of the range: bins of the confusion
CLOSE = 0.01  # of the range: numbers that differ by less count as one answer
# Python's float() also takes 1_000, nan, inf, digits of other scripts and blanks around the number.
NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")


class Regression(RowKind):
    """One linear output, trained on values scaled to [0, 1] by the task's range."""

    name = "regression"
    other_names = ("score", "rating", "sts", "similarity")
    loss = "squared_error"
    scores = "range"
    uses = ("range", "pair", "long_texts")
    problem_type = "regression"
    cell, cell_key = "number", "value"

    def check(self, task: Task) -> None:
        """Checks for a finite range, the lower end first."""
        low, high = map(base.as_float, task.range or (0.0, 0.0))
        if not (low < high and math.isfinite(high - low)):
            raise ConfigError(
                f"task '{task.name}': kind 'regression' needs 'range', the lowest and the highest value",
                got=task.range,
                allowed="two finite numbers, the lower first, and so is their difference",
                task=task.name,
            )

    def metrics(self, task: Task) -> tuple[str, ...]:
        """Correlations of the task's answers (clipped to the range) with the truth."""
        return ("pearson", "spearman")

    def parse(self, cell: str, separator: str | None) -> object:
        """The cell as a number, if it is a plain decimal; else unchanged, for `encode` to refuse."""
        return float(cell) if NUMBER.fullmatch(cell) else cell

    def encode(self, task: Task, label: object, example: Example) -> np.ndarray:
        """`(value - low) / (high - low)`, float32 ()."""
        low, high = _range(task)
        value = math.nan if isinstance(label, bool) or not isinstance(label, (int, float)) else base.as_float(label)
        if not low <= value <= high:
            raise base.bad_value(
                task,
                example,
                "the label is not a number in the task's range",
                got=label if isinstance(label, (int, float)) else repr(label),
                allowed=f"{low:g} to {high:g}",
                do="fix the row or the range",
            )
        return np.asarray((value - low) / (high - low), np.float32)

    def decode_rows(self, task: Task, outputs: np.ndarray) -> Decoded:
        """`value`, in the task's range."""
        return Decoded(value=_values(task, outputs)[:, 0])

    def answers(self, task: Task, decoded: Decoded) -> list[Answer]:
        """`{"value"}` for each row."""
        assert decoded.value is not None
        return [{"value": value} for value in decoded.value.tolist()]

    def evaluate(self, task: Task, outputs: Arrays, targets: Arrays, examples: Sequence[Example]) -> dict[str, float]:
        """`pearson`, `spearman`."""
        base.check_split(task, outputs, targets)
        wanted, answered = np.stack(targets).reshape(-1), _values(task, np.stack(outputs)).reshape(-1)
        return {"pearson": metrics.pearson(wanted, answered), "spearman": metrics.spearman(wanted, answered)}

    def judged(self, task: Task, outputs: Arrays, targets: Arrays, examples: Sequence[Example]) -> Judged:
        """Everything except decisions: a number has no probability. Confusion is between tenths of the range."""
        low, high = _range(task)
        wanted = low + np.stack(targets).reshape(-1).astype(np.float64) * (high - low)
        answered = _values(task, np.stack(outputs)).reshape(-1)
        edges = np.linspace(low, high, PARTS + 1)
        names = [f"{first:.4g} to {last:.4g}" for first, last in zip(edges[:-1], edges[1:], strict=True)]
        truth, answers = (np.clip(np.searchsorted(edges, x, "right") - 1, 0, PARTS - 1) for x in (wanted, answered))
        return Judged(
            recount=correlations(np.stack(targets).reshape(-1), answered),
            confusion=confusion_of(truth, answers, of="rows", truths=names, outcomes=names),
            differences=answered - wanted,
            undefined=self.metrics(task) if len(np.unique(wanted)) == 1 else (),
        )

    def support(self, task: Task, answer: Answer, other: Answer) -> dict[str, float]:
        """The number itself."""
        return {"value": other["value"]}

    def mistake(self, task: Task, answer: Answer, target: np.ndarray, example: Example) -> Mistake | None:
        """The number, if it is off by more than CLOSE of the range, and the error as a fraction of the range."""
        low, high = _range(task)
        truth = float(low + float(target) * (high - low))
        off = abs(answer["value"] - truth) / (high - low)
        return None if off <= CLOSE else Mistake(truth=float(f"{truth:.7g}"), answer=answer["value"], score=off)

    def constant(self, task: Task, targets: Arrays, examples: Sequence[Example]) -> list[np.ndarray]:
        """The mean."""
        mean = np.asarray([np.mean(np.asarray(targets, np.float64))], np.float32)
        return [mean] * len(examples)


def _range(task: Task) -> tuple[float, float]:
    assert task.range is not None  # checked by Task.__post_init__
    return task.range


def _values(task: Task, outputs: np.ndarray) -> np.ndarray:
    low, high = _range(task)
    return np.asarray(np.clip(low + np.asarray(outputs, np.float64) * (high - low), low, high))
