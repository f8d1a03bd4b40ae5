"""A variant of `token1`: means of tokens from all training texts, without what word vectors predict.

Two bytes name a token, and what is left over about its mean is kept by `pca1`, in as many bytes as `pca1` alone has.
"""

from __future__ import annotations

import numpy as np

from polyhead.plan import Codec
from polyhead.plan.coding import calibrate, through

TOKEN_BYTES = 2  # of a token's number, of up to 65,536
PRIOR = 1.0  # a token's mean is drawn to that of all as if it had stood once more, with that vector
LEFT = 40_000  # vectors from which the codec of what is left is fixed
AT_ONCE = 50_000  # vectors at a time


class TokenMeans:
    """Means of tokens, and the codec of what is left, from training vectors (tokens, width) and their numbers."""

    def __init__(self, values: np.ndarray, ids: np.ndarray, vocabulary: int) -> None:
        self._mean = values.mean(axis=0)
        count = np.bincount(ids, minlength=vocabulary).astype(np.float32)
        total = np.zeros((vocabulary, values.shape[1]), np.float32)
        np.add.at(total, ids, values - self._mean)
        self._offsets = total / (count + PRIOR)[:, None]
        # What is left of a vector that took no part in its token's mean, as it will be of new texts.
        centred = values - self._mean
        left = centred - (total[ids] - centred) / (count[ids] - 1 + PRIOR)[:, None]
        chosen = np.random.default_rng(0).permutation(len(left))[:LEFT]
        self.codec: Codec = calibrate(left[chosen], name="pca1")

    def through(self, values: np.ndarray, ids: np.ndarray) -> np.ndarray:
        """Vectors (tokens, width) as a reader would see them, float32."""
        decoded = np.empty_like(values)
        for start in range(0, len(values), AT_ONCE):
            here = slice(start, start + AT_ONCE)
            base = self._mean + self._offsets[ids[here]]
            decoded[here] = base + through(values[here] - base, self.codec)
        return decoded
