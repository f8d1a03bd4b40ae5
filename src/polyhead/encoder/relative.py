"""Positions: how fast rotary pairs turn, and the row of a table that a distance between two tokens reads."""

from __future__ import annotations

import numpy as np

from polyhead.encoder.shape import Relative, Rotary


def frequencies(rotary: Rotary, half: int) -> np.ndarray:
    """Radians by which a step in position turns each pair of dimensions, float32 (half,)."""
    powers = np.arange(half, dtype=np.float32) / np.float32(half)
    slow = 1.0 / (rotary.factor * np.float32(rotary.base) ** powers)
    if rotary.ramp is not None:
        first, last = rotary.ramp
        share = np.clip((np.arange(half, dtype=np.float32) - first) / (last - first), 0, 1)
        slow = slow * share + slow * rotary.factor * (1 - share)
    return np.asarray(slow, np.float32)


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
