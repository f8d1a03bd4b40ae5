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
        self,
        features: Features,
        targets: Sequence[np.ndarray],
        *,
        second: Features | None = None,
        unread: Sequence[np.ndarray] | None = None,
    ) -> None:
        """`unread` tells for each word of each example whether no token stands for it (cut away, say)."""
        self._features, self._second = features, second
        self._targets, self._unread = targets, unread
        super().__init__(features.lengths if second is None else np.maximum(features.lengths, second.lengths))

    def unread(self, member: int) -> np.ndarray | None:
        """For each word of an example whether no token stands for it; None for tasks that do not read words."""
        if self._unread is not None:
            return self._unread[member]
        target = self._targets[member]
        return np.zeros(len(target), bool) if _is_words(target) else None

    def batch(self, members: np.ndarray) -> Batch:
        """The features of these examples, decoded, and their targets."""
        arguments: tuple[object, ...] = _tensors(self._features, members)
        if self._second is not None:
            arguments = (*arguments, _tensors(self._second, members))
        targets = [without_unread(self._targets[i], self.unread(i)) for i in members]
        return Batch(arguments=arguments, targets=stacked(targets), members=members)


def _tensors(features: Features, members: np.ndarray) -> tuple[Tensor, Tensor]:
    taken = features.take(members)
    return torch.from_numpy(taken.values), torch.from_numpy(taken.mask)


def padded_words(words: Sequence[np.ndarray]) -> Tensor:
    """(rows, words) first sub-tokens, -1 beyond a row's end; at least one column."""
    out = np.full((len(words), max([1, *(len(w) for w in words)])), -1, np.int64)
    for row, index in enumerate(words):
        out[row, : len(index)] = index
    return torch.from_numpy(out)


def without_unread(target: np.ndarray, unread: np.ndarray | None) -> np.ndarray:
    """The target with UNLABELLED for words that no token stands for: nothing is to be learned from them."""
    return target if unread is None else np.where(unread, UNLABELLED, target)


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
    """The module's outputs for every example, in the examples' order; words without padding, unread ones NaN."""
    found: list[np.ndarray | None] = [None] * examples.count
    for piece in examples.in_order(batch):
        outputs = module(*piece.arguments).float().numpy()
        for row, member in enumerate(piece.members):
            unread = examples.unread(member)
            if unread is None:
                found[member] = outputs[row]
            else:
                found[member] = np.where(unread[:, None], np.float32(np.nan), outputs[row, : len(unread)])
    return [o for o in found if o is not None]
