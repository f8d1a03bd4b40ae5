"""Linear heads over precomputed vectors: a convex loss, with the regularization chosen on held-out rows."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import msgspec
import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from polyhead.deep.heads.lbfgs import NEAR, minimise
from polyhead.deep.heads.words import HashedSpan
from polyhead.deep.loop.feed import LengthSorted, TrainingBatch
from polyhead.deep.loop.loss import LOSSES, UNLABELLED, curvatures, ranking_each
from polyhead.deep.sharing.part import PooledPart
from polyhead.errors import NotFinite
from polyhead.tasks.task import LossName
from polyhead.text.hashing import HashedText

PENALTIES = tuple(10 ** -(0.5 + step / 2) for step in range(15))
"""Weights of the squared norm, the strongest first, for inputs of mean square 1 a row and a loss that is a mean over
rows: scikit-learn's C is 1 / (rows * penalty)."""

RISES = 2  # successive rises of the held-out loss after which weaker penalties are not tried
NEAR_ENOUGH = 1e-5  # to compare penalties: what a Newton step would still gain, as a share of loss and penalty
ITERATIONS = 150  # for each penalty
AT_ONCE = 256  # examples whose inputs are computed at a time
MOST_NUMBERS = 2**28  # of the inputs: one gibibyte of float32
AXES_ROWS = 4  # rows for each input that say enough of the principal axes
LEAST = 1e-9  # squared length, as a share of the longest axis', that is rounding


class Inputs(msgspec.Struct, frozen=True, kw_only=True):
    """Inputs and targets of a linear head: one row for each text, labelled word or option.

    `cosine` is the first of the last inputs, whose mean is the cosine of a pair read separately, or None.
    """

    values: Tensor  # (rows, inputs)
    targets: Tensor  # in the form of the loss
    members: Tensor  # (rows,) int64: the example of each row
    loss: LossName
    outputs: int
    places: Tensor | None = None  # (rows,) int64: which of its words it is, else 0
    cosine: int | None = None
    weights: Tensor | None = None  # per label, in the form of the loss
    # (outputs, inputs): the weights that penalties pull towards, for inputs with mean square 1 per row
    prior: Tensor | None = None

    @property
    def scale(self) -> float:
        """The root of the mean squared length of a row."""
        return float(self.values.square().sum(dim=1).mean().sqrt()) or 1.0

    def of(self, members: Sequence[int]) -> Inputs:
        """The rows of these examples."""
        kept = torch.isin(self.members, torch.tensor(members, dtype=torch.int64))
        targets = self.targets[kept]
        if self.loss == "ranking":
            targets = _numbered(targets)
        places = None if self.places is None else self.places[kept]
        return msgspec.structs.replace(
            self, values=self.values[kept], targets=targets, members=self.members[kept], places=places
        )

    def drawn(self, prior: Tensor | None, strength: float) -> Inputs:
        """The same with weights that penalties pull towards, 0 for words; unchanged without a prior or strength."""
        if prior is None or not strength:
            return self
        before = self.values.shape[1] - prior.shape[1]
        return msgspec.structs.replace(self, prior=strength * functional.pad(prior, (before, 0)))

    def beside(self, span: HashedSpan, each: Sequence[Sequence[HashedText]]) -> Inputs:
        """The same with each row's hashed text, option or word as the first inputs; `each` are the examples'."""
        assert self.places is not None
        if self.loss == "ranking":
            texts = [text for member in torch.unique_consecutive(self.members).tolist() for text in each[member]]
        else:
            rows = zip(self.members.tolist(), self.places.tolist(), strict=True)
            texts = [each[member][place] for member, place in rows]
        words = span.coordinates(texts)
        cosine = None if self.cosine is None else self.cosine + words.shape[1]
        return msgspec.structs.replace(self, values=torch.cat([words, self.values], dim=1), cosine=cosine)

    def sides(self, folds: Sequence[Sequence[int]]) -> list[tuple[Inputs, Inputs]]:
        """For each fold the training and held-out examples, numbered without gaps."""
        everything = set(range(int(self.members.max()) + 1))
        return [(self.of(sorted(everything - set(held))), self.of(held)) for held in folds]


def _numbered(targets: Tensor) -> Tensor:
    """Targets of `ranking` with their examples renumbered from 0 without gaps."""
    return torch.stack([torch.unique(targets[:, 0], return_inverse=True)[1], targets[:, 1]], dim=1)


