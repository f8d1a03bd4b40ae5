"""Two samples compared: whether they may be of one distribution, how far apart they are, and which rows are unlike."""

from __future__ import annotations

from math import ceil

import numpy as np

from polyhead.values import Value

BATCH = 250  # labellings that are tried at a time
ENOUGH = 20  # of them as far apart as the samples are: more would not change what is said
NEAREST = 5  # rows of the other sample from which a row's distance is meant


class SampleDistance(Value):
    """How far two samples are apart, and how often chance alone would put them so far."""

    distance: float  # of 0, the same distribution, to 1, which no values in common reach
    p: float  # of a permutation test: at most so often where both are of one distribution


def sample_distance(first: np.ndarray, second: np.ndarray, *, level: float, rng: np.random.Generator) -> SampleDistance:
    """The energy distance of two samples (rows, width), with its permutation test (Székely and Rizzo 2004).

    It is 2 E|X - Y| - E|X - X'| - E|Y - Y'|, of means over pairs of distinct rows, divided by 2 E|X - Y|. Rows are
    exchanged between the samples until chance has come so far often enough, or so seldom that `p` can be below `level`
    (Besag and Clifford 1991).
    """
    both = np.concatenate([first, second]).astype(np.float32)
    distances = pairwise(both, both)
    np.fill_diagonal(distances, 0)
    count, n = len(both), len(first)
    total, sums = float(distances.sum(dtype=np.float64)), distances.sum(axis=1, dtype=np.float64)

    def energies(members: np.ndarray) -> np.ndarray:
        """Of labellings (rows, labellings), 1 for a row of the first sample."""
        within = np.einsum("ij,ij->j", members, distances @ members, dtype=np.float64)
        touching = sums @ members
        across, rest = touching - within, total - 2 * touching + within
        m = count - n
        return np.asarray(2 * across / (n * m) - within / (n * (n - 1)) - rest / (m * (m - 1)))

    own = np.zeros((count, 1), np.float32)
    own[:n] = 1
    measured = float(energies(own)[0])
    between = float((sums[:n].sum() - (own.T @ distances @ own)[0, 0]) / (n * (count - n)))
    most, tried, beyond = ceil(4 / level), 0, 0
    while tried < most and beyond < ENOUGH:
        members = np.zeros((count, BATCH), np.float32)
        np.put_along_axis(members, rng.random((count, BATCH)).argsort(axis=0)[:n], 1, axis=0)
        beyond += int((energies(members) >= measured - 1e-9).sum())
        tried += BATCH
    return SampleDistance(distance=_share(measured, between), p=(beyond + 1) / (tried + 1))


def distance(first: np.ndarray, second: np.ndarray) -> float:
    """The distance alone, as `sample_distance` has it, at a small part of its cost."""
    first, second = np.asarray(first, np.float32), np.asarray(second, np.float32)
    between = float(pairwise(first, second).mean(dtype=np.float64))
    return _share(2 * between - _spread(first) - _spread(second), between)


def _spread(rows: np.ndarray) -> float:
    """The mean distance of two distinct rows."""
    distances, count = pairwise(rows, rows), len(rows)
    np.fill_diagonal(distances, 0)
    return float(distances.sum(dtype=np.float64) / (count * (count - 1)))


def _share(energy: float, between: float) -> float:
    return 0.0 if between <= 0 else min(1.0, max(0.0, energy) / (2 * between))


def pairwise(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Euclidean distances, float32 (first rows, second rows)."""
    squares = (first**2).sum(axis=1)[:, None] + (second**2).sum(axis=1)[None]
    return np.asarray(np.sqrt(np.maximum(squares - 2 * first @ second.T, 0)), np.float32)


def farness(rows: np.ndarray, known: np.ndarray, *, among: bool = False) -> np.ndarray:
    """How far each row is from the nearest `known` ones: the mean distance of the NEAREST; (rows,).

    `among` says that the rows are the known ones, of which each is compared with the others.
    """
    distances = pairwise(rows, known)
    if among:
        np.fill_diagonal(distances, np.inf)
    count = min(NEAREST, len(known) - among)
    return np.asarray(np.partition(distances, count - 1, axis=1)[:, :count].mean(axis=1))


def holm(values: dict[str, float], alpha: float) -> set[str]:
    """The names whose p-values hold at `alpha` for all of them together (Holm 1979)."""
    held = set[str]()
    for place, name in enumerate(sorted(values, key=lambda name: values[name])):
        if values[name] > alpha / (len(values) - place):
            break
        held.add(name)
    return held
