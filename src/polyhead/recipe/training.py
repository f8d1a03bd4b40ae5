"""The numbers of one training: how often it reads, in which steps, when it stops."""

from __future__ import annotations

import math
from typing import Literal

from polyhead.config import Value
from polyhead.errors import ConfigError


class Training(Value):
    """How parts are trained on frozen features: AdamW, linear warm-up and decay, early stopping on validation."""

    seed: int = 1
    epochs: int = 30
    patience: int = 6  # epochs without a better validation score before stopping
    batch: int = 32
    learning_rate: float = 3e-4  # best of 2e-4 to 1e-3 on two validation splits (docs/log.md)
    weight_decay: float = 0.01
    warmup: float = 0.06  # share of all steps
    dropout: float = 0.1  # on the pooled vector and before the output layer; as heads of RoBERTa have it
    class_weights: bool = False  # balanced: n / (labels * n of the label)
    clip: float = 1.0  # global norm of the gradients
    precision: Literal["auto", "float32", "bfloat16"] = (
        "auto"  # of the frozen trunk; auto: bfloat16 where native
    )

    def __post_init__(self) -> None:
        for name in ("epochs", "patience", "batch", "learning_rate", "clip"):
            value = getattr(self, name)
            if not (value > 0 and math.isfinite(value)):
                raise ConfigError(f"training.{name} must be positive", got=value, allowed="a number above 0")
        if not (self.weight_decay >= 0 and math.isfinite(self.weight_decay)):
            raise ConfigError("training.weight_decay is wrong", got=self.weight_decay, allowed="0 or more")
        for name in ("dropout", "warmup"):
            if not 0 <= getattr(self, name) < 1:
                raise ConfigError(
                    f"training.{name} is a share", got=getattr(self, name), allowed="0 to below 1"
                )
