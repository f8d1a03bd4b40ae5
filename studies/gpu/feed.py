"""Rows on the device, and batches for all lanes at once: each lane has its own order of rows, lengths go together."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from studies.gpu.packed import PackedRows
from studies.gpu.stack import LaneTexts, Stack

POOL = 32  # batches among which rows are sorted by length
READ = 256  # rows at once, where nothing is learned
MULTIPLE = 8  # of tokens in a batch, so that few shapes occur


@dataclass(frozen=True, kw_only=True, eq=False)
class CardExamples:
    """A split on the device; `hidden` (rows, tokens, width) in place of ids, `soft` (lanes, rows, outputs)."""

    lengths: np.ndarray
    targets: Tensor
    sizes: Tensor  # lengths, on the device
    seconds: Tensor
    ids: Tensor
    hidden: Tensor | None = None
    soft: Tensor | None = None
    task: Tensor | None = None  # (lanes,): of which these rows are, for stacks with functions of tasks

    def __len__(self) -> int:
        return len(self.lengths)

    def batch(self, members: np.ndarray) -> LaneTexts:
        """The texts of these rows, (lanes, rows) of their numbers."""
        tokens = int(self.lengths[members].max())
        tokens = min(-(-tokens // MULTIPLE) * MULTIPLE, self.width)
        index = torch.from_numpy(members).to(self.ids.device)
        places = torch.arange(tokens, device=self.ids.device)
        mask = places < self.sizes[index][..., None]
        if self.hidden is not None:
            return LaneTexts(mask=mask, hidden=self.hidden[:, :tokens][index])
        segments = (places >= self.seconds[index][..., None]) & mask
        return LaneTexts(mask=mask, ids=self.ids[:, :tokens][index], segments=segments, tasks=self.task)

    @property
    def width(self) -> int:
        """Tokens of the longest row, as padded."""
        return self.ids.shape[1]


def on_device(rows: PackedRows, device: str) -> CardExamples:
    """A split, padded to a multiple of tokens."""
    ids = np.pad(rows.ids, ((0, 0), (0, -rows.ids.shape[1] % MULTIPLE)))
    sizes, seconds, targets = (
        torch.from_numpy(array).to(device) for array in (rows.lengths, rows.seconds, rows.targets)
    )
    return CardExamples(
        lengths=rows.lengths, targets=targets, sizes=sizes, seconds=seconds, ids=torch.from_numpy(ids).to(device)
    )


def orders(
    lengths: np.ndarray,
    *,
    batch: int,
    seeds: Sequence[tuple[int, ...]],
    epoch: int,
    firsts: Sequence[int] | None = None,
) -> Iterator[np.ndarray]:
    """The batches of an epoch, (lanes, batch) row numbers each; the last rows that fill none are left out.

    Each lane draws its own order. Rows are sorted by length among POOL batches, and the sorted batches come in an order
    that all lanes share, so that the rows of one batch are about equally long in all of them. With `firsts` a lane
    reads so many first rows alone, again where they are fewer: all lanes have as many batches.
    """
    count = max(1, len(lengths) // batch)
    firsts = firsts or [len(lengths)] * len(seeds)
    drawn = [
        np.resize(np.random.default_rng([*seed, epoch]).permutation(first), count * batch)
        for seed, first in zip(seeds, firsts, strict=True)
    ]
    shared = np.random.default_rng([epoch, count])
    made: list[np.ndarray] = []
    for start in range(0, count * batch, POOL * batch):
        pools = np.stack([order[start : start + POOL * batch] for order in drawn])
        pools = np.take_along_axis(pools, np.argsort(lengths[pools], axis=1, kind="stable"), axis=1)
        made += np.split(pools, pools.shape[1] // batch, axis=1)
    for index in shared.permutation(len(made)):
        yield made[index]


@torch.no_grad()
def outputs_of(stack: Stack, examples: CardExamples) -> np.ndarray:
    """Every lane's outputs for every row: (lanes, rows, outputs) in float32."""
    parts, members = [], _sorted(examples)
    for chunk in members:
        parts.append(stack.answers(examples.batch(chunk[None])))
    made = torch.cat(parts, dim=1).cpu().numpy()
    found = np.empty_like(made)
    found[:, np.concatenate(members)] = made
    return found


@torch.no_grad()
def states_of(
    trunk: Stack, examples: CardExamples, taps: Sequence[int], check: Callable[[], None] = lambda: None
) -> CardExamples:
    """The rows with the trunk's states behind so many layers, their mean if several, in place of ids.

    `check` is called before each batch.
    """
    shape = (len(examples), examples.width, trunk.form.shape.width)
    hidden = torch.zeros(shape, dtype=trunk.dtype, device=trunk.device)
    for chunk in _sorted(examples):
        check()
        texts = examples.batch(chunk[None])
        several = torch.stack([trunk.answers(texts, layers=tap)[0].float() for tap in taps])
        index = torch.from_numpy(chunk).to(trunk.device)
        hidden[index, : several.shape[2]] = several.mean(0).to(trunk.dtype)
    return replace(examples, hidden=hidden)


def _sorted(examples: CardExamples) -> list[np.ndarray]:
    order = np.argsort(-examples.lengths, kind="stable")
    return [order[start : start + READ] for start in range(0, len(order), READ)]
