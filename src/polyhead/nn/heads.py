"""Heads: features to the outputs of a task's kind."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from polyhead.nn.layer import Dense
from polyhead.nn.poolers import xavier


class Head(nn.Module):
    """`y = U tanh(W z + b) + u`, or `y = U z + u` with `hidden` 0 (Du et al. 2020).

    Arrays: `hidden.{weight,bias}` when `hidden` > 0, `output.weight`, and `output.bias` with `bias`. Dropout
    stands before the output layer and acts in training mode only. Matrices start Xavier-uniform, biases zero.
    """

    def __init__(
        self,
        inputs: int,
        outputs: int,
        *,
        hidden: int = 0,
        bias: bool = True,
        dropout: float = 0.0,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        self.dropout = dropout
        self.hidden = Dense(inputs, hidden) if hidden else None
        self.output = Dense(hidden or inputs, outputs, bias=bias)
        xavier(self, generator)

    def forward(self, features: Tensor) -> Tensor:
        """(..., inputs) to (..., outputs)."""
        if self.hidden is not None:
            features = torch.tanh(self.hidden(features))
        out: Tensor = self.output(functional.dropout(features, self.dropout, self.training))
        return out
