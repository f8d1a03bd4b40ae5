"""A baseline without an encoder: TF-IDF of words and pairs of words with logistic regression, or ridge for numbers."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from polyhead.data.read import Examples
from polyhead.deep.loop.loss import LOSSES
from polyhead.engine.familiar import reads_one_text
from polyhead.tasks.kinds import kind_of
from polyhead.tasks.task import Task
from polyhead.text.encodings import starts_of
from polyhead.text.hashing import word_hashes, words_to_hash
from polyhead.text.question import TaskInput, texts_of
from polyhead.train.heads.lbfgs import minimise
from polyhead.train.heads.linear import Inputs, solutions
from polyhead.train.heads.losses import curvatures

NUMBERS = 2**23  # weights at most: labels with fewer columns where there are many
LEAST_COLUMNS, MOST_COLUMNS = 2**12, 2**18
MOST = 10_000  # rows learned from; of more, evenly spaced ones
STRENGTHS = (10.0, 100.0, 1000.0)  # scikit-learn's C, the inverse of the penalty; held-out rows choose
DENSE = 1000  # rows up to which they are solved in the directions that they span
ITERATIONS, HISTORY = 100, 5
NEAR = 1e-5  # what a Newton step would still gain, as a share of the value


class WordCounts(NamedTuple):
    """How often each hashed word and pair of neighbours occurs, row after row."""

    starts: np.ndarray  # int64 (rows + 1,)
    columns: np.ndarray  # int64 (features,)
    counts: np.ndarray  # float32 (features,)


def word_counts(inputs: Sequence[TaskInput], columns: int) -> WordCounts:
    """The counts in so many columns, a power of two; like scikit-learn's, without marks and single ASCII letters."""
    words = [list(filter(_counts, words_to_hash(" ".join(texts_of(each))))) for each in inputs]
    rows = [np.unique(word_hashes(each) & np.uint32(columns - 1), return_counts=True) for each in words]
    return WordCounts(
        starts=starts_of(np.array([len(found) for found, _ in rows], np.int64)),
        columns=np.concatenate([found for found, _ in rows]).astype(np.int64),
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


def _sparse(read: WordCounts, columns: int) -> Tensor:
    """(rows, columns)"""
    sizes = np.diff(read.starts)
    row = np.repeat(np.arange(len(sizes)), sizes)
    places, shape = torch.from_numpy(np.stack([row, read.columns])), (len(sizes), columns)
    return torch.sparse_coo_tensor(
        places, torch.from_numpy(read.counts), shape, is_coalesced=True, check_invariants=False
    )


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
    kept = np.unique(np.linspace(0, len(train.inputs) - 1, min(MOST, len(train.inputs))).round().astype(int)).tolist()
    train, outputs = train.take(kept), kind_of(task).width(task)
    columns = 2 ** int(np.log2(np.clip(NUMBERS // outputs, LEAST_COLUMNS, MOST_COLUMNS)))
    read = word_counts(train.inputs, columns)
    rarity = rarity_of(read, columns)
    learned, asked = (weighted(each, rarity) for each in (read, word_counts(held.inputs, columns)))
    used = np.unique(read.columns)  # the others' weights stay 0
    if len(used) > 0 and len(train.inputs) <= DENSE:
        return _answers_of_few(task, (learned, asked), np.stack(train.targets), used, strengths)
    indices = torch.from_numpy(used)
    rows, values = (_sparse(each, columns).index_select(1, indices).coalesce() for each in (learned, asked))
    targets = torch.from_numpy(np.stack(train.targets))
    weight, answers = torch.zeros(len(used) + 1, outputs), dict[float, list[np.ndarray]]()
    for strength in strengths:
        weight = _solved(task, rows, targets, strength, start=weight)
        answers[strength] = list((values @ weight[:-1] + weight[-1]).numpy())
    return answers


def _answers_of_few(
    task: Task, rows: tuple[WordCounts, WordCounts], targets: np.ndarray, used: np.ndarray, strengths: Sequence[float]
) -> dict[float, list[np.ndarray]]:
    """The same as linear heads: few rows span few directions. `rows` are those learned from, and those to answer."""
    learned, asked = (
        each._replace(columns=np.searchsorted(used, each.columns[known]), counts=each.counts[known], starts=starts)
        for each, known, starts in ((each, *_known(each, used)) for each in rows)
    )
    values = np.zeros((len(targets), len(used)), np.float32)
    values[np.repeat(np.arange(len(targets)), np.diff(learned.starts)), learned.columns] = learned.counts
    inputs = Inputs(
        values=values,
        targets=targets.astype(np.float32) if targets.dtype.kind == "f" else targets,
        members=np.arange(len(targets)),
        loss=kind_of(task).loss,
        outputs=kind_of(task).width(task),
    )
    penalties = [1 / (strength * len(targets) * inputs.scale**2) for strength in strengths]  # of inputs as they are
    answers = dict[float, list[np.ndarray]]()
    bounds = list(pairwise(asked.starts.tolist()))
    for strength, head in zip(strengths, solutions(inputs, penalties), strict=True):
        weight = np.ascontiguousarray(head.weight.T)
        answers[strength] = [asked.counts[a:b] @ weight[asked.columns[a:b]] + head.bias for a, b in bounds]
    return answers


def _known(read: WordCounts, used: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """A mask of the features in used columns, (features,), and the start of each row among them, (rows + 1,)."""
    known = np.isin(read.columns, used)
    return known, np.concatenate([[0], np.cumsum(known)])[read.starts]


def _solved(task: Task, values: Tensor, targets: Tensor, strength: float, *, start: Tensor) -> Tensor:
    """The weights (columns + 1, outputs), the bias last, with the least mean loss and penalty."""
    kind, (rows, columns) = kind_of(task), values.shape
    loss, outputs, turned = LOSSES[kind.loss], kind.width(task), values.t().coalesce()
    labels = outputs if kind.loss == "binary_cross_entropy" else 1  # over which that loss is a mean
    if targets.is_floating_point():
        targets = targets.float()

    def function(point: np.ndarray) -> tuple[float, np.ndarray]:
        weight = torch.from_numpy(point).view(columns + 1, outputs)
        scores = (values @ weight[:-1] + weight[-1]).requires_grad_()
        value = loss(scores, targets, None) * labels
        (slope,) = torch.autograd.grad(value, scores)
        pulled = weight[:-1] / (strength * rows)
        gradient = torch.cat([turned @ slope + pulled, slope.sum(dim=0, keepdim=True)])
        return value.item() + float((pulled * weight[:-1]).sum()) / 2, gradient.flatten().numpy()

    squares = torch.cat([torch.sparse.sum(values * values, dim=0).to_dense() / rows, torch.ones(1)])[:, None].numpy()
    scores = (values @ start[:-1] + start[-1]).numpy()
    curvature = curvatures(kind.loss, scores, targets.numpy(), None) * squares + np.float32(1 / (strength * rows))
    found = minimise(
        function,
        start.flatten().numpy(),
        curvature=curvature.ravel(),
        iterations=ITERATIONS,
        near=NEAR,
        history=HISTORY,
    )
    return torch.from_numpy(found).view(columns + 1, outputs)
