"""The losses of linear heads with their derivatives; those of `deep.loop.loss` by another way."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from polyhead.tasks.task import LossName


class RowLosses(NamedTuple):
    """The loss of each row, or of each example of several options, and its gradient; their mean divides by `total`."""

    losses: np.ndarray  # (rows,), or (examples,)
    gradients: np.ndarray  # of each row's outputs, (rows, outputs)
    total: float

    @property
    def mean(self) -> float:
        """The loss that is minimised."""
        return float(self.losses.sum(dtype=np.float64)) / self.total


def row_losses(name: LossName, outputs: np.ndarray, targets: np.ndarray, weights: np.ndarray | None) -> RowLosses:
    """The loss of outputs (rows, outputs); that of several labels is the sum of theirs.

    `weights` (labels,) count rows of a label more, or, of several labels, their positive terms. Targets are labels
    (rows,), probabilities or flags (rows, labels), numbers (rows,), or for options (rows, 2): the example's number,
    from 0 without gaps and ascending, and the share of the option, 1 for the right one.
    """
    rows = len(outputs)
    match name:
        case "squared_error":
            apart = outputs[:, 0] - targets
            return RowLosses(apart * apart, 2 * apart[:, None], rows)
        case "binary_cross_entropy":
            positive = targets if weights is None else targets * weights
            negative = 1 - targets
            tail = np.log1p(np.exp(-np.abs(outputs)))  # of the logarithm, where the sign is right
            losses = positive * (np.maximum(-outputs, 0) + tail) + negative * (np.maximum(outputs, 0) + tail)
            shares = _sigmoid(outputs)
            return RowLosses(losses.sum(axis=1), negative * shares - positive * (1 - shares), rows)
        case "ranking":
            examples = targets[:, 0].astype(np.int64)
            shares, logarithms, starts = _options(outputs[:, 0], examples)
            right = targets[:, 1].astype(np.float32)
            losses = np.add.reduceat(-logarithms * right, starts)
            counts = np.add.reduceat(right, starts)[examples]
            return RowLosses(losses, (shares * counts - right)[:, None], len(starts))
        case _:
            return _cross_entropy(outputs, targets, weights)


def _cross_entropy(outputs: np.ndarray, targets: np.ndarray, weights: np.ndarray | None) -> RowLosses:
    shares, logarithms = _softmax(outputs)
    if targets.ndim == 2:
        counted, total = targets, float(len(outputs))
        if weights is not None:
            counts, even = targets.sum(axis=1, keepdims=True), np.full_like(targets, 1 / targets.shape[1])
            whole = np.divide(targets, counts, out=even, where=counts > 0)  # as if every row counted fully
            counted, total = targets * weights, float((whole * weights).sum(dtype=np.float64))
        gradients = shares * counted.sum(axis=1, keepdims=True) - counted
        return RowLosses(-(counted * logarithms).sum(axis=1), gradients, total)
    place = np.arange(len(outputs))
    losses, gradients = -logarithms[place, targets], shares
    gradients[place, targets] -= 1
    if weights is None:
        return RowLosses(losses, gradients, len(outputs))
    row_weights = weights[targets]
    return RowLosses(losses * row_weights, gradients * row_weights[:, None], float(row_weights.sum(dtype=np.float64)))


def curvatures(name: LossName, outputs: np.ndarray, targets: np.ndarray, weights: np.ndarray | None) -> np.ndarray:
    """The second derivatives of the mean loss by each row's output, added up over the rows: (outputs,).

    Weights of labels that exclude each other are ignored.
    """
    match name:
        case "squared_error":
            return np.array([2.0], np.float32)
        case "binary_cross_entropy":
            shares = _sigmoid(outputs)
            positive = 1.0 if weights is None else 1 + (weights - 1) * targets
            each = positive * shares * (1 - shares)
        case "ranking":
            shares, _, starts = _options(outputs[:, 0], targets[:, 0])
            return np.array([(shares * (1 - shares)).sum() / len(starts)], np.float32)
        case _:
            shares = _softmax(outputs)[0]
            each = shares * (1 - shares)
    means: np.ndarray = each.mean(axis=0)
    return means


def _sigmoid(outputs: np.ndarray) -> np.ndarray:
    small = np.exp(-np.abs(outputs))
    share: np.ndarray = np.where(outputs < 0, small, np.ones_like(small)) / (1 + small)
    return share


def _softmax(outputs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Shares and their logarithms, each (rows, outputs)."""
    apart = outputs - outputs.max(axis=1, keepdims=True)
    shares = np.exp(apart)
    sums = shares.sum(axis=1, keepdims=True)
    shares /= sums
    apart -= np.log(sums)
    return shares, apart


def _options(outputs: np.ndarray, examples: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Shares among the options of an example, their logarithms, and where each example begins."""
    starts = np.flatnonzero(np.diff(examples, prepend=-1))
    apart = outputs - np.maximum.reduceat(outputs, starts)[examples]
    shares = np.exp(apart)
    sums = np.add.reduceat(shares, starts)[examples]
    return shares / sums, apart - np.log(sums), starts
