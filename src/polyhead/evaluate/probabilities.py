"""Calibrated probabilities: scaling (Guo et al. 2017), measures of quality, and thresholds."""

from __future__ import annotations

import re
from collections.abc import Callable
from math import ceil, floor
from typing import Literal

import msgspec
import numpy as np

from polyhead.errors import BadValue
from polyhead.tasks.agreement import wilson
from polyhead.tasks.calibration import Calibration
from polyhead.tasks.kinds import base, kind_of
from polyhead.tasks.metrics import calibration_error
from polyhead.tasks.task import Task
from polyhead.values import Value

SMALLEST = 1e-300


class LabelledOutputs(Value, eq=False):
    """A task's outputs for labelled rows, in the form used by calibration."""

    task: Task
    logarithms: np.ndarray  # float64 (rows, labels): log probabilities, or log odds if each label has a sigmoid
    targets: np.ndarray  # (rows,): indices; with a sigmoid per label (rows, labels) of 0 and 1

    @property
    def is_sigmoid(self) -> bool:
        """Whether each label has an independent probability."""
        return kind_of(self.task).scores == "sigmoid"

    def take(self, rows: np.ndarray) -> LabelledOutputs:
        """A subset of the rows."""
        return LabelledOutputs(task=self.task, logarithms=self.logarithms[rows], targets=self.targets[rows])


def label_scores_of(task: Task, outputs: list[np.ndarray], targets: list[np.ndarray]) -> LabelledOutputs:
    """From raw outputs; a question with fewer options than another has -inf for the missing ones."""
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
    """Expected calibration error: of the answered label, or of each label's probability if these are independent."""
    if rows.is_sigmoid:
        return calibration_error(probabilities.ravel(), rows.targets.ravel().astype(np.float64))
    chosen = probabilities.argmax(axis=-1)
    return calibration_error(probabilities.max(axis=-1), (chosen == rows.targets).astype(np.float64))


def log_loss(rows: LabelledOutputs, probabilities: np.ndarray) -> float:
    """Mean negative logarithm of the probability of the truth, per row or per row's label."""
    loss = -np.log(np.maximum(of_truth(rows, probabilities), SMALLEST)).mean()
    return float(loss) + 0.0  # never -0.0


def of_truth(rows: LabelledOutputs, probabilities: np.ndarray) -> np.ndarray:
    """The probability of the truth: (rows,), with a sigmoid per label (rows, labels)."""
    if rows.is_sigmoid:
        return np.where(rows.targets, probabilities, 1 - probabilities)
    return np.asarray(probabilities[np.arange(len(rows.targets)), rows.targets])


def conformal_quantile(values: np.ndarray, coverage: float) -> float | None:
    """The bound of a new value with a chance of at least `coverage`; None for too few values.

    Split conformal prediction (Papadopoulos et al. 2002): the ceil((n + 1) coverage)-th smallest of n.
    """
    place = ceil((len(values) + 1) * coverage - 1e-9)
    return float(np.partition(values, place - 1)[place - 1]) if 0 < place <= len(values) else None


def rows_for(coverage: float) -> int:
    """The minimum number of rows for a `conformal_quantile`."""
    return ceil(coverage / (1 - coverage) - 1e-9)


Method = Literal["temperature", "vector", "none"]
COLDEST, HOTTEST = 0.02, 50.0  # range of temperatures
STEPS = 60  # steps of a golden-section search: the temperature is then known to 1e-10 of the logarithm's range
LEAST_OF_LABEL = 10  # minimum rows with a label for its own numbers in vector scaling
PENALTY = 1.0  # weight, in rows, that pulls a label's numbers towards those of all labels
ROUNDS = 200


def fit_scaling(method: Method, rows: LabelledOutputs) -> Calibration:
    """The scaling with the lowest log loss on these rows; raises BadValue for `vector` where options change by row."""
    if method == "none":
        return Calibration()
    if method == "vector" and not rows.task.labels:
        raise BadValue(
            f"task '{rows.task.name}' has no labels to scale one by one: its options change from row to row",
            got=method,
            allowed=["temperature", "none"],
            do="leave out --method",
        )
    temperature = best_temperature(rows)
    common = Calibration(scale=(1 / temperature,))
    return common if method == "temperature" else _vector(rows, common)


def best_temperature(rows: LabelledOutputs) -> float:
    """The divisor of logarithms, by golden-section search: the loss has one minimum in 1 / temperature."""

    def loss(logarithm: float) -> float:
        calibration = Calibration(scale=(float(np.exp(-logarithm)),))
        return log_loss(rows, calibration.probabilities(rows.task, rows.logarithms))

    return float(np.exp(golden_minimum(loss, np.log(COLDEST), np.log(HOTTEST), steps=STEPS)))


