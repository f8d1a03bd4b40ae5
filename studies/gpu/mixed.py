"""Pre-finetuning (Aghajanyan et al. 2021): trunks that learn from 6 to 24 sets at once, with and without R3F.

Every row of an update is of a set of its own drawing, by size; losses are divided by ln of the set's labels. All mixes
have as many updates, so that fewer sets are read more often. Heads are a line of one matrix each, over one pooler.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from studies.gpu.adam import LaneAdam
from studies.gpu.feed import CardExamples, on_device, orders
from studies.gpu.fit import Deadline, LaneSchedule
from studies.gpu.packed import Pack, PackedRows
from studies.gpu.stack import Form, Stack, start_arrays

NESTED = (6, 12, 18, 24)
RATE = 5e-5
NOISE, WEIGHT = 1e-5, 1.0  # of R3F: on word vectors, and of its term


@dataclass(frozen=True, kw_only=True)
class CardMix:
    """The first sets of the pack's order; `smooth`: with R3F."""

    sets: int
    smooth: bool = False

    @property
    def name(self) -> str:
        """As rows have it, where a fine-tuned trunk starts from."""
        return f"sets-{self.sets}" + "-r3f" * self.smooth


@dataclass(frozen=True, kw_only=True, eq=False)
class MixedRows:
    """All rows of all sets, one set after another, with their labels among those of all sets."""

    examples: CardExamples
    ends: tuple[int, ...]  # rows up to each set's end
    first: Tensor  # (rows,): the first label of the row's set,
    labels: Tensor  # and how many it has
    outputs: int


def mixes_of(pack: Pack) -> list[CardMix]:
    """The mixes of this pack's sets, the whole one with R3F too."""
    sizes = sorted({min(count, len(pack.mix)) for count in NESTED})
    return [*(CardMix(sets=count) for count in sizes), CardMix(sets=sizes[-1], smooth=True)]


def learn(
    pack: Pack,
    mixes: Sequence[CardMix],
    seed: int,
    *,
    epochs: int,
    batch: int,
    rows: int | None,
    device: str,
    dtype: torch.dtype,
    deadline: Deadline,
) -> dict[str, dict[str, np.ndarray]]:
    """The arrays of each mix's trunk, by its name; raises TimeIsUp."""
    mixed = mixed_rows(pack, device, rows=rows)
    form = Form(shape=pack.shape, tap=0, layers=pack.shape.layers, outputs=mixed.outputs, embeds=True)
    stack = Stack(form, [start_arrays(form, pack.weights, seed=seed)] * len(mixes), device=device, dtype=dtype)
    optimizer = LaneAdam(stack, [RATE] * len(mixes))
    firsts, smooth = [mixed.ends[mix.sets - 1] for mix in mixes], [i for i, mix in enumerate(mixes) if mix.smooth]
    schedule = LaneSchedule(epochs=2 * epochs, patience=1, batch=batch)  # its rate falls over half of these
    steps, step = max(1, len(mixed.examples) // batch), 0
    torch.manual_seed(seed)
    for epoch in range(1, epochs + 1):
        seeds = [(seed, mix.sets) for mix in mixes]
        for members in orders(mixed.examples.lengths, batch=batch, seeds=seeds, epoch=epoch, firsts=firsts):
            deadline.check()
            optimizer.step(mixed_loss(stack, mixed, members, smooth), schedule.share(step, steps))
            step += 1
    trunks = [stack.arrays(lane) for lane in range(len(mixes))]
    return {mix.name: _trunk(arrays) for mix, arrays in zip(mixes, trunks, strict=True)}


def mixed_rows(pack: Pack, device: str, *, rows: int | None = None) -> MixedRows:
    """The rows of the mix, at most so many of each set."""
    splits = [one.splits["train"] if rows is None else one.splits["train"].first(rows) for one in pack.mix.values()]
    labels = [one.labels for one in pack.mix.values()]
    firsts, sizes = np.cumsum([0, *labels[:-1]]), [len(split) for split in splits]
    longest = max(split.ids.shape[1] for split in splits)
    whole = PackedRows(
        ids=np.concatenate([np.pad(split.ids, ((0, 0), (0, longest - split.ids.shape[1]))) for split in splits]),
        lengths=np.concatenate([split.lengths for split in splits]),
        seconds=np.concatenate([split.seconds for split in splits]),
        targets=np.concatenate([split.targets + first for split, first in zip(splits, firsts, strict=True)]),
    )
    return MixedRows(
        examples=on_device(whole, device),
        ends=tuple(np.cumsum(sizes).tolist()),
        first=torch.from_numpy(np.repeat(firsts, sizes)).to(device),
        labels=torch.from_numpy(np.repeat(labels, sizes)).to(device),
        outputs=sum(labels),
    )


def mixed_loss(stack: Stack, mixed: MixedRows, members: np.ndarray, smooth: Sequence[int]) -> Tensor:
    """Over lanes the sum of mean losses, each row's over ln of its labels; R3F's term in the `smooth` lanes."""
    texts = mixed.examples.batch(members)
    index = torch.from_numpy(members).to(stack.device)
    shares = own_shares(stack.answers(texts, training=True), mixed, index)
    size = mixed.labels[index].float().log()
    loss = -(shares.gather(-1, mixed.examples.targets[index][..., None])[..., 0] / size).mean(1).sum()
    if not smooth:
        return loss
    lanes = torch.tensor(list(smooth), device=stack.device)
    own = replace(texts, mask=texts.mask[lanes], ids=_of(texts.ids, lanes), segments=_of(texts.segments, lanes))
    noisy = own_shares(stack.part(smooth).answers(own, training=True, noise=NOISE), mixed, index[lanes])
    plain = shares[lanes]
    apart = (plain.exp() - noisy.exp()) * (plain - noisy)
    is_own = _is_own(mixed, index[lanes])
    return loss + WEIGHT * (apart.masked_fill(~is_own, 0.0).sum(-1) / size[lanes]).mean(1).sum()


def own_shares(outputs: Tensor, mixed: MixedRows, index: Tensor) -> Tensor:
    """Log-probabilities (lanes, rows, outputs) among the labels of each row's own set; the lowest number elsewhere."""
    lowest = torch.finfo(outputs.dtype).min / 2
    return torch.log_softmax(outputs.masked_fill(~_is_own(mixed, index), lowest), -1)


def _is_own(mixed: MixedRows, index: Tensor) -> Tensor:
    places = torch.arange(mixed.outputs, device=index.device)
    first = mixed.first[index][..., None]
    return (places >= first) & (places < first + mixed.labels[index][..., None])


def _of(values: Tensor | None, lanes: Tensor) -> Tensor | None:
    return None if values is None else values[lanes]


def _trunk(arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {name: array for name, array in arrays.items() if not name.startswith("head.")}
