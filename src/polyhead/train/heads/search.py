"""Search for linear heads: a convex loss over precomputed vectors, with the penalty chosen on held-out rows."""

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
from polyhead.train.heads.lbfgs import NEAR, Evaluated, minimise_several
from polyhead.train.heads.linear import LEAST, Inputs, PrincipalAxes, Solution, axes_of
from polyhead.train.heads.losses import RowLosses, curvatures, row_losses

PENALTIES = tuple(10 ** -(0.5 + step / 2) for step in range(15))
"""Weights of the squared norm, the strongest first, for inputs of mean square 1 a row and a loss that is a mean over
rows: scikit-learn's C is 1 / (rows * penalty)."""

RISES = 2  # successive rises of the held-out loss after which weaker penalties are not tried
NEAR_ENOUGH = 1e-4  # to compare penalties: what a Newton step would still gain, as a share of loss and penalty
ITERATIONS = 150  # for each penalty
MANY, SHARES = 2**24, 4  # products for the outputs of all rows from which rows are divided into so many shares


def solutions(
    inputs: Inputs, penalties: Sequence[float] = PENALTIES, *, axes: PrincipalAxes | None = None, near: float = NEAR
) -> Iterator[Solution]:
    """`min mean loss + penalty / 2 |W|^2` for each penalty, by L-BFGS; each starts from the previous solution.

    The loss of a row with several labels is the sum of theirs, so that each label has an independent head. With a prior
    the penalty is on `W` minus the prior. Inputs are scaled to a mean squared length of 1. The bias has no penalty. For
    a pair that is read separately the cosine is one more input; its weight has a small penalty, 1 / rows (that of
    scikit-learn's LogisticRegression), and none for numbers. The first solution then reads the cosine alone, and the
    prior, as with an infinite penalty. `axes` are those of rows among which the inputs' are, by default the inputs'
    own; the search ends `near` the minimum.
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
    assert all(fold.values is folds[0].values for fold in folds), "folds are rows of one array"
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
    rows: np.ndarray | slice  # among those that are read for all problems, ascending
    targets: np.ndarray
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
            targets=inputs.targets,
            scale=scale,
            scales=scales,
            squares=scales**2 * _sums_of_squares(values, rows) / np.float32(size),
            prior=prior,
            weight=weight,
            penalties=penalties,
        )

    def part(self, share: slice) -> _Problem:
        """The same for its rows in a share of all, counted from the start of the share."""
        if isinstance(self.rows, slice):
            return msgspec.structs.replace(self, targets=self.targets[share])
        start, stop = np.searchsorted(self.rows, [share.start, share.stop]).tolist()
        rows = self.rows[start:stop] - share.start
        return msgspec.structs.replace(self, rows=rows, targets=self.targets[start:stop])

    def curvature(self, outputs: np.ndarray) -> np.ndarray:
        """The second derivatives of the loss by each output, added up over its rows, where `outputs` are of all."""
        if not len(self.targets):
            return np.zeros(self.inputs.outputs, np.float32)
        means = curvatures(self.inputs.loss, outputs[self.rows], self.targets, self.inputs.weights)
        return means * len(self.targets)

    def losses(self, outputs: np.ndarray) -> RowLosses:
        """The losses of its rows, where `outputs` are of all."""
        return row_losses(self.inputs.loss, outputs[self.rows], self.targets, self.inputs.weights)

    def evaluated(self, weight: np.ndarray, losses: Sequence[RowLosses], slopes: np.ndarray) -> Evaluated:
        """The mean loss with the penalty, and its gradient; `slopes` are products of losses' gradients and values."""
        apart, is_free = weight - self.prior, np.isfinite(self.penalties)
        total = sum(part.total for part in losses)
        loss = sum(float(part.losses.sum(dtype=np.float64)) for part in losses) / total
        pulled = np.where(is_free, self.penalties, 0) * apart
        gradient = slopes * (self.scales * is_free / np.float32(total)) + pulled
        return loss + float((pulled * apart).sum(dtype=np.float64)) / 2, gradient.ravel()


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

    Each of `sides` is a pair: training rows, of one array on all sides, and held-out rows.
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


