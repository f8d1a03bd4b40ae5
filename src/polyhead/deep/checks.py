"""Torch helpers of the conformance checks, and detection of rows that rounding cannot change."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import nn

from polyhead import plan
from polyhead.deep.loop.loss import LOSSES
from polyhead.deep.model import MultiTaskModel, TextBatch, stored_value
from polyhead.deep.nn.trunk import Trunk
from polyhead.encoder.data import TrunkData
from polyhead.engine.backends.base import TokenBatch
from polyhead.plan import Path
from polyhead.plan.coding import encode, tokens_of
from polyhead.tasks.task import LossName


def load_arrays(module: nn.Module, arrays: Mapping[str, np.ndarray]) -> None:
    """Loads the arrays into the module; all of the module's own must be among them."""
    module.load_state_dict({name: torch.from_numpy(np.array(value)) for name, value in arrays.items()})


def backward_from(model: MultiTaskModel, path: Mapping[str, Path], batch: TokenBatch, loss: LossName) -> None:
    """Computes the loss of the one task in `path` on the batch, with an arbitrary target, and its gradients."""
    (name,) = path
    ids, mask, segments, words = map(torch.from_numpy, (batch.ids, batch.mask, batch.segments, batch.words))
    texts = TextBatch(ids=ids, mask=mask, segments=segments, words=words)
    stored = model.stored(plan.merge(path), texts)[name]
    second = [(stored.values.flip(0), stored.mask)] if path[name].head.separate else []
    outputs = model.parts[name](stored.values, stored.mask, *second)
    LOSSES[loss](outputs, _target(loss, outputs), None).backward()  # type: ignore[no-untyped-call]


def _target(loss: LossName, outputs: Any) -> Any:
    """An arbitrary target for each loss: the first label, the first option of one question, the first place."""
    if loss == "binary_cross_entropy":
        return torch.zeros(outputs.shape)
    if loss == "squared_error":
        return torch.zeros(len(outputs))
    if loss == "ranking":
        return torch.tensor([(0, int(option == 0)) for option in range(len(outputs))])
    if loss == "span_cross_entropy":
        return (torch.arange(outputs.shape[1]) == 0).long()[None, :, None].expand(outputs.shape)
    return torch.zeros(outputs.shape[:-1], dtype=torch.int64)


MARGIN = 1e-5  # features this close to a boundary of their code may be encoded either way


def states_of(trunk: TrunkData, batch: TokenBatch) -> Callable[[], Any]:
    """A function for the trunk's states of the batch, which its first call computes."""

    @cache
    def computed() -> Any:
        ids, mask, segments = map(torch.from_numpy, (batch.ids, batch.mask, batch.segments))
        with torch.inference_mode():
            return Trunk.from_data(trunk)(ids, mask, segments=segments)

    return computed


def stable_states(states: Callable[[], Any], path: Path, batch: TokenBatch, *, margin: float = MARGIN) -> np.ndarray:
    """bool (rows,): whether all features of a row are far enough from their codec's boundaries for a stable code."""
    pool = path.stored().pool
    if pool.codec.format.is_exact:
        return np.ones(len(batch.ids), bool)
    with torch.inference_mode():
        value = stored_value(states(), pool, torch.from_numpy(batch.words))
    raw, seen = value.values.numpy(), value.mask.numpy()
    moves = [np.ones(raw.shape[-1], np.float32)]
    if pool.codec.format.has_arrays:  # its boundaries are not parallel to dimensions
        moves = list(np.random.default_rng(0).choice([-1, 1], (16, raw.shape[-1])).astype(np.float32))
    moved = np.zeros(raw.shape[:2], bool)
    tokens = tokens_of(pool, ids=batch.ids, mask=batch.mask, words=batch.words)[:, :, None]
    for move in np.float32(margin) * np.stack(moves):
        either = encode(raw - move, pool.codec, tokens) != encode(raw + move, pool.codec, tokens)
        moved |= either.any(axis=(2, 3))
    stable: np.ndarray = ~(moved & seen).any(axis=1)
    return stable
