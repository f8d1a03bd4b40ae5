"""Calibration: a task's measured confidence, stored with the task, and the calibrated answers that result from it.

An answer's own label and scores never change. Calibrated values are added to it under `calibrated`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import compress
from math import inf, isfinite
from typing import Any

import msgspec
import numpy as np

from polyhead.arguments import check_fields
from polyhead.errors import BadValue, ConfigError
from polyhead.tasks.kinds import KINDS, base, kind_of
from polyhead.tasks.task import Answer, RowKind, Task
from polyhead.values import Value

KEY = "calibrated"  # of an answer
SMALLEST, LARGEST = 1e-300, 1 - 1e-16  # probabilities whose logarithms are finite


class SetRule(Value):
    """A set of labels, or an interval of numbers, that contains the truth with a probability of at least `coverage`.

    The set holds the labels whose calibrated probability is `limit` or more; an interval extends by `limit` of the
    task's range to both sides of the answer.
    """

    coverage: float
    limit: float


class Calibration(Value):
    """The map from a task's scores to calibrated answers; empty fields change nothing.

    It reads the logarithms of probabilities, or the log odds of a kind with one sigmoid per label: an answer holds
    both, so that a request may be answered again with another choice.
    """

    scale: tuple[float, ...] = ()  # factors of the logarithms: one for all labels (1 / temperature), or one per label
    shift: tuple[float, ...] = ()  # added after scaling, one per label
    thresholds: tuple[float, ...] = ()  # calibrated probability from which a label is given, one per label
    positive: str | None = None  # single_label: this label's threshold alone decides between it and the others
    unsure_below: float = 0.0  # single_label, multiple_choice: minimum probability of the answered label
    sets: tuple[SetRule, ...] = ()  # by ascending coverage
    coverage: float | None = None  # the one of `sets` that answers show
    measured: dict[str, Any] = {}  # for people: number of rows, and results measured on rows not used for fitting

    def __post_init__(self) -> None:
        numbers = (*self.scale, *self.shift, *self.thresholds, self.unsure_below)
        numbers = (*numbers, *(number for rule in self.sets for number in (rule.coverage, rule.limit)))
        shares = (*self.thresholds, self.unsure_below, *(rule.coverage for rule in self.sets))
        is_range = all(0 <= share <= 1 for share in shares) and all(scale > 0 for scale in self.scale)
        if not all(map(isfinite, numbers)) or not is_range:
            raise ConfigError(
                "a calibration holds a number that it cannot use",
                allowed="scales above 0, thresholds and coverages from 0 to 1, all finite",
            )
        if self.coverage is not None and self.coverage not in [rule.coverage for rule in self.sets]:
            raise _no_coverage(self.coverage, self.sets)

    def check(self, task: Task) -> None:
        """Raises ConfigError if it does not match this task's kind or labels."""
        labels = len(task.labels)
        fits = len(self.scale) in (0, 1, labels) and len(self.shift) in (0, labels)
        fits = fits and len(self.thresholds) in (0, labels) and (self.positive is None or self.positive in task.labels)
        if not fits or (calibrator_of(task) is None):
            raise ConfigError(
                f"task '{task.name}' has the calibration of another task", do="calibrate it again", task=task.name
            )

    def probabilities(self, task: Task, logarithms: np.ndarray) -> np.ndarray:
        """Calibrated probabilities, float64 (rows, labels), of log probabilities or log odds (rows, labels)."""
        scaled = self._scaled(logarithms)
        return base.sigmoid(scaled) if kind_of(task).scores == "sigmoid" else base.softmax(scaled)

    def given(self, task: Task, log_odds: np.ndarray) -> np.ndarray:
        """Whether each label of a sigmoid is given, bool (rows, labels).

        Without a threshold it is decided by log odds, as the task's own threshold is scaled with them: a temperature
        then changes no labels, not even where all probabilities become 0 or 1.
        """
        is_given = np.asarray(self._scaled(log_odds) >= self._scaled_threshold(task))
        if not self.thresholds:
            return is_given
        needed = np.asarray(self.thresholds)
        unchanged = needed == msgspec.structs.replace(self, thresholds=()).label_thresholds(task)
        return np.asarray(np.where(unchanged, is_given, self.probabilities(task, log_odds) >= needed))

    def label_thresholds(self, task: Task) -> np.ndarray:
        """The calibrated probability from which each label of a sigmoid is given, float64 (labels,).

        Without thresholds it is what scaling makes of the task's own. A threshold equal to that decides as none does.
        """
        if self.thresholds:
            return np.array(self.thresholds)
        return np.asarray(np.maximum(base.sigmoid(self._scaled_threshold(task)), SMALLEST))

    def _scaled(self, logarithms: np.ndarray) -> np.ndarray:
        scaled = logarithms * np.asarray(self.scale) if self.scale else logarithms
        return scaled + np.asarray(self.shift) if self.shift else scaled

    def _scaled_threshold(self, task: Task) -> np.ndarray:
        """The log odds of the task's threshold after scaling, float64 (labels,)."""
        return np.asarray(np.full(len(task.labels), _log_odds(task.threshold)) * np.asarray(self.scale or 1.0))


