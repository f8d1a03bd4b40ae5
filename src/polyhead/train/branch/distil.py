"""Distillation of a task's own branch into a shorter one (Hinton et al. 2015; Wei et al. 2021)."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional

from polyhead.tasks.task import LossName
from polyhead.train.loop.loss import LOSSES, UNLABELLED, by_example, competing, span_each

Soft = Callable[[Tensor, Tensor, Tensor, float], Tensor]


def distilled(name: LossName, temperature: float) -> Callable[[Tensor, Tensor, Tensor | None, Tensor], Tensor]:
    """`L(y, z_s) + tau^2 CE(softmax(z_t / tau), z_s / tau)`, without a weight between the two terms.

    A regression has `MSE(y, z_s) + MSE(z_t, z_s)`; several labels have one Bernoulli each; a tagging task has the
    term for each labelled word, a span task the mean of two terms for each row that counts. Class weights act on the
    first term alone. No gradient reaches the teacher.
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
