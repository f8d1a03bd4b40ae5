"""A low-dimensional basis of the training texts' hashed words, as further inputs of a linear head.

A ridge penalty leaves the weights of columns in the span of the training rows, so the rows' coordinates in that span
take the place of the columns: with rows X (weighted by the inverse document frequency of Salton and Buckley 1988) and X
X^T = U L U^T, these are X X^T U L^-1/2, and weights w of theirs are X^T U L^-1/2 w of the columns. Exact for as many
texts as `landmarks`; with more, evenly spaced ones span the rest (Williams and Seeger 2001).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from polyhead.text.hashing import NO_WORDS, HashedText

MOST = 1000  # landmarks
MOST_COORDINATES = 2**25  # of all texts together
AT_ONCE = 128  # landmarks whose columns are dense at a time
SHARE = 1.0  # variance of the words, for inputs of variance 1
LEAST = 1e-5  # share of the largest eigenvalue below which a direction is rounding


class HashedBasis:
    """Coordinates of texts in the space that is spanned by the hashed words of some texts (the landmarks)."""

    def __init__(self, texts: Sequence[HashedText], columns: int, *, beside: np.ndarray | None = None) -> None:
        """`texts` are those to train on, one or more; their variance becomes SHARE of that of other inputs `beside`."""
        columns_of_texts = np.concatenate([NO_WORDS.columns, *(text.columns for text in texts)])
        texts_with = np.bincount(columns_of_texts, minlength=columns)  # of each column
        self._idf = (np.log((1 + len(texts)) / (1 + texts_with)) + 1).astype(np.float32)
        count = max(1, min(len(texts), MOST, MOST_COORDINATES // len(texts)))
        spaced = np.linspace(0, len(texts) - 1, count).round().astype(int)
        self._landmarks = [texts[i] for i in spaced]
        products = self._products(self._landmarks)
        values, vectors = np.linalg.eigh(products.astype(np.float64))
        kept = values > LEAST * max(values[-1], 1e-12)
        self._turned = (vectors[:, kept] / np.sqrt(values[kept])).astype(np.float32)  # (landmarks, coordinates)
        self._scale = np.float32(1)
        if beside is not None:
            variances = [
                float(((each - each.mean(axis=0)) ** 2).sum(axis=1).mean())
                for each in (beside, products @ self._turned)
            ]
            self._scale = np.float32((SHARE * variances[0] / max(variances[1], 1e-12)) ** 0.5 or 1.0)

    @property
    def size(self) -> int:
        """The number of coordinates."""
        return int(self._turned.shape[1])

    def coordinates(self, texts: Sequence[HashedText]) -> np.ndarray:
        """float32 (texts, coordinates)"""
        coordinates: np.ndarray = self._products(texts) @ (self._scale * self._turned)
        return coordinates

    def weights(self, solved: np.ndarray) -> np.ndarray:
        """Weights (columns, outputs) of hashed words, from those of coordinates (outputs, coordinates)."""
        shares = self._scale * (self._turned @ solved.T)  # (landmarks, outputs)
        weights = np.zeros((len(self._idf), solved.shape[0]), np.float32)
        for text, share in zip(self._landmarks, shares, strict=True):
            weights[text.columns] += np.outer(text.values, share)  # each column once
        return weights * (self._idf**2)[:, None]

    def _products(self, texts: Sequence[HashedText]) -> np.ndarray:
        """The products of these texts with the landmarks, float32 (texts, landmarks)."""
        out = np.empty((len(texts), len(self._landmarks)), np.float32)
        for start in range(0, len(self._landmarks), AT_ONCE):
            some = self._landmarks[start : start + AT_ONCE]
            dense = np.zeros((len(self._idf), len(some)), np.float32)
            for place, text in enumerate(some):
                dense[text.columns, place] = text.values * self._idf[text.columns] ** 2
            for row, text in enumerate(texts):
                out[row, start : start + len(some)] = text.values @ dense[text.columns]
        return out