class _Share(NamedTuple):
    """A share of the rows, and the problems with their rows in it."""

    values: np.ndarray  # (rows, columns)
    problems: tuple[_Problem, ...]

    def outputs(self, weights: Mapping[int, np.ndarray]) -> list[np.ndarray]:
        """The outputs of the share's rows with the weights of each problem, float32 (rows, outputs)."""
        scaled = np.concatenate([weight * self.problems[number].scales for number, weight in weights.items()])
        return np.split(self.values @ scaled.T, _stops(weights), axis=1)

    def curvatures(self, weights: Mapping[int, np.ndarray]) -> list[np.ndarray]:
        """`_Problem.curvature` of each problem, (outputs,)."""
        return [self.problems[n].curvature(outputs) for n, outputs in zip(weights, self.outputs(weights), strict=True)]

    def summed(self, weights: Mapping[int, np.ndarray]) -> tuple[list[RowLosses], np.ndarray]:
        """Each problem's losses, and the products of their gradients and the values, one below the other."""
        losses = [self.problems[n].losses(outputs) for n, outputs in zip(weights, self.outputs(weights), strict=True)]
        gradients = []
        for number, loss in zip(weights, losses, strict=True):
            gradient, rows = loss.gradients, self.problems[number].rows
            if not isinstance(rows, slice):
                gradient = np.zeros((len(self.values), gradient.shape[1]), np.float32)
                gradient[rows] = loss.gradients
            gradients.append(gradient)
        stacked = gradients[0] if len(gradients) == 1 else np.concatenate(gradients, axis=1)
        return losses, stacked.T @ self.values


def _solve(problems: Sequence[_Problem], values: np.ndarray, near: float) -> None:
    """Sets the weight of each problem to the one with the least loss and penalty; `values` are those of all rows."""
    starts, shares = {number: problem.weight for number, problem in enumerate(problems)}, _shares(problems, values)
    with ThreadPoolExecutor(processors(), "polyhead-rows") as pool:  # starts no thread before there is work
        each = pool.map if len(shares) > 1 else map

        def functions(points: dict[int, np.ndarray]) -> list[Evaluated]:
            weights = {number: point.reshape(starts[number].shape) for number, point in points.items()}
            losses, products = zip(*each(lambda share: share.summed(weights), shares), strict=True)
            slopes = np.split(sum(products[1:], products[0]), _stops(weights))
            parts = zip(weights.items(), zip(*losses, strict=True), slopes, strict=True)
            return [problems[number].evaluated(weight, several, slope) for (number, weight), several, slope in parts]

        curvature = []
        by_share = each(lambda share: share.curvatures(starts), shares)
        for problem, sums in zip(problems, zip(*by_share, strict=True), strict=True):
            pulls = np.where(np.isinf(problem.penalties), 0, problem.penalties)
            bends = (sum(sums) / len(problem.targets))[:, None] * problem.squares + pulls
            curvature.append(np.maximum(bends, LEAST).astype(np.float32).ravel())
        points = [start.ravel() for start in starts.values()]
        solved = minimise_several(functions, points, curvatures=curvature, iterations=ITERATIONS, near=near)
    for start, weight in zip(starts.values(), solved, strict=True):
        start[:] = weight.reshape(start.shape)


def _stops(weights: Mapping[int, np.ndarray]) -> np.ndarray:
    """Where the outputs of each problem end among those of all, but for the last."""
    return np.cumsum([len(weight) for weight in weights.values()])[:-1]


def _shares(problems: Sequence[_Problem], values: np.ndarray) -> list[_Share]:
    """The rows in equal shares that are summed up apart, as many on every machine; all at once if they are few."""
    outputs = sum(problem.inputs.outputs for problem in problems)
    if values.size * outputs < MANY or problems[0].inputs.loss == "ranking":
        return [_Share(values, tuple(problems))]
    bounds = np.linspace(0, len(values), SHARES + 1).astype(int).tolist()
    slices = [slice(start, stop) for start, stop in itertools.pairwise(bounds)]
    return [_Share(values[share], tuple(problem.part(share) for problem in problems)) for share in slices]


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
