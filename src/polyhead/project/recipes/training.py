"""The numbers of one training: how long it may take, in which steps, when it stops."""

from __future__ import annotations

import math
from typing import Literal

from polyhead.config import Value
from polyhead.errors import ConfigError

EPOCHS, PATIENCE = 30, 6  # passes over the rows, where nothing is said
LEAST_UPDATES = 1500  # and at least so many updates: few rows make short passes
PATIENT = 8  # a run of at least so many updates is patient for an eighth of them
ROUND = 25  # updates between two validations, at least, where updates are counted


class Schedule(Value):
    """How long a training run is. A round is what lies between two validations: one or several passes over the rows."""

    passes: int  # in a round
    rounds: int  # at most
    patience: int  # rounds without a better validation score before stopping


class Training(Value):
    """How parts are trained on frozen features: AdamW, linear warm-up and decay, early stopping on validation.

    Where `epochs` is not given, updates count: a run takes 30 passes over the rows, and on few rows as many more as
    1,500 updates need, unless validation says stop. The same holds for `least_updates` that are given.
    """

    seed: int = 1
    epochs: int | None = None  # passes over the rows, at most; None: 30
    patience: int | None = None  # epochs without a better validation score before stopping; None: 6
    least_updates: int | None = None  # None: 1,500 where `epochs` is not given, else 0
    batch: int = 32
    learning_rate: float = 3e-4  # best of 2e-4 to 1e-3 on two validation splits (docs/project/log.md)
    weight_decay: float = 0.01
    warmup: float = 0.06  # share of all steps
    dropout: float = 0.1  # on the pooled vector and before the output layer; as heads of RoBERTa have it
    class_weights: bool = False  # balanced: n / (labels * n of the label)
    clip: float = 1.0  # global norm of the gradients
    precision: Literal["auto", "float32", "bfloat16"] = "auto"  # of the frozen trunk; auto: bfloat16 where native

    def __post_init__(self) -> None:
        for name in ("epochs", "patience", "batch", "learning_rate", "clip"):
            value = getattr(self, name)
            if value is not None and not (value > 0 and math.isfinite(value)):
                raise ConfigError(f"training.{name} must be positive", got=value, allowed="a number above 0")
        if self.least_updates is not None and self.least_updates < 0:
            raise ConfigError("training.least_updates is wrong", got=self.least_updates, allowed="0 or more")
        if not (self.weight_decay >= 0 and math.isfinite(self.weight_decay)):
            raise ConfigError("training.weight_decay is wrong", got=self.weight_decay, allowed="0 or more")
        for name in ("dropout", "warmup"):
            if not 0 <= getattr(self, name) < 1:
                raise ConfigError(f"training.{name} is a share", got=getattr(self, name), allowed="0 to below 1")

    @property
    def most_epochs(self) -> int:
        """Passes over the rows at most, where these alone count."""
        return EPOCHS if self.epochs is None else self.epochs

    def schedule(self, steps: int, *, passes: int | None = None) -> Schedule:
        """The length of a run whose pass over the rows takes `steps` updates.

        `passes` are those of a round; None: as many as it takes to `ROUND` updates, where updates count.
        """
        least = self.least_updates
        if least is None:
            least = LEAST_UPDATES if self.epochs is None else 0
        if passes is None:
            passes = max(1, math.ceil(min(least, ROUND) / max(steps, 1)))
        updates = passes * max(steps, 1)
        patience = PATIENCE if self.patience is None else self.patience
        return Schedule(
            passes=passes,
            rounds=max(math.ceil(self.most_epochs / passes), math.ceil(least / updates)),
            patience=max(math.ceil(patience / passes), math.ceil(least / PATIENT / updates)),
        )
