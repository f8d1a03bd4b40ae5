"""Which texts to label next: those whose answer is unsure, one of each sort (Zhdanov 2019)."""

from __future__ import annotations

import numpy as np

UNSURE = 10  # times as many texts as are chosen: the most unsure, of which one of each cluster is taken
ROUNDS = 8  # of k-means


def first_texts(vectors: np.ndarray, count: int, generator: np.random.Generator) -> list[int]:
    """Texts that are typical of all, where none is labelled: the nearest to each centre of `count` clusters."""
    return _of_clusters(_unit(vectors), np.ones(len(vectors)), count, generator)


def next_texts(
    vectors: np.ndarray, probabilities: np.ndarray, labelled: np.ndarray, count: int, generator: np.random.Generator
) -> list[int]:
    """Up to `count` texts, the most unsure first, of those that are not `labelled`, bool (texts,).

    `vectors` are (texts, width), `probabilities` (texts, labels) those of a head that learned from the labelled ones.
    """
    two = -np.partition(-probabilities, 1, axis=1)[:, :2]
    unsure = 1.0 - (two[:, 0] - two[:, 1])
    open_texts = np.flatnonzero(~labelled)
    kept = open_texts[np.argsort(-unsure[open_texts], kind="stable")][: UNSURE * count]
    chosen = kept[_of_clusters(_unit(vectors[kept]), unsure[kept], count, generator)]
    return [int(index) for index in chosen[np.argsort(-unsure[chosen], kind="stable")]]


def _unit(vectors: np.ndarray) -> np.ndarray:
    apart = np.asarray(vectors, np.float64)
    return np.asarray(apart / np.maximum(np.linalg.norm(apart, axis=1, keepdims=True), 1e-12))


def _of_clusters(vectors: np.ndarray, weights: np.ndarray, count: int, generator: np.random.Generator) -> list[int]:
    """The row nearest to each centre of a weighted k-means that starts as k-means++ does."""
    if len(vectors) <= count:
        return list(range(len(vectors)))
    centres = _far_apart(vectors, weights, count, generator)
    for _ in range(ROUNDS):
        own = _distances(vectors, centres).argmin(axis=1)
        sums = np.zeros_like(centres)
        np.add.at(sums, own, vectors * weights[:, None])
        totals = np.bincount(own, weights=weights, minlength=count)
        centres = np.where(totals[:, None] > 0, sums / np.maximum(totals[:, None], 1e-12), centres)
    distances, chosen = _distances(vectors, centres), list[int]()
    for centre in range(count):
        distances[chosen, centre] = np.inf
        chosen.append(int(distances[:, centre].argmin()))
    return chosen


def _far_apart(vectors: np.ndarray, weights: np.ndarray, count: int, generator: np.random.Generator) -> np.ndarray:
    chosen = [int(generator.choice(len(vectors), p=weights / weights.sum()))] if weights.sum() > 0 else [0]
    nearest = _distances(vectors, vectors[chosen])[:, 0]
    while len(chosen) < count:
        shares = nearest * weights
        shares = shares if shares.sum() > 0 else np.ones(len(vectors))
        chosen.append(int(generator.choice(len(vectors), p=shares / shares.sum())))
        nearest = np.minimum(nearest, _distances(vectors, vectors[chosen[-1:]])[:, 0])
    return np.asarray(vectors[chosen])


def _distances(vectors: np.ndarray, centres: np.ndarray) -> np.ndarray:
    """Squared, (rows, centres)."""
    squares = (vectors**2).sum(axis=1)[:, None] + (centres**2).sum(axis=1)[None]
    return np.asarray(np.maximum(squares - 2 * vectors @ centres.T, 0.0))
