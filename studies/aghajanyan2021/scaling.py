"""Losses divided by ln n, n the outcomes that compete: the factors, and what a uniform guess loses with and without."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from polyhead.values import Value

if TYPE_CHECKING:
    from torch import Tensor

    from polyhead.tasks.task import LossName

VOCABULARY = 50_265  # of RoBERTa and BART
OUTCOMES = {
    2: "yes or no; positive or negative",
    3: "entailment, neutral, contradiction",
    4: "AG News; four options",
    5: "five stars; five options",
    14: "DBpedia",
    77: "BANKING77",
    384: "a span's places",
    VOCABULARY: "a summary's next token",
}


class Factor(Value):
    """What a loss over n outcomes is multiplied by."""

    outcomes: int
    log: float  # ln n: what a uniform guess loses
    factor: float  # 1 / ln n
    example: str


class Guess(Value):
    """The loss of a uniform guess in one batch, plain and scaled, computed by the losses that training uses."""

    kind: str
    outcomes: str
    plain: float
    scaled: float


def factors() -> tuple[Factor, ...]:
    """1 / ln n for outcome counts that the paper's sets and ours have."""
    return tuple(
        Factor(outcomes=n, log=math.log(n), factor=1 / math.log(n), example=example) for n, example in OUTCOMES.items()
    )


def uniform_guesses() -> tuple[Guess, ...]:
    """Every kind's loss of outputs that prefer nothing; a regression's guess is the mean of its targets.

    The paper has no regressions, tagging or several labels: their n are ours.
    """
    import torch

    rows = torch.arange(4)
    targets = torch.tensor([0.1, 0.9, 0.4, 0.3])
    spans = torch.zeros(2, 60, 2, dtype=torch.int64)
    spans[:, 7, 0] = spans[:, 9, 1] = 1
    options = torch.tensor([[0, 1], [0, 0], [1, 0], [1, 1], [1, 0], [1, 0], [1, 0]])
    labels = (torch.arange(6) % 3 == 0).float().expand(4, 6)
    return (
        _guess("single_label", "2 labels", "cross_entropy", torch.zeros(4, 2), rows % 2),
        _guess("single_label", "77 labels", "cross_entropy", torch.zeros(4, 77), rows),
        _guess("multi_label", "2 values of each label", "binary_cross_entropy", torch.zeros(4, 6), labels),
        _guess("tagging", "17 labels", "word_cross_entropy", torch.zeros(2, 2, 17), rows.reshape(2, 2)),
        _guess("multiple_choice", "2 and 5 options", "ranking", torch.zeros(7, 1), options),
        _guess("span", "60 places", "span_cross_entropy", torch.zeros(2, 60, 2), spans),
        _guess(
            "regression",
            "none: the targets' variance",
            "squared_error",
            targets.mean().expand(4, 1),
            targets,
            spread=float(targets.var(correction=0)),
        ),
        _guess(
            "summarization",
            f"{VOCABULARY:,} tokens",
            "token_cross_entropy",
            torch.zeros(1, 2, VOCABULARY),
            rows[None, :2],
        ),
    )


def _guess(kind: str, outcomes: str, loss: LossName, outputs: Tensor, targets: Tensor, *, spread: float = 1.0) -> Guess:
    from polyhead.deep.loop.loss import LOSSES
    from polyhead.deep.recipes.weighting import scaled_loss

    return Guess(
        kind=kind,
        outcomes=outcomes,
        plain=float(LOSSES[loss](outputs, targets, None)),
        scaled=float(scaled_loss(loss, outputs, targets, None, spread=spread)),
    )