class Solution(msgspec.Struct, frozen=True, kw_only=True):
    """A linear head: outputs are `values @ weight.T + bias`."""

    weight: Tensor  # (outputs, inputs)
    bias: Tensor  # (outputs,)
    penalty: float

    def outputs(self, inputs: Inputs) -> Tensor:
        """(rows, outputs)"""
        return inputs.values @ self.weight.T + self.bias

    def losses(self, inputs: Inputs) -> np.ndarray:
        """The loss of each row, float64 (rows,); for options that of each example, (examples,)."""
        outputs, targets, weights = self.outputs(inputs), inputs.targets, inputs.weights
        match inputs.loss:
            case "ranking":
                losses = ranking_each(outputs, targets)
            case "squared_error":
                losses = (outputs[:, 0] - targets).square()
            case "binary_cross_entropy":
                each = functional.binary_cross_entropy_with_logits(
                    outputs, targets, reduction="none", pos_weight=weights
                )
                losses = each.sum(dim=1)
            case _:
                losses = functional.cross_entropy(outputs, targets, reduction="none", weight=weights)
        return losses.double().numpy()


@torch.no_grad()
def set_head(module: PooledPart, solution: Solution, span: HashedSpan | None) -> None:
    """Copies the solution into the part's head; `span` is of the hashed words that it reads, if any."""
    dense = module.head.output.weight.shape[1]
    module.head.output.weight.copy_(solution.weight[:, -dense:])
    module.head.output.bias.copy_(solution.bias)
    if module.words is not None and span is not None:
        module.words.weight.copy_(span.weights(solution.weight[:, :-dense]))
    module.eval()


