"""Labelled examples over kept features: what the training loop reads when the trunk is frozen."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from polyhead.store.features import Features
from polyhead.train.fit import Batch
from polyhead.train.loss import UNLABELLED
from polyhead.train.order import LengthSorted


class FeatureExamples(LengthSorted):
    """Targets and the features of their inputs; `second` holds the other text of pairs read separately."""

    def __init__(
        self, features: Features, targets: Sequence[np.ndarray], *, second: Features | None = None
    ) -> None:
        self._features, self._second = features, second
        self._targets = targets
        super().__init__(features.lengths if second is None else np.maximum(features.lengths, second.lengths))

    def words_in(self, member: int) -> int | None:
        """How many words an example of a word-level task has; None for other tasks."""
        target = self._targets[member]
        return len(target) if _is_words(target) else None

    def batch(self, members: np.ndarray) -> Batch:
        """The features of these examples, decoded, and their targets."""
        arguments: tuple[object, ...] = _tensors(self._features, members)
        if self._second is not None:
            arguments = (*arguments, _tensors(self._second, members))
        return Batch(
            arguments=arguments, targets=stacked([self._targets[i] for i in members]), members=members
        )


def _tensors(features: Features, members: np.ndarray) -> tuple[Tensor, Tensor]:
    taken = features.take(members)
    return torch.from_numpy(taken.values), torch.from_numpy(taken.mask)


def stacked(targets: Sequence[np.ndarray]) -> Tensor:
    """One tensor of targets; rows of words are padded with UNLABELLED to the longest."""
    if _is_words(targets[0]):
        longest = max(1, max(len(words) for words in targets))
        out = np.full((len(targets), longest), UNLABELLED, np.int64)
        for row, words in enumerate(targets):
            out[row, : len(words)] = words
        return torch.from_numpy(out)
    return torch.from_numpy(np.stack(targets))


def _is_words(target: np.ndarray) -> bool:
    return target.ndim == 1 and target.dtype == np.int64


@torch.inference_mode()
def outputs_of(module: torch.nn.Module, examples: LengthSorted, *, batch: int = 256) -> list[np.ndarray]:
    """The module's outputs for every example, in the examples' order; words without padding."""
    found: list[np.ndarray | None] = [None] * examples.count
    for piece in examples.in_order(batch):
        outputs = module(*piece.arguments).float().numpy()
        for row, member in enumerate(piece.members):
            words = examples.words_in(member)
            found[member] = outputs[row] if words is None else outputs[row, :words]
    return [o for o in found if o is not None]
