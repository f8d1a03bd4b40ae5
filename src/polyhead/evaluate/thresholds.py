"""Thresholds for a stated goal, from calibrated probabilities of labelled rows."""

from __future__ import annotations

import re
from math import floor
from typing import Literal

import numpy as np

from polyhead.errors import BadValue
from polyhead.evaluate.measures import LabelledOutputs
from polyhead.tasks.agreement import wilson
from polyhead.values import Value

Measure = Literal["f1", "precision", "recall", "accuracy"]
ALLOWED = "f1, precision=0.9, recall=0.9 or accuracy=0.9"
FEW = 30  # rows that answer a label: with fewer the label shares a threshold with all others
SHOWN = 20  # rows above a threshold: of fewer nothing is shown
# Standard errors by which a share must exceed the goal, a one-sided bound of 90 %: the lowest of many thresholds that
# reaches it is a lucky one. In simulations of 2 to 40 labels the precision then held on other rows on average; with 0.7
# it was up to 0.016 short.
CAUTION = 1.28
# True rows that all labels together lend to each one for F1: a label of few rows has nearly the threshold of them all.
# On six sets of 5 to 49 labels, with 100 or 300 rows that fit and three draws, 50 raised micro F1 by 2.1 points on
# average (-0.3 at worst), and macro F1 in all; without, micro F1 fell in 22 of 36 (by 8.6 points at worst).
LENT = 50


class Goal(Value):
    """What thresholds are chosen for: the best F1, or at least so much of precision, recall or accuracy."""

    measure: Measure
    least: float | None = None

    @classmethod
    def of(cls, text: str) -> Goal:
        """From words such as `f1` and `precision=0.9`; raises BadValue."""
        match = re.fullmatch(r"(f1)|(precision|recall|accuracy)\s*(?:>=|=)\s*(0?\.\d+|0|1(?:\.0*)?)", text.strip())
        least = None if match is None or match[1] else float(match[3])
        if match is None or (least is not None and not 0 < least < 1):
            raise BadValue("a goal of thresholds cannot be read", got=text, allowed=ALLOWED)
        return cls(measure=match[1] or match[2], least=least)  # type: ignore[arg-type]

    def __str__(self) -> str:
        return self.measure if self.least is None else f"{self.measure} of at least {self.least:g}"


def of_label(probabilities: np.ndarray, is_true: np.ndarray, goal: Goal) -> float | None:
    """The threshold of one label that is given from it on; None where no threshold reaches the goal.

    `probabilities` and `is_true` are those of all rows, (rows,).
    """
    order = np.argsort(-probabilities, kind="stable")
    ranked, right = probabilities[order], np.cumsum(is_true[order])
    count = np.arange(1, len(ranked) + 1)
    is_last = np.append(ranked[1:] != ranked[:-1], True)  # rows of one probability are given together
    if goal.measure == "f1":
        if not is_true.any():
            return None
        f1 = np.where(is_last, 2 * right / (count + is_true.sum()), -1.0)
        return _between(ranked, int(f1.argmax()))
    assert goal.least is not None
    if goal.measure == "recall":
        true = np.sort(probabilities[is_true])
        place = floor((len(true) + 1) * (1 - goal.least))
        return float(true[place - 1]) if place >= 1 else (0.0 if len(true) else None)
    is_shown = is_last & (count >= SHOWN)
    reached = np.flatnonzero(is_shown & (wilson(right, count, z=CAUTION)[0] >= goal.least))
    return None if not len(reached) else _between(ranked, int(reached[-1]))


def _between(ranked: np.ndarray, place: int) -> float:
    """A threshold that takes the rows up to this place: half way to the next one; 0 where all are taken."""
    return 0.0 if place + 1 == len(ranked) else float((ranked[place] + ranked[place + 1]) / 2)


def of_answers(rows: LabelledOutputs, probabilities: np.ndarray, goal: Goal) -> tuple[float, ...]:
    """For each label the probability from which its answer reaches the precision; below it the answer is unsure.

    A label that few rows answer shares the threshold of all answers together, which is 1 where nothing reaches it.
    """
    chosen, confidence = probabilities.argmax(axis=-1), probabilities.max(axis=-1)
    is_right = chosen == rows.targets
    shared = of_label(confidence, is_right, goal)
    thresholds = []
    for label in range(probabilities.shape[1]):
        own = chosen == label
        enough = own.sum() >= FEW
        threshold = of_label(confidence[own], is_right[own], goal) if enough else shared
        thresholds.append(1.0 if threshold is None else threshold)
    return tuple(thresholds)


def of_labels(rows: LabelledOutputs, probabilities: np.ndarray, goal: Goal, *, default: float) -> tuple[float, ...]:
    """For each label of several that may fit a row the probability from which it is given.

    For f1 all labels lend each of them rows. For recall a label that no row has keeps `default`. One for which nothing
    reaches the goal is not given: its threshold is 1.
    """
    if goal.measure == "f1":
        return _of_f1(probabilities, rows.targets, default=default)
    thresholds = []
    for label in range(probabilities.shape[1]):
        is_true = rows.targets[:, label]
        is_known = goal.measure == "precision" or is_true.any()
        threshold = of_label(probabilities[:, label], is_true, goal) if is_known else default
        thresholds.append(1.0 if threshold is None else threshold)
    return tuple(thresholds)


def _of_f1(probabilities: np.ndarray, targets: np.ndarray, *, default: float) -> tuple[float, ...]:
    """For each label the threshold of the best F1, where all labels together add `LENT` true rows to its own."""
    everything, everything_true = np.sort(probabilities, axis=None), np.sort(probabilities[targets])
    if not len(everything_true):
        return tuple(default for _ in range(targets.shape[1]))
    share = LENT / len(everything_true)
    thresholds = list[float]()
    for label in range(targets.shape[1]):
        tried = _cuts(probabilities[:, label])
        own, own_true = np.sort(probabilities[:, label]), np.sort(probabilities[targets[:, label], label])
        given = _above(own, tried) + share * _above(everything, tried)
        right = _above(own_true, tried) + share * _above(everything_true, tried)
        true = len(own_true) + share * len(everything_true)
        thresholds.append(float(tried[np.argmax(2 * right / (given + true))]))
    return tuple(thresholds)


def _cuts(probabilities: np.ndarray) -> np.ndarray:
    """Half way between neighbours, from the highest down; the last takes all rows."""
    ranked = np.unique(probabilities)[::-1]
    return np.append((ranked[:-1] + ranked[1:]) / 2, 0.0)


def _above(ordered: np.ndarray, thresholds: np.ndarray) -> np.ndarray:
    """How many of these ascending numbers reach each threshold."""
    return np.asarray(len(ordered) - np.searchsorted(ordered, thresholds))
