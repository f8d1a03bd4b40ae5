"""A trunk of its own for each task, all of it fine-tuned, with a small fixed search."""

from __future__ import annotations

import itertools
import math
from typing import Literal

from polyhead.config import Value
from polyhead.errors import ConfigError
from polyhead.project.recipes.joint import Joint, Smoothing


class Candidate(Value):
    """What one fine-tuning of a search takes; `dropout` is that inside the layers and that around the head."""

    learning_rate: float = 1e-4
    epsilon: float = 1e-8  # Adam's
    dropout: float = 0.1

    def __post_init__(self) -> None:
        for name in ("learning_rate", "epsilon"):
            value = getattr(self, name)
            if not (value > 0 and math.isfinite(value)):
                raise ConfigError(f"search: {name} must be positive", got=value, allowed="a number above 0")
        if not 0 <= self.dropout < 1:
            raise ConfigError("search: dropout is a share", got=self.dropout, allowed="0 to below 1")


class Search(Value):
    """Every combination is tried, in this order; the paper names the three numbers and not their values."""

    learning_rates: tuple[float, ...] = (5e-5, 1e-4, 2e-4)
    epsilons: tuple[float, ...] = (1e-8, 1e-6)
    dropouts: tuple[float, ...] = (0.0, 0.1)

    def __post_init__(self) -> None:
        if not self.candidates:
            raise ConfigError(
                "a search needs a candidate",
                got="none",
                allowed="at least one value of each number",
                do="fill the lists of [recipe.search], or leave them out",
            )

    @property
    def candidates(self) -> tuple[Candidate, ...]:
        """All of them."""
        grid = itertools.product(self.learning_rates, self.epsilons, self.dropouts)
        return tuple(Candidate(learning_rate=r, epsilon=e, dropout=d) for r, e, d in grid)


class FineTune(Value, tag="fine_tune", tag_field="kind"):
    """Each task alone fine-tunes the whole trunk, once for every candidate of a small fixed search.

    The second stage of Aghajanyan et al. 2021: the trunk is a pre-trained or a pre-finetuned one. The candidate with
    the best validation score is kept (ties: the first), and each becomes a bundle of its own, named after its task, in
    the project's folder of bundles. With `head = "kept"` a task starts from the part that the task of its name has in
    the bundle whose trunk this is, and head and trunk learn at once.
    """

    search: Search = Search()
    head: Literal["fresh", "kept"] = "fresh"
    head_rate: float = 1.0  # learning rate of the part over that of the trunk
    head_epochs: int = 0  # before: a fresh part learns alone over the frozen trunk
    head_learning_rate: float = 1e-3  # of those epochs
    tokens: int | None = None  # of a batch at most, padding included; None: `batch` alone bounds it
    smoothing: Smoothing | None = None
    validation_rows: int | None = None  # read after every epoch; None: all
    checkpointing: bool = False  # layers are computed again in the backward pass: less memory, a third more time

    def __post_init__(self) -> None:
        if self.head == "kept" and self.head_epochs:
            raise ConfigError(
                "recipe.head_epochs is for fresh parts; a kept one has its start",
                got=self.head_epochs,
                do="leave head_epochs out, or set head = 'fresh'",
            )
        _ = self.joint  # checks the other numbers

    @property
    def joint(self) -> Joint:
        """The recipe of one candidate: one task, heads of their own."""
        return Joint(
            families=(),
            micro_batches=1,
            head_rate=self.head_rate,
            head_epochs=self.head_epochs,
            head_learning_rate=self.head_learning_rate,
            tokens=self.tokens,
            smoothing=self.smoothing,
            validation_rows=self.validation_rows,
            checkpointing=self.checkpointing,
        )
