"""A trunk and parts: runs a plan with gradients, and gives the values that a store keeps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec
import numpy as np
import torch
from torch import Tensor, nn

from polyhead.errors import PlanError
from polyhead.nn.states import States
from polyhead.nn.trunk import Noise, Trunk
from polyhead.plan import TRUNK, Codec, Embed, Head, Layers, Plan, Pool
from polyhead.sharing.branch import BranchPart
from polyhead.sharing.pooled import PooledPart
from polyhead.store.codec import through


class TextBatch(msgspec.Struct, frozen=True, kw_only=True):
    """Token ids ready for the trunk; `words` holds each word's first sub-token, -1 where there is none."""

    ids: Tensor  # (rows, tokens)
    mask: Tensor  # (rows, tokens), True where a token is
    segments: Tensor  # (rows, tokens)
    words: Tensor | None = None  # (rows, words)


class Pooled(msgspec.Struct, frozen=True, kw_only=True):
    """The value at a pool's stored form: what a store keeps and what a part reads."""

    values: Tensor  # (rows, positions, layers, width) float32
    mask: Tensor  # (rows, positions)


class Model(nn.Module):
    """A trunk and the parts of some tasks; a part that several tasks share is one module.

    With `narrow`, layers whose only reader is the first position compute it alone: cheaper, and other bits.
    """

    def __init__(self, trunk: Trunk, parts: Mapping[str, PooledPart], *, narrow: bool = False) -> None:
        super().__init__()
        self.trunk = trunk
        self.parts = dict(parts)
        self.layers_run = 0  # layers evaluated since the model was made, for receipts and tests
        self._narrow = narrow
        for index, part in enumerate(dict.fromkeys(self.parts.values())):
            self.add_module(f"part_{index}", part)

    def stored(self, plan: Plan, batch: TextBatch, *, noise: Noise | None = None) -> dict[str, Pooled]:
        """Every task's stored value, through its codec, from one run of the plan.

        `noise` changes the text's word vectors.
        """
        states: dict[int, States] = {}
        found: dict[str, Pooled] = {}
        values: dict[tuple[int, Pool], Pooled] = {}
        for index, step in enumerate(plan.steps):
            match step.node:
                case Embed():
                    states[index] = self.trunk.start(
                        batch.ids, batch.mask, segments=batch.segments, noise=noise
                    )
                case Layers() as node:
                    first = self._narrow and _first_only(plan, index)
                    states[index] = self._run(node, step.tasks, states[step.parent], first=first)
                case Pool() as node:
                    key = (step.parent, node.stored())
                    if key not in values:
                        values[key] = coded(
                            stored_value(states[step.parent], key[1], batch.words), key[1].codec
                        )
                    found.update(dict.fromkeys(step.tasks, values[key]))
                case Head():
                    pass
        return found

    def forward(self, plan: Plan, batch: TextBatch) -> dict[str, Tensor]:
        """Outputs of every task of the plan that reads one input: (rows, labels) or (rows, words, labels)."""
        return {task: self.parts[task](v.values, v.mask) for task, v in self.stored(plan, batch).items()}

    def _run(self, node: Layers, tasks: Sequence[str], states: States, *, first: bool = False) -> States:
        if node.delta is not None or not node.is_plain or node.width is not None:
            raise PlanError(
                "this version runs whole layers of the trunk or of a branch only",
                got=node,
                allowed="Layers without a delta, of the trunk's width",
            )
        if node.weights == TRUNK:
            self.layers_run += node.stop - node.start
            return self.trunk.go_on(states, stop=node.stop, first=first)
        part = self.parts[tasks[0]]
        if not isinstance(part, BranchPart) or part.owner != node.weights:
            raise PlanError(
                "no part here owns these layers", got=node, allowed=f"layers of the trunk or of {list(tasks)}"
            )
        self.layers_run += node.stop - node.start
        return part.run(states, stop=node.stop)


def _first_only(plan: Plan, index: int) -> bool:
    """Whether all that reads the step's last state reads its first position."""
    readers = [plan.steps[child].node for child in plan.children(index)]
    return all(isinstance(n, Pool) and (n.layers, n.positions) == ("last", "first") for n in readers)


def stored_value(states: States, pool: Pool, words: Tensor | None) -> Pooled:
    """The value of a pool in stored form before its codec: (rows, positions, layers, width) in float32.

    With layers 'mean' and a codec applied after the mean there is one layer; with a codec before the mean the
    averaged layers stay apart, since each is encoded alone (Du et al. 2020). A word without a sub-token of its own
    (cut away, or normalised to nothing) is a row of zeros.
    """
    depth = states.depth
    if pool.layers == "mean" and pool.of > depth:
        raise PlanError("a pool averages more layers than its path runs", got=pool.of, allowed=depth)
    chosen = {
        "last": [depth],
        "mean": list(range(depth - pool.of + 1, depth + 1)),
        "all": list(range(1, depth + 1)),
    }
    layers = [states.layer(i) for i in chosen[pool.layers]]
    mask = states.mask
    if pool.positions == "first":
        layers, mask = [h[:, :1] for h in layers], mask[:, :1]
    elif pool.positions == "mean":
        weights = (mask / mask.sum(dim=1, keepdim=True)).unsqueeze(-1)
        layers = [(h.float() * weights).sum(dim=1, keepdim=True) for h in layers]
        mask = mask.new_ones(len(mask), 1)
    elif pool.positions == "tokens":
        if words is None:
            raise PlanError(
                "a path that reads words needs each word's first sub-token", do="give the batch its words"
            )
        mask = words >= 0
        index = words.clamp(min=0).long().unsqueeze(-1)
        layers = [h.gather(1, index.expand(-1, -1, h.shape[-1])) * mask.unsqueeze(-1) for h in layers]
    if pool.layers == "mean" and not pool.codec.before_mean:
        total = layers[0].float()
        for layer in layers[1:]:
            total = total + layer
        return Pooled(values=(total / len(layers)).unsqueeze(2), mask=mask)
    return Pooled(values=torch.stack([h.float() for h in layers], dim=2), mask=mask)


def coded(value: Pooled, codec: Codec) -> Pooled:
    """The value as a reader of the store would see it: encoded and decoded."""
    if codec.name == "float32":
        return value
    decoded = through(value.values.detach().cpu().numpy().astype(np.float32), codec)
    return Pooled(values=torch.from_numpy(decoded).to(value.values.device), mask=value.mask)
