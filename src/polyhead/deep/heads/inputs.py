"""Inputs of linear heads from kept features, and solved heads as modules."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import torch
from torch import Tensor

from polyhead.deep.loop.feed import LengthSorted, TrainingBatch
from polyhead.deep.loop.loss import UNLABELLED
from polyhead.deep.sharing.part import PooledPart
from polyhead.tasks.task import LossName
from polyhead.train.heads.linear import Inputs, Solution, numbered
from polyhead.train.heads.span import HashedSpan

AT_ONCE = 256  # examples whose inputs are computed at a time
MOST_NUMBERS = 2**28  # of the inputs: one gibibyte of float32


@torch.no_grad()
def set_head(module: PooledPart, solution: Solution, span: HashedSpan | None) -> None:
    """Copies the solution into the part's head; `span` is of the hashed words that it reads, if any."""
    dense = module.head.output.weight.shape[1]
    module.head.output.weight.copy_(torch.from_numpy(solution.weight[:, -dense:]))
    module.head.output.bias.copy_(torch.from_numpy(solution.bias))
    if module.words is not None and span is not None:
        module.words.weight.copy_(torch.from_numpy(span.weights(solution.weight[:, :-dense])))
    module.eval()


@torch.no_grad()
def scaled(module: PooledPart, scale: float) -> PooledPart:
    """The part with outputs times `scale`; a copy, unless that is 1."""
    if scale == 1:
        return module
    module = copy.deepcopy(module)
    for own in (module.head.output, module.words):
        if own is not None:
            for parameter in own.parameters():
                parameter.mul_(scale)
    return module


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
    labels = targets.numpy()
    return Inputs(
        values=values.numpy(),
        targets=numbered(labels) if loss == "ranking" else labels,
        members=examples_of_rows.numpy(),
        places=places.numpy(),
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