def golden_minimum(function: Callable[[float], float], low: float, high: float, *, steps: int) -> float:
    """The place between `low` and `high` where a function with one minimum is least, by golden-section search."""
    ratio = (np.sqrt(5) - 1) / 2
    left, right = high - ratio * (high - low), low + ratio * (high - low)
    values = function(left), function(right)
    for _ in range(steps):
        if values[0] <= values[1]:
            high, right = right, left
            left = high - ratio * (high - low)
            values = function(left), values[0]
        else:
            low, left = left, right
            right = low + ratio * (high - low)
            values = values[1], function(right)
    return (low + high) / 2


def _vector(rows: LabelledOutputs, common: Calibration) -> Calibration:
    """A scale and a shift per label, pulled towards the common temperature; labels with few rows keep it.

    Damped steps along the gradient divided by the diagonal of the Hessian, each only if the loss falls.
    """
    count, labels = rows.logarithms.shape
    truth = rows.targets.astype(np.float64) if rows.is_sigmoid else np.eye(labels)[rows.targets]
    enough = (truth.sum(axis=0) >= LEAST_OF_LABEL) & ((1 - truth).sum(axis=0) >= LEAST_OF_LABEL)
    values = np.maximum(rows.logarithms, -50.0)
    start, pull = common.scale[0], PENALTY / count
    scale, shift, step = np.full(labels, start), np.zeros(labels), 1.0

    def penalised(scale: np.ndarray, shift: np.ndarray) -> tuple[float, np.ndarray]:
        calibration = Calibration(scale=tuple(scale.tolist()), shift=tuple(shift.tolist()))
        probabilities = calibration.probabilities(rows.task, values)
        sums = -np.log(np.maximum(np.where(truth > 0, probabilities, 1 - probabilities), 1e-300))
        data = sums.sum() if rows.is_sigmoid else sums[truth > 0].sum()
        held = ((scale - start) ** 2).sum() + (shift**2).sum()
        return float(data / count + pull * held / 2), probabilities

    loss, probabilities = penalised(scale, shift)
    for _ in range(ROUNDS):
        off, spread = probabilities - truth, probabilities * (1 - probabilities)
        by_shift = (off.mean(axis=0) + pull * shift) / (spread.mean(axis=0) + pull)
        by_scale = ((off * values).mean(axis=0) + pull * (scale - start)) / ((spread * values**2).mean(axis=0) + pull)
        new_scale = np.maximum(scale - step * np.where(enough, by_scale, 0.0), 1 / HOTTEST)
        new_shift = shift - step * np.where(enough, by_shift, 0.0)
        new_loss, new = penalised(new_scale, new_shift)
        if new_loss > loss:
            step /= 2
            if step < 1e-6:
                break
            continue
        is_done = loss - new_loss < 1e-9
        scale, shift, loss, probabilities, step = new_scale, new_shift, new_loss, new, min(1.0, step * 1.5)
        if is_done:
            break
    return msgspec.structs.replace(common, scale=tuple(scale.tolist()), shift=tuple(shift.tolist()))


Measure = Literal["f1", "precision", "recall", "accuracy"]
ALLOWED = "f1, precision=0.9, recall=0.9 or accuracy=0.9"
FEW = 30  # minimum rows with a label as answer: with fewer the label shares a threshold with all others
SHOWN = 20  # minimum rows above a threshold: fewer prove nothing
# Standard errors by which a share must exceed the goal, a one-sided bound of 90 %: the lowest of many thresholds that
# reaches it is a lucky one. In simulations with 2 to 40 labels the precision then held on other rows on average; with
# 0.7 it was up to 0.016 too low.
CAUTION = 1.28
# True rows that all labels together lend to each label for F1: a label with few rows has nearly the common threshold.
# On six sets of 5 to 49 labels, with 100 or 300 rows for fitting and three draws, 50 raised micro F1 by 2.1 points on
# average (-0.3 at worst), and macro F1 in all; without, micro F1 fell in 22 of 36 (by 8.6 points at worst).
LENT = 50


class Goal(Value):
    """The goal of thresholds: the best F1, or a minimum of precision, recall or accuracy."""

    measure: Measure
    least: float | None = None

    @classmethod
    def of(cls, text: str) -> Goal:
        """The goal from words such as `f1` and `precision=0.9`; raises BadValue."""
        match = re.fullmatch(r"(f1)|(precision|recall|accuracy)\s*(?:>=|=)\s*(0?\.\d+|0|1(?:\.0*)?)", text.strip())
        least = None if match is None or match[1] else float(match[3])
        if match is None or (least is not None and not 0 < least < 1):
            raise BadValue("a goal of thresholds cannot be read", got=text, allowed=ALLOWED)
        return cls(measure=match[1] or match[2], least=least)  # type: ignore[arg-type]

    def __str__(self) -> str:
        return self.measure if self.least is None else f"{self.measure} of at least {self.least:g}"


