"""Heads: features to the outputs of a task's kind."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn
from torch.nn import functional

from polyhead.nn.layer import Dense
from polyhead.nn.poolers import xavier
from polyhead.plan import Activation

ACTIVATIONS: Mapping[Activation, Callable[[Tensor], Tensor]] = {
    "tanh": torch.tanh,
    "relu": functional.relu,
    "gelu": functional.gelu,
}


class Head(nn.Module):
    """`y = U f(W z + b) + u` with f = tanh (Du et al. 2020), relu or the exact gelu; `y = U z + u` with `hidden` 0.

    Arrays: `hidden.{weight,bias}` when `hidden` > 0, `output.weight`, and `output.bias` with `bias`. Dropout
    stands before the output layer and acts in training mode only. Matrices start Xavier-uniform, biases zero.
    `shared` is a hidden layer that another module has: it is used, and no array of this one.
    """

    def __init__(
        self,
        inputs: int,
        outputs: int,
        *,
        hidden: int = 0,
        bias: bool = True,
        activation: Activation = "tanh",
        shared: Dense | None = None,
        dropout: float = 0.0,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        self.dropout, self.activation = dropout, ACTIVATIONS[activation]
        self.hidden = Dense(inputs, hidden) if hidden and shared is None else None
        self._shared = [shared]  # in a list, so that it is not registered here
        self.output = Dense(hidden or inputs, outputs, bias=bias)
        xavier(self, generator)

    def forward(self, features: Tensor) -> Tensor:
        """(..., inputs) to (..., outputs)."""
        hidden = self.hidden or self._shared[0]
        if hidden is not None:
            features = self.activation(hidden(features))
        out: Tensor = self.output(functional.dropout(features, self.dropout, self.training))
        return out
