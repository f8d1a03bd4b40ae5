"""The losses of kinds, as means over examples or labelled words, and the distillation losses."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional

from polyhead.tasks.task import LossName
from polyhead.train.data.batches import UNLABELLED

Loss = Callable[[Tensor, Tensor, Tensor | None], Tensor]


def cross_entropy(outputs: Tensor, targets: Tensor, weights: Tensor | None) -> Tensor:
    """Mean of -log softmax(outputs)[target]; `weights` (labels,) multiply each label's examples.

    Soft targets (rows, labels) are probabilities: the mean of -sum p log softmax(outputs), each label's term weighted,
    divided by the mean weight, so that certain ones equal their labels. A row that sums to less than 1 counts less.
    """
    if targets.is_floating_point() and weights is not None:
        counts = targets.sum(dim=-1, keepdim=True)
        whole = torch.where(counts > 0, targets / counts, 1 / targets.shape[-1])  # as if every row counted fully
        return -(targets * weights * functional.log_softmax(outputs, dim=-1)).sum() / (whole * weights).sum()
    return functional.cross_entropy(outputs, targets, weight=weights)


def binary_cross_entropy(outputs: Tensor, targets: Tensor, weights: Tensor | None) -> Tensor:
    """Mean over examples and labels; `weights` (labels,) multiply each label's positive term."""
    return functional.binary_cross_entropy_with_logits(outputs, targets, pos_weight=weights)


def squared_error(outputs: Tensor, targets: Tensor, weights: Tensor | None) -> Tensor:
    """Mean of (output - target)^2 on targets scaled to [0, 1]."""
    return functional.mse_loss(outputs[:, 0], targets)


def word_cross_entropy(outputs: Tensor, targets: Tensor, weights: Tensor | None) -> Tensor:
    """Mean over labelled words; targets (rows, words) hold UNLABELLED for a word without one."""
    flat, words = outputs.flatten(0, 1), targets.flatten()
    if bool((words == UNLABELLED).all()):
        return flat.sum() * 0.0
    return functional.cross_entropy(flat, words, weight=weights, ignore_index=UNLABELLED)


def ranking(outputs: Tensor, targets: Tensor, weights: Tensor | None) -> Tensor:
    """Mean over examples of -log softmax over the example's options, at the right one."""
    return ranking_each(outputs, targets).mean()


def ranking_each(outputs: Tensor, targets: Tensor) -> Tensor:
    """-log softmax over an example's options, at the right one: (examples,).

    Outputs (options, 1) of all examples, example after example; targets (options, 2): the example's number, from 0, and
    1 for the right option, else 0.
    """
    scores, right = by_example(outputs[:, 0], targets), by_example(targets[:, 1], targets, fill=0)
    return torch.logsumexp(scores, dim=1) - (scores * right).sum(dim=1)


def options_of(targets: Tensor) -> Tensor:
    """The number of options of each example, (examples,), from targets of `ranking`."""
    return torch.bincount(targets[:, 0])


def by_example(values: Tensor, targets: Tensor, *, fill: float | None = None) -> Tensor:
    """Values (options,) as (examples, most options), in the order of `targets` of `ranking`.

    Examples with fewer options are padded with `fill`; None: the smallest number, which gets no share in a softmax.
    """
    counts = options_of(targets)
    is_option = torch.arange(int(counts.max()), device=counts.device) < counts[:, None]
    empty = torch.finfo(values.dtype).min if fill is None else fill
    return values.new_full(is_option.shape, empty).masked_scatter(is_option, values)


def span(outputs: Tensor, targets: Tensor, weights: Tensor | None) -> Tensor:
    """Mean over the rows that count of the mean of two cross entropies: for the beginning and the end of the answer."""
    losses, counted = span_each(outputs, targets)
    return losses.sum() / counted.sum().clamp(min=1)


