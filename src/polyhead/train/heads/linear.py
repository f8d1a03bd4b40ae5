"""Linear heads over precomputed vectors: a convex loss, with the regularization chosen on held-out rows."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import msgspec
import numpy as np

from polyhead.errors import NotFinite
from polyhead.machine import processors
from polyhead.tasks.task import LossName
from polyhead.text.hashing import HashedText
from polyhead.train.heads.lbfgs import NEAR, Evaluated, minimise_several
from polyhead.train.heads.losses import RowLosses, curvatures, row_losses
from polyhead.train.heads.span import HashedSpan

PENALTIES = tuple(10 ** -(0.5 + step / 2) for step in range(15))
"""Weights of the squared norm, the strongest first, for inputs of mean square 1 a row and a loss that is a mean over
rows: scikit-learn's C is 1 / (rows * penalty)."""

RISES = 2  # successive rises of the held-out loss after which weaker penalties are not tried
NEAR_ENOUGH = 1e-4  # to compare penalties: what a Newton step would still gain, as a share of loss and penalty
ITERATIONS = 150  # for each penalty
MANY, SHARES = 2**22, 4  # numbers of inputs from which rows are divided into so many shares
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

    def beside(self, span: HashedSpan, each: Sequence[Sequence[HashedText]]) -> Inputs:
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


def solutions(
    inputs: Inputs, penalties: Sequence[float] = PENALTIES, *, axes: PrincipalAxes | None = None, near: float = NEAR
) -> Iterator[Solution]:
    """`min mean loss + penalty / 2 |W|^2` for each penalty, by L-BFGS; each starts from the previous solution.

    The loss of a row with several labels is the sum of theirs, so that each label has an independent head. With a prior
    the penalty is on `W` minus the prior. Inputs are scaled to a mean squared length of 1. The bias has no penalty. For
    a pair that is read separately the cosine is one more input; its weight has a small penalty, 1 / rows (that of
    scikit-learn's LogisticRegression), and none for numbers. The first solution then reads the cosine alone, as with an
    infinite penalty. `axes` are those of rows among which the inputs' are, by default the inputs' own; the
    search ends `near` the minimum.
    """
    for (solution,) in fold_solutions([inputs], penalties, axes=axes, near=near):
        yield solution


def fold_solutions(
    folds: Sequence[Inputs],
    penalties: Sequence[float] = PENALTIES,
    *,
    axes: PrincipalAxes | None = None,
    near: float = NEAR,
) -> Iterator[tuple[Solution, ...]]:
    """The `solutions` of several selections of rows of one array, for each penalty those of all.

    They are searched together, one product of matrices for all of them: of few labels it takes half of the time.
    """
    axes = axes or axes_of(folds[0])
    count = axes.directions.shape[1]
    rows = _rows_of(folds)
    values, squares = _along(folds[0], rows, axes)
    problems = [_Problem.of(each, rows, axes, values, squares) for each in folds]
    first = [math.inf] * (folds[0].cosine is not None)
    for penalty in [*first, *penalties]:
        for problem in problems:
            problem.penalties[:count] = penalty
        _solve(problems, values, near)
        yield tuple(_turned_back(each.inputs, axes, each.scale, each.prior, each.weight, penalty) for each in problems)


