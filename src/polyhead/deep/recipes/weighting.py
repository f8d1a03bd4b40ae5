"""Weights of losses: each is divided by the loss of a uniform guess and multiplied by its task's weight."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor, nn

from polyhead.deep.loop.feed import TrainingBatch
from polyhead.deep.loop.loss import LOSSES, options_of, place_counts, ranking_each, span_each, token_cross_entropy
from polyhead.deep.recipes.sampling import size_shares
from polyhead.errors import ConfigError
from polyhead.project.recipes import Weighting
from polyhead.tasks.kinds import kind_of
from polyhead.tasks.task import LossName, Task


def weights_of(weighting: Weighting, sizes: Mapping[str, int]) -> dict[str, float]:
    """Each task's weight, by its number of training examples; 1 if the weight is learned.

    Those of kind `size` sum to 1, so each of k tasks has about 1 / k: gradients, and everything that depends on their
    size, are that much smaller than without weights. Raises ConfigError if `fixed` names an unknown task.
    """
    unknown = sorted(set(weighting.fixed) - set(sizes))
    if unknown:
        raise ConfigError("weighting.fixed names tasks that are not there", got=unknown, allowed=list(sizes))
    if weighting.kind == "size":
        exponent = 1 / weighting.exponent if weighting.literal else weighting.exponent
        return dict(zip(sizes, size_shares(sizes, exponent).tolist(), strict=True))
    return {task: weighting.fixed.get(task, 1.0) for task in sizes}


class Objective(nn.Module):
    """The loss of one task's micro-batch: that of its kind, optionally scaled, times the task's weight.

    `tasks` are the tasks with their training targets, `sizes` their numbers of training examples. Kind `uncertainty`
    learns s, the logarithm of a variance, for each task: `exp(-s) L + s / 2`, for a regression `exp(-s) L / 2 + s / 2`
    (Kendall et al. 2018). Its parameters, one number per task, must be passed to the optimizer.
    """

    def __init__(
        self,
        tasks: Mapping[str, tuple[Task, Sequence[np.ndarray]]],
        weighting: Weighting,
        sizes: Mapping[str, int],
        *,
        class_weights: Mapping[str, Tensor] | None = None,
        label_smoothing: Mapping[str, float] | None = None,
    ) -> None:
        """`label_smoothing` is that of tasks that write."""
        super().__init__()
        self._tasks = {name: task for name, (task, _) in tasks.items()}
        self._weights = weights_of(weighting, {name: sizes[name] for name in tasks})
        self._scaled, self._class_weights = weighting.scaled, dict(class_weights or {})
        self._smoothing = dict(label_smoothing or {})
        self._spread = {name: spread_of(task, targets) for name, (task, targets) in tasks.items()}
        learned = len(tasks) if weighting.kind == "uncertainty" else 0
        self._indices = {name: index for index, name in enumerate(tasks)}
        self.log_variances = nn.ParameterList([nn.Parameter(torch.zeros(())) for _ in range(learned)])

    def forward(self, name: str, outputs: Tensor, batch: TrainingBatch, added: Tensor | None = None) -> Tensor:
        """The loss to minimize; `added` is another mean over the same examples, such as the term of smoothing."""
        value = self.loss(name, outputs, batch)
        return self.weighted(name, value if added is None else value + added)

    def loss(self, name: str, outputs: Tensor, batch: TrainingBatch) -> Tensor:
        """The mean over examples, optionally scaled, without the task's weight."""
        loss, weights = kind_of(self._tasks[name]).loss, self._class_weights.get(name)
        weights = None if weights is None else weights.to(outputs.device)
        if loss == "token_cross_entropy":
            value = token_cross_entropy(outputs, batch.targets, weights, smoothing=self._smoothing.get(name, 0.0))
            return value / log_outcomes(loss, outputs, batch.targets) if self._scaled else value
        if not self._scaled:
            return LOSSES[loss](outputs, batch.targets, weights)
        return scaled_loss(loss, outputs, batch.targets, weights, spread=self._spread[name])

    def weighted(self, name: str, value: Tensor) -> Tensor:
        """The task's weight on a loss."""
        if not self.log_variances:
            return self._weights[name] * value
        log_variance: Tensor = self.log_variances[self._indices[name]]
        half = 0.5 if kind_of(self._tasks[name]).loss == "squared_error" else 1.0
        return half * torch.exp(-log_variance) * value + log_variance / 2


def scaled_loss(
    loss: LossName, outputs: Tensor, targets: Tensor, weights: Tensor | None, *, spread: float = 1.0
) -> Tensor:
    """The mean of each example's loss over ln n(x), n the number of possible outcomes (Aghajanyan et al. 2021).

    A uniform guess scores 1 for every kind. The paper has no regressions: these are divided by `spread`, the variance
    of the targets, so that their mean scores 1. Words of a tagging task are averaged first.
    """
    match loss:
        case "squared_error":
            return LOSSES[loss](outputs, targets, weights) / spread
        case "ranking":
            return (ranking_each(outputs, targets) / log_outcomes(loss, outputs, targets)).mean()
        case "span_cross_entropy":
            losses, counted = span_each(outputs, targets)
            scaled = losses / log_outcomes(loss, outputs, targets)
            return scaled.sum() / counted.sum().clamp(min=1)
        case _:
            return LOSSES[loss](outputs, targets, weights) / log_outcomes(loss, outputs, targets)


def log_outcomes(loss: LossName, outputs: Tensor, targets: Tensor) -> Tensor:
    """ln n(x): one number () for the batch, or one for each example or row if they differ; 1 if n is 1.

    n is the number of a task's labels, the two values of each of several labels, the options of an example, the places
    of a row, the tokens of a vocabulary; a regression has none.
    """
    match loss:
        case "ranking":
            outcomes = options_of(targets)
        case "span_cross_entropy":
            outcomes = place_counts(targets)
        case "squared_error":
            outcomes = torch.ones((), device=outputs.device)
        case "binary_cross_entropy":
            outcomes = torch.full((), 2.0, device=outputs.device)
        case "cross_entropy" | "word_cross_entropy" | "token_cross_entropy":
            outcomes = torch.full((), float(outputs.shape[-1]), device=outputs.device)
    return torch.where(outcomes > 1, outcomes.float().log(), 1.0)


def spread_of(task: Task, targets: Sequence[np.ndarray]) -> float:
    """The variance of a regression's targets, which is the loss of their mean as a guess; 1 for other kinds."""
    if kind_of(task).loss != "squared_error":
        return 1.0
    variance = float(np.var(np.stack(targets).astype(np.float64)))
    return variance if variance > 0 else 1.0
