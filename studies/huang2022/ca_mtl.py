"""The baseline CA-MTL (Pilault et al. 2021): one encoder for all tasks, of which each pass is conditioned on one task.

Every task has a vector z. From it linear maps make gains and shifts, `F(x, z) = (1 + g(z)) * x + b(z)` (FiLM):

* of the embeddings' output, in each dimension;
* of a learned bias of attention, added to the scores of all heads in every layer, with blocks along the diagonal: it
  acts between tokens of one block, `softmax(Q K^T / sqrt(d/H) + diag(F(A_1, z), F(A_2, z), ...)) V`;
* of both layer norms in the upper half of the layers, whose gain becomes `(1 + g(z)) * gain` and shift `shift + b(z)`;
* of a bottleneck above the top layer, `h + U gelu(F(D h, z))`, a third as wide as the trunk.

Where the paper leaves it open, this is our reading: blocks of 16 tokens, biases of their own in every layer, one map
for all blocks of a layer; maps, blocks and U start at zero, so that the trunk starts as it was; z is random, of length
one or so (with a longer one a step moves gains too far). The lower half of the layers is frozen, their conditions and
the embeddings are not; updates read the rows of which the model is least sure (`uncertain.py`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from polyhead.deep.loop.devices import on
from polyhead.deep.loop.feed import TrainingBatch
from polyhead.deep.model import TextBatch, stored_value
from polyhead.deep.nn.attention import by_head, visible
from polyhead.deep.nn.dropout import dropped
from polyhead.deep.nn.layer import Dense, Layer, SelfAttention
from polyhead.deep.nn.trunk import Noise, States, Trunk
from polyhead.deep.recipes.joint_loop import JointLoop
from polyhead.deep.recipes.joint_model import JointModel
from polyhead.deep.recipes.sampling import MixedFeed
from polyhead.encoder.data import TrunkData
from polyhead.encoder.shape import Architecture
from polyhead.plan import Path
from polyhead.project.recipes import Training
from polyhead.train.runs import stream
from studies.huang2022.uncertain import RowsLoss, UncertainFeed, entropies

BLOCK = 16  # tokens
NARROWER = 3  # the bottleneck, than the trunk


class Conditional(nn.Module):
    """What CA-MTL adds to a trunk, for texts of at most `tokens` tokens."""

    def __init__(self, tasks: Sequence[str], shape: Architecture, *, tokens: int, generator: torch.Generator) -> None:
        super().__init__()
        width, upper = shape.width, range(shape.layers // 2, shape.layers)
        self._places = {task: index for index, task in enumerate(tasks)}
        length_one = width**-0.5
        self.tasks = nn.ParameterList(length_one * torch.randn(width, generator=generator) for _ in tasks)
        self.embeddings = Film(width, width)
        self.attention = nn.ModuleList(BlockBias(width, tokens) for _ in range(shape.layers))
        self.norms = nn.ModuleDict(
            {f"{index}_{half}": Film(width, width) for index in upper for half in ("attention", "feed_forward")}
        )
        inner = width // NARROWER
        self.down, self.between, self.up = Dense(width, inner), Film(width, inner), Dense(inner, width)
        nn.init.xavier_uniform_(self.down.weight, generator=generator)

    def forward(self, trunk: Trunk, task: str, batch: TextBatch, *, noise: Noise | None = None) -> States:
        """The last layer's output for this task."""
        vector = self.tasks[self._places[task]]
        hidden = trunk.embed(batch.ids, segments=batch.segments, noise=noise)
        hidden = self.embeddings(hidden, vector)
        for index, layer in enumerate(trunk.layers):
            assert isinstance(layer, Layer)
            hidden = self._layer(layer, index, hidden, batch.mask, vector)
        hidden = hidden + self.up(functional.gelu(self.between(self.down(hidden), vector)))
        return States(hidden=(hidden,), mask=batch.mask, first=len(trunk.layers))

    def _layer(self, layer: Layer, index: int, hidden: Tensor, mask: Tensor, vector: Tensor) -> Tensor:
        attention, feed_forward = layer.attention, layer.feed_forward
        assert attention is not None and feed_forward is not None
        bias = self.attention[index](hidden.shape[1], vector)
        out = attended_with(attention, hidden, mask, bias)
        out = self._normed(f"{index}_attention", attention.norm, out, vector)
        return self._normed(f"{index}_feed_forward", feed_forward.norm, feed_forward(out), vector)

    def _normed(self, name: str, norm: nn.Module | None, out: Tensor, vector: Tensor) -> Tensor:
        """A norm's output under the task's gain and shift."""
        if name not in self.norms:
            return out
        assert isinstance(norm, nn.LayerNorm)
        conditioned: Tensor = self.norms[name](out - norm.bias, vector) + norm.bias
        return conditioned


