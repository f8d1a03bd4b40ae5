"""Linear heads over precomputed vectors, and what they are learned from."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import NamedTuple

import msgspec
import numpy as np

from polyhead.tasks.task import LossName
from polyhead.text.hashing import HashedText
from polyhead.train.heads.hashed_basis import HashedBasis
from polyhead.train.heads.losses import row_losses

AXES_ROWS = 4  # rows for each input that say enough of the principal axes
LEAST = 1e-9  # squared length, as a share of the longest axis', that is rounding


class Inputs(msgspec.Struct, frozen=True, kw_only=True):
    """Inputs and targets of a linear head: one row for each text, labelled word or option.

    `cosine` is the first of the last inputs, whose mean is the cosine of a pair read separately, or None.
    """

    values: np.ndarray  # (rows, inputs), or with `rows` all of those among which these are
    targets: np.ndarray  # in the form of the loss
    members: np.ndarray  # (rows,) int64: the example of each row
    loss: LossName
    outputs: int
    places: np.ndarray | None = None  # (rows,) int64: which of its words it is, else 0
    cosine: int | None = None
    weights: np.ndarray | None = None  # per label, in the form of the loss
    # (outputs, inputs): the weights that penalties pull towards, for inputs with mean square 1 per row
    prior: np.ndarray | None = None
    rows: np.ndarray | None = None  # (rows,) int64: which rows of `values` these are; None: all, in order

    def read(self) -> np.ndarray:
        """The values of these rows, (rows, inputs); each time a copy if they are some of `values`."""
        return self.values if self.rows is None else self.values[self.rows]

    @property
    def scale(self) -> float:
        """The root of the mean squared length of a row."""
        return _scale(self.read())

    @property
    def examples(self) -> np.ndarray:
        """A number for each loss: that of its example and word, or of all options that of their question."""
        if self.loss == "ranking":
            return np.unique(self.members)
        return self.members if self.places is None else self.members << 32 | self.places

    def losses(self, outputs: np.ndarray) -> np.ndarray:
        """The loss of each row, float64 (rows,); for options that of each example, (examples,)."""
        return row_losses(self.loss, outputs, self.targets, self.weights).losses.astype(np.float64)

    def of(self, members: Sequence[int]) -> Inputs:
        """The rows of these examples, over the same values: none is copied."""
        kept = np.isin(self.members, members)
        rows = np.flatnonzero(kept) if self.rows is None else self.rows[kept]
        targets = self.targets[kept]
        if self.loss == "ranking":
            targets = numbered(targets)
        places = None if self.places is None else self.places[kept]
        return msgspec.structs.replace(self, rows=rows, targets=targets, members=self.members[kept], places=places)

    def drawn(self, prior: np.ndarray | None, strength: float) -> Inputs:
        """The same with weights that penalties pull towards, 0 for words; unchanged without a prior or strength."""
        if prior is None or not strength:
            return self
        before = self.values.shape[1] - prior.shape[1]
        return msgspec.structs.replace(self, prior=strength * np.pad(prior, ((0, 0), (before, 0))))

    def beside(self, span: HashedBasis, each: Sequence[Sequence[HashedText]]) -> Inputs:
        """The same with each row's hashed text, option or word as the first inputs; `each` are the examples'."""
        assert self.places is not None
        if self.loss == "ranking":
            texts = [
                text
                for member in self.members[np.diff(self.members, prepend=-1) != 0].tolist()
                for text in each[member]
            ]
        else:
            rows = zip(self.members.tolist(), self.places.tolist(), strict=True)
            texts = [each[member][place] for member, place in rows]
        words = span.coordinates(texts)
        cosine = None if self.cosine is None else self.cosine + words.shape[1]
        values = np.concatenate([words, self.read()], axis=1)
        return msgspec.structs.replace(self, values=values, rows=None, cosine=cosine)

    def sides(self, folds: Sequence[Sequence[int]]) -> list[tuple[Inputs, Inputs]]:
        """For each fold the training and held-out examples, numbered without gaps."""
        everything = set(range(int(self.members.max()) + 1))
        return [(self.of(sorted(everything - set(held))), self.of(held)) for held in folds]


def _scale(values: np.ndarray) -> float:
    return float(np.sqrt(np.einsum("ri,ri->r", values, values).mean())) or 1.0


def numbered(targets: np.ndarray) -> np.ndarray:
    """Targets of `ranking` with their examples renumbered from 0 without gaps."""
    return np.stack([np.unique(targets[:, 0], return_inverse=True)[1], targets[:, 1]], axis=1)


class Solution(msgspec.Struct, frozen=True, kw_only=True):
    """A linear head: outputs are `values @ weight.T + bias`."""

    weight: np.ndarray  # (outputs, inputs)
    bias: np.ndarray  # (outputs,)
    penalty: float

    def outputs(self, inputs: Inputs) -> np.ndarray:
        """(rows, outputs)"""
        outputs: np.ndarray = inputs.read() @ self.weight.T + self.bias
        return outputs

    def losses(self, inputs: Inputs) -> np.ndarray:
        """Its `Inputs.losses`."""
        return inputs.losses(self.outputs(inputs))


class PrincipalAxes(NamedTuple):
    """Principal axes of inputs: coordinates along them are uncorrelated, so that L-BFGS takes a fifth of the steps."""

    centre: np.ndarray  # (inputs,)
    directions: np.ndarray  # (inputs, axes), orthonormal; rows differ in these alone


def axes_of(*sides: Inputs) -> PrincipalAxes:
    """The axes of the rows of all sides; of many rows, evenly spaced ones say enough."""
    sizes, count = [len(side.members) for side in sides], sides[0].values.shape[1]
    if (rows := sum(sizes)) > AXES_ROWS * count:
        spaced = np.linspace(0, rows - 1, AXES_ROWS * count).astype(int)
        bounds = itertools.pairwise(np.cumsum([0, *sizes]).tolist())
        each = [spaced[(spaced >= start) & (spaced < stop)] - start for start, stop in bounds]
        read = [
            side.values[some if side.rows is None else side.rows[some]] for side, some in zip(sides, each, strict=True)
        ]
    else:
        read = [side.read() for side in sides]
    values = read[0] if len(read) == 1 else np.concatenate(read)
    centre = values.mean(axis=0)
    apart = values - centre
    if rows >= count:
        return PrincipalAxes(centre, np.linalg.eigh(apart.T @ apart)[1])
    apart = apart.astype(np.float64)
    lengths, vectors = np.linalg.eigh(apart @ apart.T)
    kept = lengths > LEAST * max(lengths[-1], LEAST)
    return PrincipalAxes(centre, (apart.T @ (vectors[:, kept] / np.sqrt(lengths[kept]))).astype(np.float32))