class _Problem(msgspec.Struct, frozen=True, kw_only=True):
    """The search for the head of some rows, in coordinates that are scaled to a mean squared length of 1."""

    inputs: Inputs
    rows: np.ndarray | slice  # among those that are read for all problems
    scale: float  # the root of the mean squared length
    scales: np.ndarray  # (columns,): factors of the coordinates of all
    squares: np.ndarray  # (columns,): means, scaled
    prior: np.ndarray  # (outputs, columns)
    weight: np.ndarray  # (outputs, columns): the solution so far
    penalties: np.ndarray  # (columns,): where infinite, the weight stays as it is

    @classmethod
    def of(
        cls, inputs: Inputs, read: np.ndarray | None, axes: PrincipalAxes, values: np.ndarray, squares: np.ndarray
    ) -> _Problem:
        """`values` are the coordinates of the rows `read`, and `squares` their squared lengths."""
        rows: np.ndarray | slice = slice(None)
        if inputs.rows is not None and len(inputs.rows) < len(values):
            rows = inputs.rows if read is None else np.searchsorted(read, inputs.rows)
        count, columns, size = axes.directions.shape[1], values.shape[1], len(inputs.members)
        scale = float(np.sqrt(squares[rows].mean())) or 1.0
        scales = np.ones(columns, np.float32)
        scales[:count] /= scale
        prior, penalties = np.zeros((inputs.outputs, columns), np.float32), np.zeros(columns, np.float32)
        if inputs.prior is not None:
            prior[:, :count] = inputs.prior @ axes.directions
        weight = prior.copy()
        weight[:, -1] = _logits(inputs)
        penalties[count:-1] = 0.0 if inputs.loss == "squared_error" else 1 / size
        return cls(
            inputs=inputs,
            rows=rows,
            scale=scale,
            scales=scales,
            squares=scales**2 * _sums_of_squares(values, rows) / np.float32(size),
            prior=prior,
            weight=weight,
            penalties=penalties,
        )

    def curvature(self, outputs: np.ndarray) -> np.ndarray:
        """The second derivative along each weight, (outputs, columns), where these are the outputs of all rows."""
        inputs = self.inputs
        each = curvatures(inputs.loss, outputs[self.rows], inputs.targets, inputs.weights)
        curvature = each[:, None] * self.squares + np.where(np.isinf(self.penalties), 0, self.penalties)
        return np.asarray(np.maximum(curvature, LEAST), np.float32)

    def losses(self, outputs: np.ndarray) -> RowLosses:
        """The losses of its rows, where these are the outputs of all."""
        return row_losses(self.inputs.loss, outputs[self.rows], self.inputs.targets, self.inputs.weights)

    def evaluated(self, weight: np.ndarray, losses: RowLosses, slopes: np.ndarray) -> Evaluated:
        """The mean loss with the penalty, and its gradient; `slopes` are products of losses' gradients and values."""
        apart, is_free = weight - self.prior, np.isfinite(self.penalties)
        pulled = np.where(is_free, self.penalties, 0) * apart
        gradient = slopes * (self.scales * is_free / np.float32(losses.total)) + pulled
        return losses.mean + float((pulled * apart).sum(dtype=np.float64)) / 2, gradient.ravel()


def _rows_of(folds: Sequence[Inputs]) -> np.ndarray | None:
    """The rows that any of them reads, ascending; None: all."""
    rows = [each.rows for each in folds if each.rows is not None]
    if len(rows) < len(folds):
        return None
    read = np.unique(np.concatenate(rows))
    return None if len(read) == len(folds[0].values) else read


def _along(inputs: Inputs, rows: np.ndarray | None, axes: PrincipalAxes) -> tuple[np.ndarray, np.ndarray]:
    """Coordinates along the axes, then the cosine if there is one, and the bias's constant; rows' squared lengths."""
    read = inputs.values if rows is None else inputs.values[rows]
    squares = np.einsum("ri,ri->r", read, read)
    cosine = None if inputs.cosine is None else (read - axes.centre)[:, inputs.cosine :].mean(axis=1)
    along = read @ axes.directions
    del read  # before as large an array is made
    along -= axes.centre @ axes.directions
    size, count = along.shape
    values = np.ones((size, count + (cosine is not None) + 1), np.float32)  # the last input is the constant of the bias
    values[:, :count] = along
    if cosine is not None:
        values[:, count] = cosine
    return values, squares


def _sums_of_squares(values: np.ndarray, rows: np.ndarray | slice) -> np.ndarray:
    """Over these rows, (columns,); few are copied at a time."""
    parts = [values] if isinstance(rows, slice) else (values[some] for some in np.array_split(rows, SHARES))
    return np.asarray(sum(np.einsum("ri,ri->i", part, part) for part in parts))


def _logits(inputs: Inputs) -> np.ndarray:
    """The logit of each label's share of the rows, (outputs,); 0 for options and numbers."""
    targets, rows = inputs.targets, len(inputs.members)
    if inputs.loss not in ("cross_entropy", "binary_cross_entropy"):
        return np.zeros(inputs.outputs, np.float32)
    counts = targets.sum(axis=0) if targets.ndim == 2 else np.bincount(targets, minlength=inputs.outputs)
    logits: np.ndarray = np.log((counts + 0.5) / (rows - counts + 0.5)).astype(np.float32)
    return logits


def solution_of(inputs: Inputs, penalty: float) -> Solution:
    """The head of this penalty; an infinite one is that of the cosine alone."""
    return next(head for head in solutions(inputs, [penalty] * math.isfinite(penalty)) if head.penalty <= penalty)


class Swept(NamedTuple):
    """A penalty's heads, one for each pair of sides, with outputs and losses of the held-out rows, side after side."""

    heads: tuple[Solution, ...]
    outputs: np.ndarray  # (rows, outputs)
    losses: np.ndarray  # (rows,), for options (examples,)