@torch.no_grad()
def inputs_of(module: PooledPart, examples: LengthSorted, *, loss: LossName, outputs: int) -> Inputs:
    """The head's inputs for the examples. Words without a token are omitted.

    If these exceed `MOST_NUMBERS`, only as many examples as fit are read, evenly spaced.
    """
    module.eval()
    sample = _read(module, examples.batch(np.arange(min(AT_ONCE, examples.count))))
    most = int(MOST_NUMBERS * min(AT_ONCE, examples.count) / max(sample.numel(), 1))
    spaced = np.linspace(0, examples.count - 1, max(1, min(examples.count, most))).round().astype(int)
    pieces: list[tuple[Tensor, Tensor, Tensor, Tensor]] = []
    for members in np.array_split(spaced, -(-len(spaced) // AT_ONCE)):
        batch = examples.batch(members)
        pieces.append(_rows(_read(module, batch), batch))
    values, targets, examples_of_rows, places = (torch.cat(parts) for parts in zip(*pieces, strict=True))
    if loss == "ranking":
        targets = _numbered(targets)
    return Inputs(
        values=values,
        targets=targets,
        members=examples_of_rows,
        places=places,
        loss="cross_entropy" if loss == "word_cross_entropy" else loss,
        outputs=outputs,
        cosine=values.shape[1] * 3 // 4 if module.separate else None,
    )


def _read(module: PooledPart, batch: TrainingBatch) -> Tensor:
    arguments: Any = batch.arguments
    return module.inputs(*arguments)


def _rows(read: Tensor, batch: TrainingBatch) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Inputs, targets, examples and places in these: one row for each text, each labelled word, or each option."""
    targets, members = batch.targets, torch.from_numpy(np.asarray(batch.members, np.int64))
    if read.ndim == 3:
        labelled = targets != UNLABELLED
        rows, places = labelled.nonzero(as_tuple=True)
        return read[labelled], targets[labelled], members[rows], places
    if targets.ndim == 2 and not targets.is_floating_point():
        members = members[targets[:, 0]]
        return read, torch.stack([members, targets[:, 1]], dim=1), members, torch.zeros_like(members)
    return read, targets, members, torch.zeros_like(members)


class PrincipalAxes(NamedTuple):
    """Principal axes of inputs: coordinates along them are uncorrelated, so that L-BFGS takes a fifth of the steps."""

    centre: Tensor  # (inputs,)
    directions: Tensor  # (inputs, axes), orthonormal; rows differ in these alone


def axes_of(values: Tensor) -> PrincipalAxes:
    """The axes of inputs (rows, inputs); of many rows, evenly spaced ones say enough."""
    rows, count = values.shape
    if rows > AXES_ROWS * count:
        values = values[torch.linspace(0, rows - 1, AXES_ROWS * count).long()]
    centre = values.mean(dim=0)
    apart = values - centre
    if rows >= count:
        return PrincipalAxes(centre, torch.linalg.eigh(apart.T @ apart)[1])
    apart = apart.double()
    lengths, vectors = torch.linalg.eigh(apart @ apart.T)
    kept = lengths > LEAST * lengths[-1].clamp(min=LEAST)
    return PrincipalAxes(centre, (apart.T @ (vectors[:, kept] / lengths[kept].sqrt())).float())


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
    axes = axes or axes_of(inputs.values)
    rows, count, has_cosine = len(inputs.values), axes.directions.shape[1], inputs.cosine is not None
    values = torch.ones(rows, count + has_cosine + 1)  # the last input is the constant of the bias
    torch.mm(inputs.values, axes.directions / inputs.scale, out=values[:, :count])
    values[:, :count] -= axes.centre @ axes.directions / inputs.scale
    if inputs.cosine is not None:
        values[:, count] = (inputs.values - axes.centre)[:, inputs.cosine :].mean(dim=1)
    prior = torch.zeros(inputs.outputs, values.shape[1])
    if inputs.prior is not None:
        prior[:, :count] = inputs.prior @ axes.directions
    weight, own = prior.clone(), torch.zeros(values.shape[1])
    weight[:, -1] = _logits(inputs)
    own[count:-1] = 0.0 if inputs.loss == "squared_error" else 1 / rows
    if has_cosine:
        cosine = (values[:, count:], own[count:], prior[:, count:], weight[:, count:])
        weight[:, count:] = _solved(inputs, *cosine, near)
        yield _turned_back(inputs, axes, prior, weight, math.inf)
    for penalty in penalties:
        own[:count] = penalty
        weight = _solved(inputs, values, own, prior, weight, near)
        yield _turned_back(inputs, axes, prior, weight, penalty)


def _logits(inputs: Inputs) -> Tensor:
    """The logit of each label's share of the rows, (outputs,); 0 for options and numbers."""
    targets, rows = inputs.targets, len(inputs.values)
    if inputs.loss not in ("cross_entropy", "binary_cross_entropy"):
        return torch.zeros(inputs.outputs)
    counts = targets.sum(dim=0) if targets.ndim == 2 else torch.bincount(targets, minlength=inputs.outputs)
    return torch.log((counts + 0.5) / (rows - counts + 0.5))


def solution_of(inputs: Inputs, penalty: float, penalties: Sequence[float] = PENALTIES) -> Solution:
    """The head of this penalty, which starts from that of the next stronger one."""
    stronger = [each for each in penalties if each >= penalty]
    return next(each for each in solutions(inputs, stronger[-2:]) if each.penalty <= penalty)


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
    axes = axes_of(torch.cat([side.values for side in sides[0]]))  # all rows are on the first two sides
    for heads in zip(*(solutions(train, penalties, axes=axes, near=NEAR_ENOUGH) for train, _ in sides), strict=True):
        pairs = list(zip(heads, (held for _, held in sides), strict=True))
        losses = np.concatenate([head.losses(held) for head, held in pairs])
        yield Swept(heads, np.concatenate([head.outputs(held).numpy() for head, held in pairs]), losses)
        rises = 0 if losses.mean() < least else rises + 1
        least = min(least, float(losses.mean()))
        if rises == RISES:
            return


def _solved(inputs: Inputs, values: Tensor, penalties: Tensor, prior: Tensor, start: Tensor, near: float) -> Tensor:
    """The weights (outputs, inputs) with the least loss plus penalties, (inputs,), of their distance to the prior."""
    loss = LOSSES[inputs.loss]
    labels = inputs.outputs if inputs.loss == "binary_cross_entropy" else 1  # over which that loss is a mean
    variances = values.square().mean(dim=0)
    curvature = (
        curvatures(inputs.loss, values @ start.T, inputs.targets, inputs.weights)[:, None] * variances + penalties
    )

    def function(point: Tensor) -> tuple[float, Tensor]:
        weight = point.view(start.shape)
        outputs = (values @ weight.T).requires_grad_()
        value = loss(outputs, inputs.targets, inputs.weights) * labels
        (gradient,) = torch.autograd.grad(value, outputs)
        apart = weight - prior
        pulled = penalties * apart
        return value.item() + float((pulled * apart).sum()) / 2, torch.addmm(pulled, gradient.T, values).flatten()

    curvature = curvature.clamp(min=LEAST).flatten()
    found = minimise(function, start.flatten(), curvature=curvature, iterations=ITERATIONS, near=near)
    return found.view(start.shape)


def _turned_back(inputs: Inputs, axes: PrincipalAxes, prior: Tensor, weight: Tensor, penalty: float) -> Solution:
    """The head for the inputs as they are; the cosine's weight is distributed over the inputs that it is the mean of.

    Where the rows do not differ, the weight stays the prior's.
    """
    count = axes.directions.shape[1]
    solved = (weight - prior)[:, :count] @ axes.directions.T
    if inputs.prior is not None:
        solved += inputs.prior
    solved /= inputs.scale
    if inputs.cosine is not None:
        solved[:, inputs.cosine :] += weight[:, count : count + 1] / (len(axes.centre) - inputs.cosine)
    if not bool(torch.isfinite(solved).all()):
        raise NotFinite("a weight of a linear head is not finite", do="check the features of the task's texts")
    bias = weight[:, -1] - solved @ axes.centre
    return Solution(weight=solved, bias=bias, penalty=penalty)
