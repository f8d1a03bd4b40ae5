"""The metrics of the packed tasks, without the package; a test holds them to `polyhead.tasks.metrics`."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

Score = Callable[[np.ndarray, np.ndarray], float]


def accuracy(targets: np.ndarray, predictions: np.ndarray) -> float:
    """Share of right rows."""
    return float((targets == predictions).mean())


def macro_f1(targets: np.ndarray, predictions: np.ndarray) -> float:
    """Mean F1 of the labels that occur on either side."""
    right, predicted, actual = _counts(targets, predictions)
    occur = predicted + actual > 0
    return float(np.mean(2 * right[occur] / (predicted + actual)[occur]))


def matthews(targets: np.ndarray, predictions: np.ndarray) -> float:
    """Matthews correlation (Gorodkin 2004); 0 where either side is constant."""
    right, predicted, actual = _counts(targets, predictions)
    rows = actual.sum()
    spread = (rows**2 - (predicted**2).sum()) * (rows**2 - (actual**2).sum())
    return float((right.sum() * rows - (predicted * actual).sum()) / np.sqrt(spread)) if spread > 0 else 0.0


def pearson(targets: np.ndarray, predictions: np.ndarray) -> float:
    """Linear correlation in float64; 0 where either side is constant or not finite."""
    first, second = (side.astype(np.float64) - side.astype(np.float64).mean() for side in (targets, predictions))
    size = np.linalg.norm(first) * np.linalg.norm(second)
    return float(first @ second / size) if np.isfinite(size) and size > 0 else 0.0


SCORES: Mapping[str, Score] = {"accuracy": accuracy, "macro_f1": macro_f1, "matthews": matthews, "pearson": pearson}


def score(metric: str, targets: np.ndarray, outputs: np.ndarray) -> float:
    """The score of outputs (rows, labels), or (rows, 1) of a regression."""
    predictions = outputs[:, 0] if metric == "pearson" else outputs.argmax(axis=1)
    return SCORES[metric](targets, predictions)


def _counts(targets: np.ndarray, predictions: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """How often each label is right, predicted and true, in float64."""
    labels = int(max(targets.max(), predictions.max())) + 1
    right = np.bincount(targets[targets == predictions], minlength=labels)
    return tuple(  # type: ignore[return-value]
        counts.astype(np.float64)
        for counts in (right, np.bincount(predictions, minlength=labels), np.bincount(targets, minlength=labels))
    )
