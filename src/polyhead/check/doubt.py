"""Labels that a head doubts which did not learn from them: confident learning (Northcutt et al. 2021).

`t_j` is the mean probability of label j over the rows that have it. A row of label i counts for the most probable j of
those with `p_j >= t_j`; where that is another label than its own, its label is doubted. Beside it stand the nearest
neighbours of each row by the cosine of their vectors.
"""

from __future__ import annotations

import numpy as np

from polyhead.values import Value

NEIGHBOURS = 10
AT_ONCE = 2**24  # cosines that are computed at a time
# On eleven sets (500 to 1,688 rows, 5 % wrong labels, two draws) lists that ended here had a precision of 0.39 on
# average in place of 0.19, and held 0.55 in place of 0.68 of the wrong labels.
TIMES = 2
HITS, ERRORS = 8, 4


class Doubts(Value, eq=False):
    """What held-out probabilities say of each row's label."""

    quality: np.ndarray  # float64 (rows,): the probability of the given label
    suggested: np.ndarray  # int64 (rows,): another label, or -1 where the given one is not doubted
    thresholds: np.ndarray  # float64 (labels,); above 1 for a label without rows

    @property
    def order(self) -> np.ndarray:
        """All rows, the most doubtful first."""
        return np.argsort(self.quality, kind="stable")

    @property
    def doubted(self) -> np.ndarray:
        """The rows whose label is doubted, the most doubtful first."""
        order = self.order
        return np.asarray(order[self.suggested[order] >= 0])


def doubts(probabilities: np.ndarray, labels: np.ndarray) -> Doubts:
    """Of rows with probabilities (rows, labels) by a head that did not learn from them, and their labels (rows,)."""
    rows = np.arange(len(labels))
    own = probabilities[rows, labels]
    counts = np.bincount(labels, minlength=probabilities.shape[1])
    sums = np.bincount(labels, weights=own, minlength=probabilities.shape[1])
    thresholds = np.where(counts > 0, sums / np.maximum(counts, 1), np.inf)
    sure = np.where(probabilities >= thresholds, probabilities, -1.0)
    best = sure.argmax(axis=1)
    is_sure = sure[rows, best] >= 0
    return Doubts(quality=own, suggested=np.where(is_sure & (best != labels), best, -1), thresholds=thresholds)


def trusted(quality: np.ndarray, is_planted: np.ndarray, chance: float) -> float:
    """The quality up to which doubts find labels that were changed on purpose far more often than chance; 0 if nowhere.

    `quality` (items,) are of doubted labels, the most doubtful first, `is_planted` says which of them were changed, and
    `chance` is the share of changed ones among all labels, doubted or not. The list ends where it holds the most hits
    above `TIMES` that share. Hits that are within `ERRORS` standard errors of chance show nothing.
    """
    if not len(quality):
        return 0.0
    gains = np.cumsum(is_planted - TIMES * chance)
    end = len(gains) - int(gains[::-1].argmax())
    hits, expected = int(is_planted[:end].sum()), chance * end
    return float(quality[end - 1]) if hits >= max(HITS, expected + ERRORS * np.sqrt(expected)) else 0.0


class DoubtedLabel(Value):
    """A label that a row has, or lacks, against what held-out probabilities say."""

    row: int
    label: int
    is_given: bool
    probability: float  # of the label

    @property
    def quality(self) -> float:
        """The probability of what the row says: that it has the label, or has it not."""
        return self.probability if self.is_given else 1 - self.probability


def doubts_of_each(probabilities: np.ndarray, has_label: np.ndarray) -> list[DoubtedLabel]:
    """Doubted labels of rows that may have several, the most doubtful first.

    Each label is a question of its own, present or absent. It is doubted where `doubts` says so and the other answer is
    also the more probable, since the threshold of a rare label may be far below a half. `probabilities` and `has_label`
    are (rows, labels); the heads that gave the probabilities did not learn from the row.
    """
    doubted = list[DoubtedLabel]()
    for label in range(has_label.shape[1]):
        present = probabilities[:, label]
        column = has_label[:, label].astype(np.int64)
        answers = doubts(np.stack([1 - present, present], axis=1), column)
        for row in answers.doubted[answers.quality[answers.doubted] < 0.5].tolist():
            is_given = bool(column[row])
            doubted.append(DoubtedLabel(row=row, label=label, is_given=is_given, probability=float(present[row])))
    return sorted(doubted, key=lambda each: each.quality)


class Neighbours(Value, eq=False):
    """What the nearest other rows of each row are labelled."""

    agreeing: np.ndarray  # int64 (rows,): how many of them have the row's label
    label: np.ndarray  # int64 (rows,): the label that most of them have
    count: np.ndarray  # int64 (rows,): how many have that
    of: int  # neighbours of a row


def neighbours(vectors: np.ndarray, labels: np.ndarray, *, of: int = NEIGHBOURS) -> Neighbours:
    """By the cosine of vectors (rows, width); of fewer rows there are fewer neighbours."""
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    unit = np.asarray(vectors / np.maximum(lengths, np.finfo(np.float32).tiny), np.float32)
    of = min(of, len(labels) - 1)
    classes = int(labels.max(initial=0)) + 1
    agreeing, label, count = (np.zeros(len(labels), np.int64) for _ in range(3))
    step = max(1, AT_ONCE // max(1, len(labels)))
    for start in range(0, len(labels) if of > 0 else 0, step):
        stop = min(start + step, len(labels))
        cosines = unit[start:stop] @ unit.T
        cosines[np.arange(stop - start), np.arange(start, stop)] = -np.inf
        nearest = labels[np.argpartition(-cosines, of - 1, axis=1)[:, :of]]
        votes = np.zeros((stop - start, classes), np.int64)
        np.add.at(votes, (np.repeat(np.arange(stop - start), of), nearest.ravel()), 1)
        agreeing[start:stop] = votes[np.arange(stop - start), labels[start:stop]]
        label[start:stop], count[start:stop] = votes.argmax(axis=1), votes.max(axis=1)
    return Neighbours(agreeing=agreeing, label=label, count=count, of=max(of, 0))
