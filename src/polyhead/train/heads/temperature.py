"""The scale of a head's outputs at which its probabilities are as sure as they are right on held-out rows.

Temperature scaling (Guo et al. 2017) multiplies outputs by one number, so no order of labels changes. It is kept in the
head's own weights: whatever answers the task reads the calibrated probabilities.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from polyhead.codecs.base import evenly_spaced
from polyhead.evaluate.probabilities import golden_minimum
from polyhead.tasks.kinds import kind_of
from polyhead.tasks.task import LossName, Task
from polyhead.train.heads.losses import row_losses

LARGEST = 4.0  # of the logarithm of a scale: a factor of 55
PULL = 1.0  # precision of a prior for the logarithm of the scale around 0, so that a few rows say little
WRONG, MORE = 2, 4  # of n rows that are all right, n + 4 count, of which 2 are wrong (Agresti and Coull 1998)
MOST = 20_000  # rows or words that are enough
STEPS = 40  # of a golden-section search: the logarithm is then known to 1e-7


def best_scale(task: Task, outputs: Sequence[np.ndarray], targets: Sequence[np.ndarray]) -> float:
    """The scale with the least loss of held-out rows and PULL / 2 times its squared logarithm.

    Targets may be probabilities. Each gives WRONG / (rows + MORE) of its share to the other labels: without that a few
    rows that are all right would make any answer sure (docs/project/log.md, 2026-11-28). 1 for kinds without one
    probability a label, and where a threshold other than 0.5 would give other labels.
    """
    rows = _rows(task, outputs, targets)
    if rows is None or (kind_of(task).scores == "sigmoid" and task.threshold != 0.5):
        return 1.0
    values, right = rows
    loss = kind_of(task).loss
    right = _doubted(right, values.shape[1], loss)
    name = "cross_entropy" if loss == "word_cross_entropy" else loss

    def cost(logarithm: float) -> float:
        losses = row_losses(name, values * np.exp(logarithm), right, None).losses
        return float(losses.sum()) + PULL / 2 * logarithm**2

    return float(np.exp(golden_minimum(cost, -LARGEST, LARGEST, steps=STEPS)))


def _doubted(right: np.ndarray, labels: int, loss: LossName) -> np.ndarray:
    """The targets, with a share of each moved to the other labels."""
    if loss == "ranking":
        counts = np.bincount(right[:, 0].astype(np.int64))
        others = np.maximum(counts - 1, 1)[right[:, 0].astype(np.int64)]
        share = WRONG / (len(counts) + MORE) * (counts > 1)[right[:, 0].astype(np.int64)]
        return np.stack([right[:, 0], right[:, 1] * (1 - share) + (1 - right[:, 1]) * share / others], axis=1)
    doubt, others_count = WRONG / (len(right) + MORE), 1 if loss == "binary_cross_entropy" else max(labels - 1, 1)
    shares = right if right.ndim == 2 else np.eye(labels, dtype=np.float32)[right]
    whole = 1.0 if loss == "binary_cross_entropy" else shares.sum(axis=1, keepdims=True)  # the row's weight
    return np.asarray(shares * (1 - doubt) + (whole - shares) * doubt / others_count, np.float64)


def _rows(
    task: Task, outputs: Sequence[np.ndarray], targets: Sequence[np.ndarray]
) -> tuple[np.ndarray, np.ndarray] | None:
    """Outputs and targets in the form of `row_losses`; None for kinds whose outputs are no logarithms of shares."""
    match kind_of(task).loss:
        case "cross_entropy":
            values, right = np.stack(outputs), np.stack(targets)
        case "binary_cross_entropy":
            values, right = np.stack(outputs), np.stack(targets).astype(np.float32)
        case "word_cross_entropy":
            values = np.concatenate([np.reshape(row, (-1, len(task.labels))) for row in outputs])
            right = np.concatenate([np.asarray(row, np.int64) for row in targets])
            read = (right >= 0) & ~np.isnan(values).any(axis=1)
            values, right = values[read], right[read]
        case "ranking":
            counts = [np.size(row) for row in outputs]
            values = np.concatenate([np.ravel(row) for row in outputs])[:, None]
            chosen = np.concatenate([np.arange(n) == int(t) for n, t in zip(counts, targets, strict=True)])
            return values.astype(np.float64), np.stack([np.repeat(np.arange(len(counts)), counts), chosen], axis=1)
        case _:
            return None
    if not len(values):
        return None
    rows = evenly_spaced(len(values), MOST)
    return values[rows].astype(np.float64), right[rows]
