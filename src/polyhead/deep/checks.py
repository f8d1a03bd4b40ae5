"""What conformance checks of strategies need torch for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import nn

from polyhead import plan
from polyhead.deep.loop.loss import LOSSES
from polyhead.deep.model import MultiTaskModel, TextBatch
from polyhead.engine.backends.base import TokenBatch
from polyhead.plan import Path
from polyhead.tasks.task import LossName


def load_arrays(module: nn.Module, arrays: Mapping[str, np.ndarray]) -> None:
    """Puts the arrays into the module; all of its own must be among them."""
    module.load_state_dict({name: torch.from_numpy(np.array(value)) for name, value in arrays.items()})


def backward_from(model: MultiTaskModel, path: Mapping[str, Path], batch: TokenBatch, loss: LossName) -> None:
    """Computes the loss of the one task in `path` on the batch, with some target, and its gradients."""
    (name,) = path
    ids, mask, segments, words = map(torch.from_numpy, (batch.ids, batch.mask, batch.segments, batch.words))
    texts = TextBatch(ids=ids, mask=mask, segments=segments, words=words)
    stored = model.stored(plan.merge(path), texts)[name]
    second = [(stored.values.flip(0), stored.mask)] if path[name].head.separate else []
    outputs = model.parts[name](stored.values, stored.mask, *second)
    LOSSES[loss](outputs, _target(loss, outputs), None).backward()  # type: ignore[no-untyped-call]


def _target(loss: LossName, outputs: Any) -> Any:
    """Some target for each loss: the first label, the first option of one question, the first place."""
    if loss == "binary_cross_entropy":
        return torch.zeros(outputs.shape)
    if loss == "squared_error":
        return torch.zeros(len(outputs))
    if loss == "ranking":
        return torch.tensor([(0, int(option == 0)) for option in range(len(outputs))])
    if loss == "span_cross_entropy":
        return (torch.arange(outputs.shape[1]) == 0).long()[None, :, None].expand(outputs.shape)
    return torch.zeros(outputs.shape[:-1], dtype=torch.int64)
