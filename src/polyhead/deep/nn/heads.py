"""The ends of paths: trainable poolers (Du et al. 2020), and heads, which return the outputs of a task's kind."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from polyhead.deep.nn.attention import visible
from polyhead.deep.nn.dropout import dropped
from polyhead.deep.nn.layer import Dense
from polyhead.errors import PlanError
from polyhead.plan import Activation
from polyhead.text.hashing import NO_WORDS, HashedText


class LearnedMix(nn.Module):
    """A learned mix: `g(F)_t = scale * sum_l softmax(weights)_l h^l_t` (Peters et al. 2018).

    Starts as the plain mean: weights 0, scale 1. Arrays: `weights` (layers,), `scale` ().
    """

    def __init__(self, layers: int) -> None:
        super().__init__()
        self.weights = nn.Parameter(torch.zeros(layers))
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, values: Tensor) -> Tensor:
        """(rows, tokens, layers, width) to (rows, tokens, width)."""
        mix = self.scale * torch.softmax(self.weights, dim=0)
        return torch.matmul(mix.to(values.dtype), values)


class AttentionPooler(nn.Module):
    """One learned query over all positions, multi-headed (Du et al. 2020).

    `Q = W_q q + b_q; K = X W_k^T + b_k; V = X W_v^T + b_v; o_h = softmax(K_h Q_h / sqrt(d/H))^T V_h`, and the output is
    `W_o [o_1..o_H] + b_o`. The query does not depend on the text, so the same function is computed folded, in training
    too, without the key and value projections of every token: `u_h = W_k,h^T Q_h / sqrt(d/H); a_h = softmax(X u_h); z_h
    = a_h^T X; o_h = W_v,h z_h + b_v,h`. Values and gradients are those of the unfolded form.

    `K_h Q_h` contains `b_k,h Q_h` at every position, which cancels in the softmax: the key bias has no effect and a
    gradient of zero (`grad` stays None). It is kept, since the paper counts it: 4 (d^2 + d) + d parameters.

    Arrays: `query` (width,), `{inner_query,key,value,output}.{weight,bias}`. The query starts as N(0, 0.02),
    matrices Xavier-uniform, biases at zero; without a generator they are drawn from seed 0.
    """

    def __init__(self, width: int, heads: int, *, generator: torch.Generator | None = None) -> None:
        super().__init__()
        if heads < 1 or width % heads:
            raise PlanError("an attention pooler's width must be a multiple of its heads", got=f"{width} and {heads}")
        self.heads = heads
        self.query = nn.Parameter(torch.zeros(width))
        self.inner_query, self.key = Dense(width, width), Dense(width, width)
        self.value, self.output = Dense(width, width), Dense(width, width)
        generator = generator or torch.Generator().manual_seed(0)
        nn.init.normal_(self.query, std=0.02, generator=generator)
        xavier(self, generator)

    def forward(self, values: Tensor, mask: Tensor) -> Tensor:
        """(rows, tokens, width) to (rows, width); a row without tokens gives a finite value."""
        scores = values @ self.scores().T  # (rows, tokens, heads)
        scores = scores.masked_fill(~visible(mask)[:, 0, 0, :, None], -math.inf)
        pooled = torch.softmax(scores, dim=1).transpose(1, 2) @ values  # (rows, heads, width)
        mixed = torch.einsum("rhw,hkw->rhk", pooled, self._by_head(self.value.weight)).flatten(1)
        out: Tensor = self.output(mixed + self.value.bias)
        return out

    def scores(self) -> Tensor:
        """The folded query, `u_h = W_k,h^T Q_h / sqrt(d/H)`: (heads, width)."""
        query = self.inner_query(self.query).view(self.heads, -1) / math.sqrt(len(self.query) // self.heads)
        return torch.einsum("hk,hkw->hw", query, self._by_head(self.key.weight))

    def _by_head(self, weight: Tensor) -> Tensor:
        return weight.view(self.heads, -1, weight.shape[-1])


def xavier(module: nn.Module, generator: torch.Generator | None) -> None:
    """Draws dense maps Xavier-uniform (Glorot and Bengio 2010) with zero biases; from seed 0 by default."""
    generator = generator or torch.Generator().manual_seed(0)
    for part in module.modules():
        if isinstance(part, nn.Linear):
            nn.init.xavier_uniform_(part.weight, generator=generator)
            if part.bias is not None:
                nn.init.zeros_(part.bias)


ACTIVATIONS: Mapping[Activation, Callable[[Tensor], Tensor]] = {
    "tanh": torch.tanh,
    "relu": functional.relu,
    "gelu": functional.gelu,
}


class WordRows(NamedTuple):
    """Hashed words of some rows, row after row (`text.hashing`)."""

    columns: Tensor  # int64 (features,)
    values: Tensor  # float32 (features,)
    starts: Tensor  # int64 (rows,): where each row's features begin

    @classmethod
    def of(cls, rows: Sequence[HashedText]) -> WordRows:
        """The rows of these texts."""
        columns, values = (np.concatenate([NO_WORDS[i], *(row[i] for row in rows)]) for i in range(2))
        starts = np.cumsum([0, *(len(row.columns) for row in rows)])[:-1]
        return cls(torch.from_numpy(columns).long(), torch.from_numpy(values), torch.from_numpy(starts))

    def times(self, weight: Tensor) -> Tensor:
        """The product of the rows with a matrix (columns, outputs): (rows, outputs)."""
        return functional.embedding_bag(
            self.columns, weight, self.starts, mode="sum", per_sample_weights=self.values.to(weight.dtype)
        )


class HashedWords(nn.Module):
    """The outputs of a text's hashed words: `weight` (columns, outputs), zeros before training."""

    def __init__(self, columns: int, outputs: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(columns, outputs))

    def forward(self, rows: WordRows) -> Tensor:
        """(rows, outputs)"""
        return rows.times(self.weight)


class OutputHead(nn.Module):
    """`y = U f(W z + b) + u` with f = tanh (Du et al. 2020), relu or the exact gelu; `y = U z + u` with `hidden` 0.

    Arrays: `hidden.{weight,bias}` if `hidden` > 0, `norm.{weight,bias}` with a `norm` (the epsilon of a layer norm
    behind f), `output.weight`, and `output.bias` with `bias`. Dropout is before
    the output layer and active in training mode only. Matrices start Xavier-uniform, biases zero. `shared` is another
    module's hidden layer: it is used instead of an own one.
    """

    def __init__(
        self,
        inputs: int,
        outputs: int,
        *,
        hidden: int = 0,
        bias: bool = True,
        activation: Activation = "tanh",
        norm: float | None = None,
        shared: Dense | None = None,
        dropout: float = 0.0,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        self.dropout, self.activation = dropout, ACTIVATIONS[activation]
        self.hidden = Dense(inputs, hidden) if hidden and shared is None else None
        self._shared = [shared]  # in a list, so that it is not registered here
        self.norm = nn.LayerNorm(hidden, eps=norm) if norm is not None else None
        self.output = Dense(hidden or inputs, outputs, bias=bias)
        xavier(self, generator)

    def forward(self, features: Tensor) -> Tensor:
        """(..., inputs) to (..., outputs)."""
        hidden = self.hidden or self._shared[0]
        if hidden is not None:
            features = self.activation(hidden(features))
        if self.norm is not None:
            features = self.norm(features)
        out: Tensor = self.output(dropped(features, self.dropout, self.training))
        return out
