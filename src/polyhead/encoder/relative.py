"""Buckets of distances between tokens: the row of a table of relative positions that a pair of tokens reads."""

from __future__ import annotations

import numpy as np

from polyhead.encoder.shape import Relative


def buckets_of(relative: Relative, distances: np.ndarray) -> np.ndarray:
    """The rows of the table, int64, for distances `position of the query - position of the key` of any shape."""
    distances = np.asarray(distances, np.int64)
    half = relative.buckets // 2
    if relative.kind == "bias":
        return _of_bias(distances, half, relative.distance)
    if not relative.logarithmic:
        return np.asarray(np.clip(distances + half, 0, relative.buckets - 1))
    return np.asarray(np.clip(_logarithmic(distances, half, relative.distance) + half, 0, relative.buckets - 1))


def _of_bias(distances: np.ndarray, half: int, most: int) -> np.ndarray:
    """Half of the buckets for tokens before, half for tokens after; the first half of each is exact (Raffel 2020)."""
    far, exact = np.abs(distances), half // 2
    scale = np.float32(np.log(np.float64(most) / exact))
    grown = np.log(np.maximum(far, 1).astype(np.float32) / np.float32(exact)) / scale * np.float32(half - exact)
    wide = np.minimum(exact + grown.astype(np.int64), half - 1)
    return np.asarray(np.where(distances < 0, half, 0) + np.where(far < exact, far, wide))


def _logarithmic(distances: np.ndarray, half: int, most: int) -> np.ndarray:
    """Distances up to half of `half` as they are, farther ones by their logarithm up to `half` (He et al. 2021)."""
    middle = half // 2
    far = np.where(np.abs(distances) < middle, middle - 1, np.abs(distances))
    ratio = np.log(np.maximum(far, 1).astype(np.float32) / np.float32(middle))
    grown = np.ceil(ratio / np.log(np.float32((most - 1) / middle)) * np.float32(middle - 1)) + middle
    return np.where(far <= middle, distances, (grown * np.sign(distances)).astype(np.int64))