class Film(nn.Module):
    """`(1 + g) * x + b`, g and b linear in the task's vector; the identity at first."""

    def __init__(self, width: int, size: int) -> None:
        super().__init__()
        self.maps = Dense(width, 2 * size)

    def forward(self, values: Tensor, vector: Tensor) -> Tensor:
        """(..., size) to the same shape; `vector` (width,)."""
        with torch.autocast(values.device.type, enabled=False):  # bfloat16 has no number between 1 and 1.0078
            gain, shift = self.maps(vector.float()).chunk(2)
            out: Tensor = values * (1 + gain) + shift
        return out


class BlockBias(nn.Module):
    """A bias of attention that two tokens have only where they stand in one block."""

    def __init__(self, width: int, tokens: int) -> None:
        super().__init__()
        self.blocks = nn.Parameter(torch.zeros(math.ceil(tokens / BLOCK), BLOCK * BLOCK))
        self.film = Film(width, BLOCK * BLOCK)

    def forward(self, tokens: int, vector: Tensor) -> Tensor:
        """(tokens, tokens)."""
        blocks = self.film(self.blocks, vector).unflatten(1, (BLOCK, BLOCK))
        whole: Tensor = torch.block_diag(*blocks)  # type: ignore[no-untyped-call]
        return whole[:tokens, :tokens]


def attended_with(attention: SelfAttention, hidden: Tensor, mask: Tensor, bias: Tensor) -> Tensor:
    """The layer's attention half with a bias (tokens, tokens) on the scores of every head."""
    query, key, value = (
        by_head(part(hidden), attention.heads) for part in (attention.query, attention.key, attention.value)
    )
    scores = (query * query.shape[-1] ** -0.5) @ key.mT + bias  # (rows, heads, tokens, tokens)
    weights = scores.float().masked_fill(~visible(mask), -math.inf).softmax(dim=-1)
    weights = dropped(weights, attention.dropout, attention.training).to(value.dtype)
    out = attention.output((weights @ value).transpose(1, 2).flatten(2))
    assert attention.norm is not None
    normed: Tensor = attention.norm(hidden + dropped(out, attention.dropout, attention.training))
    return normed


def count_of(tasks: Sequence[str], shape: Architecture, *, tokens: int) -> int:
    """How many parameters the conditions have."""
    made = Conditional(tasks, shape, tokens=tokens, generator=torch.Generator())
    return sum(parameter.numel() for parameter in made.parameters())


def flops_of(shape: Architecture, tokens: int) -> int:
    """What the conditions of one task add to a pass over so many tokens: their matrix products."""
    width, inner = shape.width, shape.width // NARROWER
    norms = 2 * (shape.layers - shape.layers // 2)
    sizes = (1 + norms) * width + shape.layers * BLOCK**2 + inner  # of what gains and shifts are made for
    return 4 * width * sizes + 4 * width * inner * tokens


class ConditionedTogether(JointModel):
    """A trunk that learns with its conditions and the tasks' heads; a pass answers one task."""

    def __init__(self, data: TrunkData, paths: Mapping[str, Path], *, training: Training, **options: Any) -> None:
        super().__init__(data, paths, training=training, **options)
        generator = torch.Generator().manual_seed(stream(training.seed, "init", "ca-mtl"))
        self.conditional = Conditional(
            list(paths), data.architecture, tokens=data.settings.max_tokens, generator=generator
        )
        for layer in self.model.trunk.layers[: data.architecture.layers // 2]:
            layer.requires_grad_(False)
        self._pools = {task: path.pool.stored() for task, path in paths.items()}
        self._in_bfloat16: bool = options["bfloat16"]

    def forward(self, task: str, batch: TextBatch, *, noise: Noise | None = None) -> Tensor:
        """Outputs of one task."""
        with torch.autocast(batch.ids.device.type, dtype=torch.bfloat16, enabled=self._in_bfloat16):
            states = self.conditional(self.model.trunk, task, batch, noise=noise)
            value = stored_value(states, self._pools[task], batch.words)
        outputs: Tensor = self.model.parts[task](value.values, value.mask)
        return outputs

    def answers(self, tasks: Sequence[str], batch: TextBatch) -> Tensor:
        """Outputs of several tasks side by side, from a pass for each."""
        return torch.cat([self(task, batch) for task in tasks], dim=1)


class ConditionedCourse(JointLoop):
    """Joint training of CA-MTL, by the loop and the losses of all joint training, and its own sampler.

    What is learned here are scores: a conditioned trunk is no trunk that a bundle could hold.
    """

    together = ConditionedTogether

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.loss = RowsLoss(self.module, self.objective, self.tasks, self.recipe)
        self.loss.feed = UncertainFeed(self.examples, self.mixture, self.training, uncertainty=self.uncertainty)

    def feed(self) -> MixedFeed:
        """What updates read."""
        assert isinstance(self.loss, RowsLoss)
        return self.loss.feed

    @torch.no_grad()
    def uncertainty(self, task: str, batch: TrainingBatch) -> np.ndarray:
        """Of each row, without dropout."""
        learning = self.module.training
        self.module.eval()
        outputs = on(batch, self.place.device).answered(partial(self.module, task))
        self.module.train(learning)
        return entropies(outputs)