def span_each(outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """The mean of both cross entropies over the row's places, (rows,), and which rows count, bool (rows,).

    Outputs (rows, places, 2); targets of the same shape hold 1 at the answer's beginning (column 0) and end (column 1),
    0 at other places, UNLABELLED at padding and at unread places. A row without both 1s, because its answer was cut
    off, does not count, and has a loss of 0.
    """
    shares = functional.log_softmax(competing(outputs, targets), dim=1)
    right = targets == 1
    counted = right.any(dim=1).all(dim=1)
    return -shares.masked_fill(~right, 0.0).sum(dim=(1, 2)) / 2 * counted, counted


def competing(outputs: Tensor, targets: Tensor) -> Tensor:
    """Outputs of a span task with the smallest number at places that do not compete: they get no share in a softmax."""
    return outputs.masked_fill(targets == UNLABELLED, torch.finfo(outputs.dtype).min)


def place_counts(targets: Tensor) -> Tensor:
    """The number of places of each row, (rows,), from targets of `span`."""
    return (targets[:, :, 0] != UNLABELLED).sum(dim=1)


def token_cross_entropy(outputs: Tensor, targets: Tensor, weights: Tensor | None, *, smoothing: float = 0.0) -> Tensor:
    """Mean over a summary's tokens; targets (rows, tokens) hold UNLABELLED for padding.

    `(1 - e) * -log p(target) + e * mean over the vocabulary of -log p`, label smoothing as in `transformers`; fairseq
    distributes e over the other tokens only.
    """
    flat = outputs.flatten(0, 1)
    return functional.cross_entropy(
        flat, targets.flatten(), weight=weights, ignore_index=UNLABELLED, label_smoothing=smoothing
    )


LOSSES: dict[str, Loss] = {
    "cross_entropy": cross_entropy,
    "binary_cross_entropy": binary_cross_entropy,
    "squared_error": squared_error,
    "word_cross_entropy": word_cross_entropy,
    "ranking": ranking,
    "span_cross_entropy": span,
    "token_cross_entropy": token_cross_entropy,
}


Soft = Callable[[Tensor, Tensor, Tensor, float], Tensor]


def distilled(name: LossName, temperature: float) -> Callable[[Tensor, Tensor, Tensor | None, Tensor], Tensor]:
    """`L(y, z_s) + tau^2 CE(softmax(z_t / tau), z_s / tau)`, without a weight between the two terms.

    A regression has `MSE(y, z_s) + MSE(z_t, z_s)`; multiple labels have one Bernoulli each; a tagging task has the term
    for each labelled word, a span task the mean of two terms for each row that counts. Class weights only affect the
    first term. No gradient reaches the teacher.
    """
    hard, soft = LOSSES[name], _SOFT[name]

    def loss(outputs: Tensor, targets: Tensor, weights: Tensor | None, teacher: Tensor) -> Tensor:
        return hard(outputs, targets, weights) + soft(outputs, teacher.detach(), targets, temperature)

    return loss


def _classes(outputs: Tensor, teacher: Tensor, targets: Tensor, temperature: float) -> Tensor:
    wanted = torch.softmax(teacher / temperature, dim=-1)
    return temperature**2 * functional.cross_entropy(outputs / temperature, wanted)


def _labels(outputs: Tensor, teacher: Tensor, targets: Tensor, temperature: float) -> Tensor:
    wanted = torch.sigmoid(teacher / temperature)
    return temperature**2 * functional.binary_cross_entropy_with_logits(outputs / temperature, wanted)


def _values(outputs: Tensor, teacher: Tensor, targets: Tensor, temperature: float) -> Tensor:
    return functional.mse_loss(outputs, teacher)


def _options(outputs: Tensor, teacher: Tensor, targets: Tensor, temperature: float) -> Tensor:
    student, taught = (by_example(scores[:, 0] / temperature, targets) for scores in (outputs, teacher))
    return temperature**2 * functional.cross_entropy(student, torch.softmax(taught, dim=1))


def _places(outputs: Tensor, teacher: Tensor, targets: Tensor, temperature: float) -> Tensor:
    student, taught = (competing(scores / temperature, targets) for scores in (outputs, teacher))
    shares = torch.softmax(taught, dim=1) * functional.log_softmax(student, dim=1)
    _, counted = span_each(outputs, targets)
    return temperature**2 * -(shares.sum(dim=(1, 2)) / 2 * counted).sum() / counted.sum().clamp(min=1)


def _words(outputs: Tensor, teacher: Tensor, targets: Tensor, temperature: float) -> Tensor:
    labelled = targets != UNLABELLED
    if not bool(labelled.any()):
        return outputs.sum() * 0.0
    return _classes(outputs[labelled], teacher[labelled], targets, temperature)


_SOFT: dict[str, Soft] = {
    "cross_entropy": _classes,
    "binary_cross_entropy": _labels,
    "squared_error": _values,
    "word_cross_entropy": _words,
    "ranking": _options,
    "span_cross_entropy": _places,
}