class CalibrationChoice(Value):
    """A request's deviations from the task's calibration."""

    thresholds: dict[str, float] | None = None  # of some labels
    unsure_below: float | None = None
    coverage: float | None = None  # a coverage that the calibration holds

    def __post_init__(self) -> None:
        check_fields(self)


Wish = bool | CalibrationChoice
"""Whether a task's answers say what calibration makes of them, or how."""
Wishes = bool | Mapping[str, Wish]
"""The same of all tasks, or of some by name; the others say it."""


def wish_of(wishes: Wishes, task: str) -> Wish:
    """The choice that applies to one task."""
    return wishes if isinstance(wishes, bool) else wishes.get(task, True)


def with_choice(task: Task, calibration: Calibration, choice: CalibrationChoice) -> Calibration:
    """The calibration with the request's choices applied. Raises BadValue for choices that the task does not offer."""
    changed: dict[str, Any] = {}
    if choice.thresholds:
        if unknown := sorted(set(choice.thresholds) - set(task.labels)):
            raise BadValue(
                f"task '{task.name}' has no such label to set a threshold for", got=unknown, allowed=task.labels
            )
        is_sigmoid, zeros = kind_of(task).scores == "sigmoid", [0.0] * len(task.labels)
        needed = calibration.label_thresholds(task).tolist() if is_sigmoid else calibration.thresholds or zeros
        standing = dict(zip(task.labels, needed, strict=True))
        others = sorted(
            label
            for label, threshold in choice.thresholds.items()
            if label != calibration.positive and threshold != standing[label]
        )
        if calibration.positive is not None and others:
            raise BadValue(
                f"task '{task.name}' decides by the threshold of one label alone, so that of another changes nothing",
                got=others,
                allowed=[calibration.positive],
                do="set that of the allowed label, or unsure_below",
            )
        changed["thresholds"] = tuple((standing | choice.thresholds).values())
    if choice.unsure_below is not None:
        if kind_of(task).scores in ("sigmoid", "range"):
            problem = f"no answer of task '{task.name}' is unsure, so 'unsure_below' changes nothing"
            raise BadValue(problem, got=task.kind, do="leave it out")
        changed["unsure_below"] = choice.unsure_below
    if choice.coverage is not None:
        if choice.coverage not in [rule.coverage for rule in calibration.sets]:
            raise _no_coverage(choice.coverage, calibration.sets)
        changed["coverage"] = choice.coverage
    shares = [*changed.get("thresholds", ()), changed.get("unsure_below", 0.0)]
    if not all(0 <= share <= 1 for share in shares):
        raise BadValue("a threshold is a probability", got=shares, allowed="0 to 1")
    return msgspec.structs.replace(calibration, **changed)


def with_calibrated(
    task: Task, calibration: Calibration | None, answers: Sequence[Answer], wish: Wish = True
) -> list[Answer]:
    """The answers with their calibrated values under `calibrated`, if the task has a calibration and they are wanted.

    Earlier calibrated values are replaced. Raises BadValue for a choice that the task cannot fulfil.
    """
    bare = [{key: value for key, value in answer.items() if key != KEY} for answer in answers]
    if calibration is None or wish is False or not bare:
        return bare
    if isinstance(wish, CalibrationChoice):
        calibration = with_choice(task, calibration, wish)
    calibrator = calibrator_of(task)
    assert calibrator is not None  # the task was checked when it was read
    calibrated_answers = calibrator(task, calibration, bare)
    return [{**answer, KEY: calibrated} for answer, calibrated in zip(bare, calibrated_answers, strict=True)]


def _single_labels(task: Task, calibration: Calibration, answers: Sequence[Answer]) -> list[Answer]:
    scores = np.array([[answer["scores"][label] for label in task.labels] for answer in answers])
    logarithms = np.log(np.maximum(scores, SMALLEST))
    probabilities = calibration.probabilities(task, logarithms)
    chosen, is_sure = decided(task, calibration, probabilities)
    sets = _sets(task, calibration, logarithms, task.labels)
    return [
        {
            "label": task.labels[label] if sure else None,
            "unsure": not sure,
            "scores": dict(zip(task.labels, row, strict=True)),
            **its_set,
        }
        for label, sure, row, its_set in zip(
            chosen.tolist(), is_sure.tolist(), probabilities.tolist(), sets, strict=True
        )
    ]