def of_label(probabilities: np.ndarray, is_true: np.ndarray, goal: Goal) -> float | None:
    """The threshold from which one label is given; None if no threshold reaches the goal.

    `probabilities` and `is_true` are those of all rows, (rows,).
    """
    order = np.argsort(-probabilities, kind="stable")
    ranked, right = probabilities[order], np.cumsum(is_true[order])
    count = np.arange(1, len(ranked) + 1)
    is_last = np.append(ranked[1:] != ranked[:-1], True)  # rows of equal probability are given together
    if goal.measure == "f1":
        if not is_true.any():
            return None
        f1 = np.where(is_last, 2 * right / (count + is_true.sum()), -1.0)
        return _between(ranked, int(f1.argmax()))
    assert goal.least is not None
    if goal.measure == "recall":
        true = np.sort(probabilities[is_true])
        place = floor((len(true) + 1) * (1 - goal.least) + 1e-9)  # 10 * (1 - 0.9) is 0.9999999999999998
        return just_below(float(true[place - 1])) if place >= 1 else (0.0 if len(true) else None)
    is_shown = is_last & (count >= SHOWN)
    reached = np.flatnonzero(is_shown & (wilson(right, count, z=CAUTION)[0] >= goal.least))
    return None if not len(reached) else _between(ranked, int(reached[-1]))


def just_below(probability: float) -> float:
    """A limit that this probability still reaches in answers, which make log odds anew from rounded scores."""
    return probability * (1 - 1e-9)


def _between(ranked: np.ndarray, place: int) -> float:
    """A threshold that includes the rows up to this place: half way to the next one; 0 if all are included."""
    return 0.0 if place + 1 == len(ranked) else float((ranked[place] + ranked[place + 1]) / 2)


def of_answers(rows: LabelledOutputs, probabilities: np.ndarray, goal: Goal) -> tuple[float, ...]:
    """For each label, the probability from which its answer reaches the precision; below, the answer is unsure.

    A label with few answers shares the threshold of all answers together, which is 1 if nothing reaches the goal.
    """
    chosen, confidence = probabilities.argmax(axis=-1), probabilities.max(axis=-1)
    is_right = chosen == rows.targets
    shared = of_label(confidence, is_right, goal)
    thresholds = []
    for label in range(probabilities.shape[1]):
        is_chosen = chosen == label
        enough = is_chosen.sum() >= FEW
        threshold = of_label(confidence[is_chosen], is_right[is_chosen], goal) if enough else shared
        thresholds.append(1.0 if threshold is None else threshold)
    return tuple(thresholds)


def of_labels(
    rows: LabelledOutputs, probabilities: np.ndarray, goal: Goal, *, default: np.ndarray
) -> tuple[float, ...]:
    """For each label of several that may apply to a row, the probability from which it is given.

    For F1, all labels lend each of them rows. For recall, a label without rows keeps that of `default`. A
    label that cannot reach the goal is not given: its threshold is 1.
    """
    if goal.measure == "f1":
        return _of_f1(probabilities, rows.targets, default=default)
    thresholds = []
    for label in range(probabilities.shape[1]):
        is_true = rows.targets[:, label]
        is_known = goal.measure == "precision" or is_true.any()
        threshold = of_label(probabilities[:, label], is_true, goal) if is_known else float(default[label])
        thresholds.append(1.0 if threshold is None else threshold)
    return tuple(thresholds)


def _of_f1(probabilities: np.ndarray, targets: np.ndarray, *, default: np.ndarray) -> tuple[float, ...]:
    """For each label the threshold of the best F1, with `LENT` true rows of all labels added to its own."""
    everything, everything_true = np.sort(probabilities, axis=None), np.sort(probabilities[targets])
    if not len(everything_true):
        return tuple(default.tolist())
    share = LENT / len(everything_true)
    thresholds = list[float]()
    for label in range(targets.shape[1]):
        tried = _cuts(probabilities[:, label])
        label_values, true_values = np.sort(probabilities[:, label]), np.sort(probabilities[targets[:, label], label])
        answered = _above(label_values, tried) + share * _above(everything, tried)
        right = _above(true_values, tried) + share * _above(everything_true, tried)
        true = len(true_values) + share * len(everything_true)
        thresholds.append(float(tried[np.argmax(2 * right / (answered + true))]))
    return tuple(thresholds)


def _cuts(probabilities: np.ndarray) -> np.ndarray:
    """Half way between neighbours, in descending order; the last includes all rows."""
    ranked = np.unique(probabilities)[::-1]
    return np.append((ranked[:-1] + ranked[1:]) / 2, 0.0)


def _above(ordered: np.ndarray, thresholds: np.ndarray) -> np.ndarray:
    """The number of these ascending numbers that reach each threshold."""
    return np.asarray(len(ordered) - np.searchsorted(ordered, thresholds))
