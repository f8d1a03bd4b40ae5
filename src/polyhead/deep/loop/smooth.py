"""R3F and R4F (Aghajanyan et al. 2020): small noise on the word vectors should not change an answer."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils import parametrize

from polyhead.deep.loop.feed import TrainingBatch
from polyhead.deep.loop.loss import by_example, competing, span_each
from polyhead.deep.nn.heads import OutputHead
from polyhead.deep.recipes.weighting import log_outcomes
from polyhead.project.recipes import Smoothing
from polyhead.tasks.kinds import kind_of
from polyhead.tasks.task import LossName, Task
from polyhead.train.data.batches import UNLABELLED


class Noise:
    """Adds new noise to word vectors at each call: the form that `Trunk.start` takes.

    Without a generator it comes from torch's own, which the training loop reseeds in each epoch.
    """

    def __init__(self, smoothing: Smoothing, generator: torch.Generator | None = None) -> None:
        self._smoothing, self._generator = smoothing, generator

    def __call__(self, words: Tensor) -> Tensor:
        """(rows, tokens, width) to the same shape."""
        size, generator = self._smoothing.size, self._generator
        noise = torch.empty(words.shape, device=words.device if generator is None else generator.device)
        if self._smoothing.noise == "uniform":
            noise.uniform_(-size, size, generator=generator)
        else:
            noise.normal_(0.0, size, generator=generator)
        return (words.detach() if self._smoothing.detached else words) + noise.to(words)


def smoothed(
    smoothing: Smoothing,
    task: Task,
    outputs: Tensor,
    batch: TrainingBatch,
    *,
    run: Callable[[Noise | None], Tensor],
    module: nn.Module,
    scaled: bool,
    generator: torch.Generator | None = None,
) -> Tensor:
    """`weight * [KL(f(x) || f(x + z)) + KL(f(x + z) || f(x))]`, the term to add to the batch's loss; () of 0 if none.

    `outputs` are those of the pass that gives the loss, `run` computes outputs of the same batch, with or without noise
    on the word vectors. If the term is to be free of dropout, both answers come from `run`, with all dropout of
    `module` off: a third pass. `scaled` says whether losses are.
    """
    loss = kind_of(task).loss
    if loss == "squared_error" or not smoothing.weight:
        return outputs.new_zeros(())
    noise = Noise(smoothing, generator)
    if smoothing.dropout:
        noisy = run(noise)
    else:
        with without_dropout(module):
            outputs, noisy = run(None), run(noise)
    if not smoothing.both:
        outputs = outputs.detach()
    divergence = symmetric_kl(loss, outputs, noisy, batch.targets, scaled=scaled and smoothing.scaled)
    return smoothing.weight * divergence


def symmetric_kl(loss: LossName, outputs: Tensor, noisy: Tensor, targets: Tensor, *, scaled: bool = False) -> Tensor:
    """`KL(p || q) + KL(q || p) = sum (p - q) (ln p - ln q)` of two answers, the mean over examples.

    Over labels; over the labels of each labelled word (or token); over an example's options; over the places of a row
    that counts, the mean of start and end; over both values of each of several labels, their mean. `scaled` divides by
    ln n(x). Raises ValueError for a regression, which has no distribution.
    """
    plain, other = outputs.float(), noisy.float()
    size = log_outcomes(loss, outputs, targets) if scaled else 1.0
    match loss:
        case "cross_entropy":
            return (_apart(plain, other) / size).mean()
        case "word_cross_entropy" | "token_cross_entropy":
            labelled = targets != UNLABELLED
            words = _apart(plain, other) / size * labelled
            return words.sum() / labelled.sum().clamp(min=1)
        case "binary_cross_entropy":
            terms = (plain.sigmoid() - other.sigmoid()) * (plain - other)  # ln p - ln (1 - p) is the output
            return (terms / size).mean()
        case "ranking":
            pair = (by_example(scores[:, 0], targets) for scores in (plain, other))
            return (_apart(*pair) / size).mean()
        case "span_cross_entropy":
            counted = span_each(plain, targets)[1]
            pair = (competing(places, targets).transpose(1, 2) for places in (plain, other))
            rows = _apart(*pair).mean(dim=1) / size * counted
            return rows.sum() / counted.sum().clamp(min=1)
        case "squared_error":
            raise ValueError("a regression's answer is no distribution")


def _apart(plain: Tensor, noisy: Tensor) -> Tensor:
    """Symmetric KL divergence of two softmaxes over the last axis; a label without a share in either adds nothing."""
    p, q = functional.log_softmax(plain, dim=-1), functional.log_softmax(noisy, dim=-1)
    return ((p.exp() - q.exp()) * (p - q)).sum(dim=-1)


@contextmanager
def without_dropout(module: nn.Module) -> Iterator[None]:
    """A context in which the whole module is in evaluation mode; its former mode returns afterwards."""
    training = [part for part in module.modules() if part.training]
    for part in training:
        part.training = False
    try:
        yield
    finally:
        for part in training:
            part.training = True


def normalise_heads(module: nn.Module) -> None:
    """Makes every head in the module use its output matrix divided by the largest singular value (R4F).

    This changes the names of arrays until `settle_heads`; an all-zero matrix is unchanged.
    """
    for head in _heads(module):
        if not parametrize.is_parametrized(head.output, "weight"):
            parametrize.register_parametrization(head.output, "weight", _Normalised())


def settle_heads(module: nn.Module) -> None:
    """Stores the divided matrix in each head, under its usual name: for storing and serving."""
    for head in _heads(module):
        if parametrize.is_parametrized(head.output, "weight"):
            parametrize.remove_parametrizations(head.output, "weight", leave_parametrized=True)


def _heads(module: nn.Module) -> list[OutputHead]:
    return [part for part in module.modules() if isinstance(part, OutputHead)]


class _Normalised(nn.Module):
    """`W / (u^T W v)` with the exact first singular vectors of W; the same bits with and without gradients."""

    def forward(self, weight: Tensor) -> Tensor:
        u, _, v = torch.linalg.svd(weight.detach(), full_matrices=False)
        largest = u[:, 0] @ weight @ v[0]
        return weight / torch.where(largest > 0, largest, 1.0)
