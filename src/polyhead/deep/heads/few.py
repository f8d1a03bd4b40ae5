"""A linear head that is learned again in seconds, each time a few more texts have labels."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec
import numpy as np
import torch
from torch import Tensor

from polyhead.deep.heads.label_words import STRENGTHS
from polyhead.deep.heads.linear import PENALTIES, Inputs, solutions, swept
from polyhead.deep.heads.select import FOLDS
from polyhead.deep.nn.runtime import single_thread
from polyhead.tasks.kinds.base import softmax
from polyhead.train.data.prepared import FEW

TRIED = PENALTIES[::2]  # for a person who waits: every second one


class FewLabelsFit(msgspec.Struct, frozen=True, kw_only=True):
    """What a head answers for all texts, and how often it was right for labelled ones that it did not learn from."""

    probabilities: np.ndarray  # float64 (texts, labels)
    accuracy: float | None  # by folds; None where a label has no second row
    penalty: float
    prior: float  # how strongly its weights are drawn to the labels' words


class FewLabels:
    """All texts as a linear head reads them, (texts, inputs); `prior` (labels, inputs) are weights of labels' words."""

    def __init__(self, values: Tensor, labels: int, prior: Tensor | None) -> None:
        self._values, self._labels, self._prior = values, labels, prior

    @property
    def values(self) -> np.ndarray:
        """float32 (texts, inputs)"""
        return self._values.numpy()

    def learn(self, rows: Sequence[int], labels: Sequence[int], *, seed: int = 1) -> FewLabelsFit:
        """A head that learned from these texts; penalty and prior are those of the least loss of five folds."""
        given = np.asarray(labels, np.int64)
        whole = self._inputs(np.asarray(rows, np.int64), given)
        with single_thread():
            strength, penalty, accuracy = self._best(whole, _dealt(given, np.random.default_rng(seed)))
            drawn = self._drawn(whole, strength)
            solution = next(s for s in solutions(drawn, TRIED) if s.penalty <= penalty)
            outputs = solution.outputs(msgspec.structs.replace(whole, values=self._values)).numpy()
        return FewLabelsFit(probabilities=softmax(outputs), accuracy=accuracy, penalty=penalty, prior=strength)

    def _inputs(self, rows: np.ndarray, labels: np.ndarray) -> Inputs:
        return Inputs(
            values=self._values[torch.from_numpy(rows)],
            targets=torch.from_numpy(labels),
            members=torch.arange(len(rows)),
            loss="cross_entropy",
            outputs=self._labels,
        )

    def _drawn(self, inputs: Inputs, strength: float) -> Inputs:
        prior = None if self._prior is None or not strength else strength * self._prior
        return msgspec.structs.replace(inputs, prior=prior)

    def _best(self, whole: Inputs, folds: Sequence[list[int]]) -> tuple[float, float, float | None]:
        """(strength of the prior, penalty, accuracy on rows held out)."""
        strongest = (0.0 if self._prior is None else STRENGTHS[0], TRIED[0])
        if len(folds) < 2:
            return (*strongest, None)
        everything = set(range(len(whole.values)))
        sides = [(whole.of(sorted(everything - set(held))), whole.of(held)) for held in folds]
        best: tuple[float, float, float, float] | None = None
        few = self._prior is not None and len(whole.values) <= FEW * self._labels
        for strength in (0.0, *STRENGTHS) if few else (0.0,):
            for penalty, loss, accuracy in self._tried(sides, strength):
                if best is None or loss < best[0]:
                    best = (loss, strength, penalty, accuracy)
        assert best is not None
        return best[1:]

    def _tried(self, sides: Sequence[tuple[Inputs, Inputs]], strength: float) -> Iterator[tuple[float, float, float]]:
        """(penalty, mean loss, accuracy) from the strongest penalty on, until the loss rises twice."""
        drawn = [(self._drawn(train, strength), held) for train, held in sides]
        for step in swept(drawn, TRIED):
            is_right = step.outputs.argmax(axis=1) == np.concatenate([held.targets.numpy() for _, held in sides])
            yield step.heads[0].penalty, float(step.losses.mean()), float(is_right.mean())


def _dealt(labels: np.ndarray, generator: np.random.Generator) -> list[list[int]]:
    """Folds with about a fifth of each label; none where no label has a second row."""
    counts = np.bincount(labels)
    if counts.max(initial=0) < 2 or np.count_nonzero(counts) < 2:
        return []
    folds: list[list[int]] = [[] for _ in range(min(FOLDS, len(labels)))]
    place = 0
    for label in np.unique(labels):
        for row in generator.permutation(np.flatnonzero(labels == label)):
            folds[place % len(folds)].append(int(row))
            place += 1
    return [sorted(fold) for fold in folds]
