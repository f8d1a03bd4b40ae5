"""Intervals of metrics by resampling rows, and tests of whether two sets of answers to the same rows differ."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from polyhead.tasks.judging import Recount
from polyhead.values import Value

RESAMPLES, LEVEL = 1000, 0.95
PIECE = 2**22  # counts that are drawn at a time: 32 MB


class Interval(Value):
    """The middle 95 % of a number over resampled rows (percentile bootstrap, Efron 1979)."""

    low: float
    high: float


def intervals(recount: Recount, rows: int, *, seed: int = 0, resamples: int = RESAMPLES) -> dict[str, Interval]:
    """Of each metric of a split of so many rows."""
    return {name: _middle(values) for name, values in _resampled(recount, rows, seed, resamples).items()}


def differences(
    recount: Recount, other: Recount, rows: int, *, seed: int = 0, resamples: int = RESAMPLES
) -> dict[str, Interval]:
    """Of each metric less that of other answers to the same rows, both resampled alike (paired bootstrap)."""

    def less(counts: np.ndarray) -> dict[str, np.ndarray]:
        ours, theirs = recount(counts), other(counts)
        return {name: values - theirs[name] for name, values in ours.items() if name in theirs}

    return intervals(less, rows, seed=seed, resamples=resamples)


def mcnemar(one: int, other: int) -> float:
    """The two-sided exact probability of McNemar's test (1947): of `one` + `other` fair coins, so few on a side.

    `one` counts rows that only one side has right, `other` those that only the other has. 1 where both are 0.
    """
    flips, fewer = one + other, min(one, other)
    if not flips:
        return 1.0
    logs = [_log_choices(flips, heads) - flips * math.log(2) for heads in range(fewer + 1)]
    return min(1.0, 2.0 * math.fsum(map(math.exp, logs)))


def _log_choices(of: int, chosen: int) -> float:
    return math.lgamma(of + 1) - math.lgamma(chosen + 1) - math.lgamma(of - chosen + 1)


def _resampled(recount: Recount, rows: int, seed: int, resamples: int) -> dict[str, np.ndarray]:
    parts = [recount(counts) for counts in _counts(rows, seed, resamples)]
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def _counts(rows: int, seed: int, resamples: int) -> Iterator[np.ndarray]:
    """How often each row stands in each resample, float64 (some, rows), piece by piece."""
    rng, size = np.random.default_rng(seed), max(1, PIECE // max(rows, 1))
    for start in range(0, resamples, size):
        several = range(start, min(start + size, resamples))
        yield np.stack([np.bincount(rng.integers(rows, size=rows), minlength=rows) for _ in several]).astype(np.float64)


def _middle(values: np.ndarray) -> Interval:
    low, high = np.quantile(values, [(1 - LEVEL) / 2, (1 + LEVEL) / 2]).tolist()
    return Interval(low=low, high=high)
