"""A baseline without an encoder: TF-IDF of words and pairs of words with logistic regression, or ridge for numbers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from polyhead.codecs.base import evenly_spaced
from polyhead.data.read import Examples
from polyhead.engine.familiar import reads_one_text
from polyhead.tasks.kinds import kind_of
from polyhead.tasks.task import Task
from polyhead.text.encodings import starts_of
from polyhead.text.hashing import word_hashes, words_to_hash
from polyhead.text.question import TaskInput, texts_of
from polyhead.train.heads.lbfgs import minimise
from polyhead.train.heads.linear import LEAST, Inputs
from polyhead.train.heads.losses import curvatures, row_losses
from polyhead.train.heads.search import solutions

NUMBERS = 2**23  # weights at most: labels with fewer columns where there are many
LEAST_COLUMNS, MOST_COLUMNS = 2**12, 2**18
MOST = 10_000  # rows learned from; of more, evenly spaced ones
STRENGTHS = (10.0, 100.0, 1000.0)  # scikit-learn's C, the inverse of the penalty; held-out rows choose
DENSE = 1000  # rows up to which they are solved in the directions that they span
ITERATIONS, HISTORY = 100, 5
NEAR = 1e-5  # what a Newton step would still gain, as a share of the value
AT_ONCE = 2**20  # products that are added up at a time
SHORTEST = 1e-5  # share of the largest squared length below which a direction is rounding


class WordCounts(NamedTuple):
    """How often each hashed word and pair of neighbours occurs, row after row."""

    starts: np.ndarray  # int64 (rows + 1,)
    columns: np.ndarray  # int64 (features,)
    counts: np.ndarray  # float32 (features,)


def word_counts(inputs: Sequence[TaskInput], columns: int) -> WordCounts:
    """Counts of words in a power of two of columns; marks and single ASCII letters are left out, as in scikit-learn."""
    words = [list(filter(_counts, words_to_hash(" ".join(texts_of(text))))) for text in inputs]
    rows = [np.unique(word_hashes(text_words) & np.uint32(columns - 1), return_counts=True) for text_words in words]
    return WordCounts(
        starts=starts_of(np.array([len(row_columns) for row_columns, _ in rows], np.int64)),
        columns=np.concatenate([row_columns for row_columns, _ in rows]).astype(np.int64),
        counts=np.concatenate([counts for _, counts in rows]).astype(np.float32),
    )


def _counts(word: str) -> bool:
    return any(map(str.isalnum, word)) and (len(word) > 1 or not word.isascii())


def rarity_of(read: WordCounts, columns: int) -> np.ndarray:
    """`ln((1 + rows) / (1 + rows with it)) + 1` of each column, float32 (columns,): scikit-learn's smoothed IDF.

    0 for a column that no row has: what was not learned is left out of a text, and of its length.
    """
    within = np.bincount(read.columns, minlength=columns)
    return np.where(within, np.log(len(read.starts) / (1 + within)) + 1, 0).astype(np.float32)


def weighted(read: WordCounts, rarity: np.ndarray) -> WordCounts:
    """Counts times rarity, each row of length 1, or 0 where nothing is known."""
    sizes = np.diff(read.starts)
    row, values = np.repeat(np.arange(len(sizes)), sizes), read.counts * rarity[read.columns]
    lengths = np.maximum(
        np.sqrt(np.bincount(row, values.astype(np.float64) ** 2, len(sizes))), np.finfo(np.float32).tiny
    )
    return read._replace(counts=(values / lengths[row]).astype(np.float32))


class SparseRows:
    """A matrix (rows, columns) of which few numbers are not 0."""

    def __init__(self, read: WordCounts, columns: int) -> None:
        sizes = np.diff(read.starts)
        self.shape = (len(sizes), columns)
        row, order = np.repeat(np.arange(len(sizes)), sizes), np.argsort(read.columns, kind="stable")
        filled = np.flatnonzero(sizes)
        self._by_row = _Groups(filled, read.starts[filled], read.columns, read.counts)
        filled_columns, starts = np.unique(read.columns[order], return_index=True)
        self._by_column = _Groups(filled_columns, starts, row[order], read.counts[order])

    def times(self, weight: np.ndarray) -> np.ndarray:
        """The product with (columns, outputs): (rows, outputs)."""
        return self._by_row.times(weight, self.shape[0])

    def turned_times(self, values: np.ndarray) -> np.ndarray:
        """The product of the transposed matrix with (rows, outputs): (columns, outputs)."""
        return self._by_column.times(values, self.shape[1])

    def squares(self) -> np.ndarray:
        """The sum of squares of each column, float64 (columns,)."""
        columns = self._by_column
        return np.bincount(np.repeat(columns.groups, columns.sizes), columns.values**2, self.shape[1])


class _Groups(NamedTuple):
    """The numbers of a sparse matrix, row after row or column after column."""

    groups: np.ndarray  # int64 (groups,): those with a number, ascending
    starts: np.ndarray  # int64 (groups,): where each begins
    others: np.ndarray  # int64 (numbers,): the column, or row, of each
    values: np.ndarray  # float32 (numbers,)

    @property
    def sizes(self) -> np.ndarray:
        """The number of values of each group."""
        return np.diff(self.starts, append=len(self.values))

    def times(self, factors: np.ndarray, count: int) -> np.ndarray:
        """For each of `count` groups the sum of its values times the rows of (others, outputs): (count, outputs)."""
        out = np.zeros((count, factors.shape[1]), np.float32)
        piece = max(1, AT_ONCE // factors.shape[1])
        ends = np.append(self.starts[1:], len(self.values))
        first = 0
        while first < len(self.groups):
            last = max(first + 1, int(np.searchsorted(ends, self.starts[first] + piece, side="right")))
            begin, end = self.starts[first], ends[last - 1]
            products = self.values[begin:end, None] * factors[self.others[begin:end]]
            out[self.groups[first:last]] = np.add.reduceat(products, self.starts[first:last] - begin)
            first = last
        return out


def can_read(task: Task) -> bool:
    """Whether the baseline can answer the task: a label, several labels or a number for one text."""
    kind = kind_of(task)
    return reads_one_text(task) and kind.loss in ("cross_entropy", "binary_cross_entropy", "squared_error")


def answers_to(
    task: Task, held: Examples, *, train: Examples, strengths: Sequence[float] = STRENGTHS
) -> dict[float, list[np.ndarray]]:
    """For each strength the outputs (labels,) of each row that is held out, of a head that learned from `train`.

    Every solution starts from the one before.
    """
    train, outputs = train.take(evenly_spaced(len(train.inputs), MOST).tolist()), kind_of(task).width(task)
    columns = 2 ** int(np.log2(np.clip(NUMBERS // outputs, LEAST_COLUMNS, MOST_COLUMNS)))
    read = word_counts(train.inputs, columns)
    rarity = rarity_of(read, columns)
    learned, queries = (weighted(counts, rarity) for counts in (read, word_counts(held.inputs, columns)))
    used = np.unique(read.columns)  # the others' weights stay 0
    rows, query_rows = (_among(counts, used) for counts in (learned, queries))
    targets = np.stack(train.targets)
    targets = targets.astype(np.float32) if targets.dtype.kind == "f" else targets
    if len(used) > 0 and len(train.inputs) <= DENSE:
        return _answers_of_few(task, (rows, query_rows), targets, len(used), strengths)
    matrix, to_answer = (SparseRows(counts, len(used)) for counts in (rows, query_rows))
    weight, answers = np.zeros((len(used) + 1, outputs), np.float32), dict[float, list[np.ndarray]]()
    for strength in strengths:
        weight = _solved(task, matrix, targets, strength, start=weight)
        answers[strength] = list(to_answer.times(weight[:-1]) + weight[-1])
    return answers


def _among(read: WordCounts, used: np.ndarray) -> WordCounts:
    """The same in the used columns alone, numbered without gaps."""
    known = np.isin(read.columns, used)
    return WordCounts(
        starts=np.concatenate([[0], np.cumsum(known)])[read.starts],
        columns=np.searchsorted(used, read.columns[known]),
        counts=read.counts[known],
    )


def _answers_of_few(
    task: Task, rows: tuple[WordCounts, WordCounts], targets: np.ndarray, columns: int, strengths: Sequence[float]
) -> dict[float, list[np.ndarray]]:
    """`answers_to` for few rows: linear heads over coordinates in the space that rows span, where all solutions lie.

    `rows` are those to learn from, and those to answer.
    """
    learned, held_rows = (_dense(counts, columns) for counts in rows)
    lengths, vectors = np.linalg.eigh(learned @ learned.T)
    kept = lengths > SHORTEST * max(float(lengths[-1]), SHORTEST)
    roots = np.sqrt(lengths[kept])
    inputs = Inputs(
        values=vectors[:, kept] * roots,
        targets=targets,
        members=np.arange(len(targets)),
        loss=kind_of(task).loss,
        outputs=kind_of(task).width(task),
    )
    values = held_rows @ learned.T @ (vectors[:, kept] / roots)
    penalties = [1 / (strength * len(targets) * inputs.scale**2) for strength in strengths]  # of inputs as they are
    heads = zip(strengths, solutions(inputs, penalties), strict=True)
    return {strength: list(values @ head.weight.T + head.bias) for strength, head in heads}


def _dense(read: WordCounts, columns: int) -> np.ndarray:
    """float32 (rows, columns)"""
    rows = len(read.starts) - 1
    values = np.zeros((rows, columns), np.float32)
    values[np.repeat(np.arange(rows), np.diff(read.starts)), read.columns] = read.counts
    return values


def _solved(task: Task, values: SparseRows, targets: np.ndarray, strength: float, *, start: np.ndarray) -> np.ndarray:
    """The weights (columns + 1, outputs), the bias last, with the least mean loss and penalty."""
    loss, rows = kind_of(task).loss, values.shape[0]
    penalty = np.float32(1 / (strength * rows))

    def function(point: np.ndarray) -> tuple[float, np.ndarray]:
        weight = point.reshape(start.shape)
        losses = row_losses(loss, values.times(weight[:-1]) + weight[-1], targets, None)
        slopes = losses.gradients / np.float32(losses.total)
        pulled = weight[:-1] * penalty
        gradient = np.concatenate([values.turned_times(slopes) + pulled, slopes.sum(axis=0, keepdims=True)])
        return losses.mean + float((pulled * weight[:-1]).sum(dtype=np.float64)) / 2, gradient.ravel()

    squares = np.append(values.squares() / rows, 1)[:, None]
    scores = values.times(start[:-1]) + start[-1]
    curvature = curvatures(loss, scores, targets, None) * squares + penalty
    curvature = np.maximum(curvature, LEAST).astype(np.float32)
    solution = minimise(
        function, start.ravel(), curvature=curvature.ravel(), iterations=ITERATIONS, near=NEAR, history=HISTORY
    )
    return solution.reshape(start.shape)
