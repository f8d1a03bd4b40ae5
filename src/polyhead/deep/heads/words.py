"""Hashed words as inputs of a linear head, few enough to be solved together with the dense ones.

A ridge penalty leaves the weights of columns in the span of the training rows, so the rows' coordinates in that span
take the place of the columns: with rows X (weighted by the inverse document frequency of Salton and Buckley 1988) and X
X^T = U L U^T, these are X X^T U L^-1/2, and weights w of theirs are X^T U L^-1/2 w of the columns. Exact for as many
texts as `landmarks`; with more, evenly spaced ones span the rest (Williams and Seeger 2001).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from polyhead.deep.nn.ends import WordRows
from polyhead.text.hashing import HashedText

MOST = 1000  # landmarks
MOST_COORDINATES = 2**25  # of all texts together
AT_ONCE = 128  # landmarks whose columns are dense at a time
SHARE = 1.0  # variance of the words, for inputs of variance 1
LEAST = 1e-5  # share of the largest eigenvalue below which a direction is rounding


class HashedSpan:
    """Coordinates in the space that the hashed words of some texts span."""

    def __init__(self, texts: Sequence[HashedText], columns: int, *, beside: Tensor | None = None) -> None:
        """`texts` are those to train on, one or more; their variance becomes SHARE of that of other inputs `beside`."""
        rows = WordRows.of(texts)
        texts_with = torch.bincount(rows.columns, minlength=columns)  # of each column
        self._idf = torch.log((1 + len(texts)) / (1 + texts_with)) + 1
        count = max(1, min(len(texts), MOST, MOST_COORDINATES // len(texts)))
        spaced = np.linspace(0, len(texts) - 1, count).round().astype(int)
        self._landmarks = [texts[i] for i in spaced]
        products = self._products(self._landmarks)
        values, vectors = torch.linalg.eigh(products.double())
        kept = values > LEAST * values[-1].clamp(min=1e-12)
        self._turned = (vectors[:, kept] / values[kept].sqrt()).float()  # (landmarks, coordinates)
        self._scale = 1.0
        if beside is not None:
            own = products @ self._turned
            variances = [float((each - each.mean(dim=0)).square().sum(dim=1).mean()) for each in (beside, own)]
            self._scale = (SHARE * variances[0] / max(variances[1], 1e-12)) ** 0.5 or 1.0

    def coordinates(self, texts: Sequence[HashedText]) -> Tensor:
        """float32 (texts, coordinates)"""
        coordinates: Tensor = self._scale * self._products(texts) @ self._turned
        return coordinates

    def weights(self, solved: Tensor) -> Tensor:
        """Weights (columns, outputs) of hashed words, from those of coordinates (outputs, coordinates)."""
        shares = self._scale * self._turned @ solved.T  # (landmarks, outputs)
        weights = torch.zeros(len(self._idf), solved.shape[0])
        for text, share in zip(self._landmarks, shares, strict=True):
            columns, values = map(torch.from_numpy, text)
            weights.index_add_(0, columns, torch.outer(values, share))
        return weights * self._idf.square()[:, None]

    def _products(self, texts: Sequence[HashedText]) -> Tensor:
        """The products of these texts with the landmarks, float32 (texts, landmarks)."""
        rows, products = WordRows.of(texts), []
        for start in range(0, len(self._landmarks), AT_ONCE):
            some = self._landmarks[start : start + AT_ONCE]
            dense = torch.zeros(len(self._idf), len(some))
            for place, text in enumerate(some):
                dense[torch.from_numpy(text.columns).long(), place] = torch.from_numpy(text.values)
            products.append(rows.times(dense * self._idf.square()[:, None]))
        return torch.cat(products, dim=1)
