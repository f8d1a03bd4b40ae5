"""The losses that kinds name, as means over examples or over labelled words."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor
from torch.nn import functional

UNLABELLED = -100  # a word without a target: cut away, or padding

Loss = Callable[[Tensor, Tensor, Tensor | None], Tensor]


def cross_entropy(outputs: Tensor, targets: Tensor, weights: Tensor | None) -> Tensor:
    """Mean of -log softmax(outputs)[target]; `weights` (labels,) multiply each label's examples."""
    return functional.cross_entropy(outputs, targets, weight=weights)


def binary_cross_entropy(outputs: Tensor, targets: Tensor, weights: Tensor | None) -> Tensor:
    """Mean over examples and labels; `weights` (labels,) multiply each label's positive term."""
    return functional.binary_cross_entropy_with_logits(outputs, targets, pos_weight=weights)


def squared_error(outputs: Tensor, targets: Tensor, weights: Tensor | None) -> Tensor:
    """Mean of (output - target)^2 on targets scaled to [0, 1]."""
    return functional.mse_loss(outputs[:, 0], targets)


def word_cross_entropy(outputs: Tensor, targets: Tensor, weights: Tensor | None) -> Tensor:
    """Mean over labelled words; targets (rows, words) hold UNLABELLED where a word has none."""
    flat, words = outputs.flatten(0, 1), targets.flatten()
    if bool((words == UNLABELLED).all()):
        return flat.sum() * 0.0
    return functional.cross_entropy(flat, words, weight=weights, ignore_index=UNLABELLED)


LOSSES: dict[str, Loss] = {
    "cross_entropy": cross_entropy,
    "binary_cross_entropy": binary_cross_entropy,
    "squared_error": squared_error,
    "word_cross_entropy": word_cross_entropy,
}