def swept(sides: Sequence[tuple[Inputs, Inputs]], penalties: Sequence[float] = PENALTIES) -> Iterator[Swept]:
    """Penalties from the strongest on, until the mean loss of held-out rows has risen `RISES` times in a row.

    Each of `sides` is a pair: training rows and held-out rows.
    """
    rises, least = 0, math.inf
    axes = axes_of(*sides[0])  # all rows are on the first two sides
    for heads in fold_solutions([train for train, _ in sides], penalties, axes=axes, near=NEAR_ENOUGH):
        outputs = [head.outputs(held) for head, (_, held) in zip(heads, sides, strict=True)]
        losses = np.concatenate([held.losses(each) for each, (_, held) in zip(outputs, sides, strict=True)])
        yield Swept(heads, np.concatenate(outputs), losses)
        rises = 0 if losses.mean() < least else rises + 1
        least = min(least, float(losses.mean()))
        if rises == RISES:
            return


def _solve(problems: Sequence[_Problem], values: np.ndarray, near: float) -> None:
    """Sets the weight of each problem to the one with the least loss and penalty; `values` are those of all rows."""
    starts, shares = [problem.weight for problem in problems], _shares(values)
    with ThreadPoolExecutor(processors(), "polyhead-rows") as pool:  # starts no thread before there is work
        each = pool.map if len(shares) > 1 else map

        def outputs_of(weights: dict[int, np.ndarray]) -> list[np.ndarray]:
            scaled = np.concatenate([weight * problems[number].scales for number, weight in weights.items()]).T
            outputs = np.empty((len(values), scaled.shape[1]), np.float32)
            list(each(lambda share: np.matmul(values[share], scaled, out=outputs[share]), shares))
            return _by_problem(outputs.T, weights)

        def functions(points: dict[int, np.ndarray]) -> list[Evaluated]:
            weights = {number: point.reshape(starts[number].shape) for number, point in points.items()}
            losses = [problems[n].losses(own.T) for n, own in zip(weights, outputs_of(weights), strict=True)]
            gradients = np.zeros((sum(map(len, weights.values())), len(values)), np.float32)
            for number, own, loss in zip(weights, _by_problem(gradients, weights), losses, strict=True):
                own.T[problems[number].rows] = loss.gradients
            parts = list(each(lambda share: gradients[:, share] @ values[share], shares))
            slopes = _by_problem(sum(parts[1:], parts[0]), weights)
            evaluated = zip(weights.items(), losses, slopes, strict=True)
            return [problems[number].evaluated(weight, loss, slope) for (number, weight), loss, slope in evaluated]

        outputs = outputs_of(dict(enumerate(starts)))
        bends = [problem.curvature(own.T).ravel() for problem, own in zip(problems, outputs, strict=True)]
        points = [start.ravel() for start in starts]
        solved = minimise_several(functions, points, curvatures=bends, iterations=ITERATIONS, near=near)
    for start, weight in zip(starts, solved, strict=True):
        start[:] = weight.reshape(start.shape)


def _by_problem(stacked: np.ndarray, weights: Mapping[int, np.ndarray]) -> list[np.ndarray]:
    """The rows of each problem, one for each of its outputs."""
    return np.split(stacked, np.cumsum([len(weight) for weight in weights.values()])[:-1])


def _shares(values: np.ndarray) -> list[slice]:
    """The rows in equal shares that are summed up apart, as many on every machine; all at once if they are few."""
    if values.size < MANY:
        return [slice(None)]
    bounds = np.linspace(0, len(values), SHARES + 1).astype(int).tolist()
    return [slice(a, b) for a, b in itertools.pairwise(bounds)]


def _turned_back(
    inputs: Inputs, axes: PrincipalAxes, scale: float, prior: np.ndarray, weight: np.ndarray, penalty: float
) -> Solution:
    """The head for the inputs as they are; the cosine's weight is distributed over the inputs that it is the mean of.

    Where the rows do not differ, the weight stays the prior's.
    """
    count = axes.directions.shape[1]
    solved = (weight - prior)[:, :count] @ axes.directions.T
    if inputs.prior is not None:
        solved += inputs.prior
    solved /= scale
    if inputs.cosine is not None:
        solved[:, inputs.cosine :] += weight[:, count : count + 1] / (len(axes.centre) - inputs.cosine)
    if not np.isfinite(solved).all():
        raise NotFinite("a weight of a linear head is not finite", do="check the features of the task's texts")
    bias = weight[:, -1] - solved @ axes.centre
    return Solution(weight=solved, bias=bias, penalty=penalty)