def decided(task: Task, calibration: Calibration, probabilities: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """For each row, the index of its label, int64 (rows,), and whether its confidence suffices, bool (rows,)."""
    rows, chosen = np.arange(len(probabilities)), probabilities.argmax(axis=-1)
    if calibration.positive is not None:
        place = task.labels.index(calibration.positive)
        others = probabilities.copy()
        others[:, place] = -inf
        threshold = calibration.thresholds[place] if calibration.thresholds else 0.5
        is_given = probabilities[:, place] >= threshold
        # the positive label is the likeliest, but below its threshold: the answer is unsure
        is_likeliest = ~is_given & (probabilities[:, place] > others.max(axis=-1))
        chosen = np.where(is_given, place, others.argmax(axis=-1))
        return chosen, (probabilities[rows, chosen] >= calibration.unsure_below) & ~is_likeliest
    confidence, needed = probabilities[rows, chosen], np.full(len(rows), calibration.unsure_below)
    if calibration.thresholds:
        needed = np.maximum(needed, np.asarray(calibration.thresholds)[chosen])
    return chosen, confidence >= needed


def _multi_labels(task: Task, calibration: Calibration, answers: Sequence[Answer]) -> list[Answer]:
    scores = np.array([[answer["scores"][label] for label in task.labels] for answer in answers])
    log_odds = _log_odds(np.clip(scores, SMALLEST, LARGEST))
    is_given, probabilities = calibration.given(task, log_odds), calibration.probabilities(task, log_odds)
    sets = _sets(task, calibration, log_odds, task.labels)
    return [
        {"labels": list(compress(task.labels, row)), "scores": dict(zip(task.labels, its, strict=True)), **its_set}
        for row, its, its_set in zip(is_given.tolist(), probabilities.tolist(), sets, strict=True)
    ]


def _choices(task: Task, calibration: Calibration, answers: Sequence[Answer]) -> list[Answer]:
    chosen = []
    for answer in answers:
        logarithms = np.log(np.maximum([answer["scores"]], SMALLEST))
        probabilities = calibration.probabilities(task, logarithms)
        is_sure = probabilities.max() >= calibration.unsure_below
        (its_set,) = _sets(task, calibration, logarithms, range(logarithms.shape[1]))
        index = answer["index"] if is_sure else None
        chosen.append({"index": index, "unsure": not is_sure, "scores": probabilities[0].tolist(), **its_set})
    return chosen


def _numbers(task: Task, calibration: Calibration, answers: Sequence[Answer]) -> list[Answer]:
    assert task.range is not None
    (low, high), rule = task.range, rule_of(calibration)
    if rule is None:
        return [{} for _ in answers]
    reach = rule.limit * (high - low)
    return [
        {"interval": [max(low, answer["value"] - reach), min(high, answer["value"] + reach)], "coverage": rule.coverage}
        for answer in answers
    ]


Calibrator = Callable[[Task, Calibration, Sequence[Answer]], list[Answer]]
"""What calibration makes of answers."""
_BY_SCORES: Mapping[str | None, Calibrator] = {"softmax": _single_labels, "sigmoid": _multi_labels, "range": _numbers}


def calibrator_of(task: Task) -> Calibrator | None:
    """The calibrator of the task's kind; None for a kind without one probability per label or a number."""
    kind = kind_of(task)
    if kind.per_option:
        return _choices
    return _BY_SCORES.get(kind.scores) if isinstance(kind, RowKind) else None


def calibrated_kinds() -> list[str]:
    """The names of the kinds that can be calibrated."""
    return sorted(k.name for k in KINDS.values() if k.per_option or (isinstance(k, RowKind) and k.scores in _BY_SCORES))


def _log_odds(probabilities: np.ndarray | float) -> np.ndarray:
    return np.asarray(np.log(probabilities) - np.log1p(-probabilities))


def _sets(task: Task, calibration: Calibration, logarithms: np.ndarray, names: Sequence[Any]) -> list[Answer]:
    rule = rule_of(calibration)
    if rule is None:
        return [{} for _ in logarithms]
    inside = in_set(task, calibration, rule, logarithms).tolist()
    return [{"set": list(compress(names, row)), "coverage": rule.coverage} for row in inside]


def in_set(task: Task, calibration: Calibration, rule: SetRule, logarithms: np.ndarray) -> np.ndarray:
    """The labels in each row's set, bool (rows, labels): those that reach the limit, and the given ones."""
    probabilities = calibration.probabilities(task, logarithms)
    inside = probabilities >= rule.limit
    if kind_of(task).scores == "sigmoid":
        return np.asarray(inside | calibration.given(task, logarithms))
    chosen, is_sure = decided(task, calibration, probabilities)
    inside[is_sure, chosen[is_sure]] = True
    return inside


def rule_of(calibration: Calibration) -> SetRule | None:
    """The rule for the sets in answers; None if there is none."""
    return next((rule for rule in calibration.sets if rule.coverage == calibration.coverage), None)


def _no_coverage(coverage: float, rules: Sequence[SetRule]) -> BadValue:
    return BadValue(
        "the calibration keeps no sets of this coverage",
        got=coverage,
        allowed=[rule.coverage for rule in rules] or "none, since it was made without",
        do="calibrate again with --coverage",
    )
