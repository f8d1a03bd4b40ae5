"""Strategy `on_top` (Stickland and Murray 2019): a task's own layers above the whole trunk."""

from __future__ import annotations

import math
from typing import Literal

from polyhead.encoder.shape import Architecture
from polyhead.errors import ConfigError
from polyhead.plan import Codec, Embed, Layers, Path, shared_layers
from polyhead.project.numbers import check_least, check_shares
from polyhead.project.strategies.base import LIVE, LiveStrategy, Owners, head_of, last_state, narrowed
from polyhead.tasks.task import Task, owner_of
from polyhead.values import Value, check_unused


class OnTop(LiveStrategy, Value, tag="on_top", tag_field="kind"):
    """Strategy `on_top` (Stickland and Murray 2019): a task's own layers above the whole trunk.

    `attention`: projected attention, narrow layers between an encoder and a decoder. `feed_forward`: the same with only
    the feed-forward half. `layer`: whole layers of the trunk's shape.
    """

    form: Literal["attention", "feed_forward", "layer"] = "attention"
    layers: int | None = None  # None: 6 of attention, else 1
    width: int | None = None  # of narrow layers; None: 204 of 768, scaled to the trunk's width
    heads: int = 12
    feed_forward: int | None = None  # of that form; None: as many parameters as attention: 408, or twice 252, for 204
    hidden_layers: int = 1  # of that form
    residual: bool = True  # False: no residual and no norm
    positions: Literal["first", "mean", "attention"] = "first"
    hidden: int | None = None  # width of the tanh pooler, 0 for none; None: the trunk's width
    pooler_init: Literal["checkpoint", "random"] = "checkpoint"  # of a pooler over the first position, where it has one
    pooler: Literal["private", "shared"] = "private"
    norm_init: Literal["one", "legacy"] = "one"  # gains N(0, 0.02), as by mistake in the released code
    dropout: float = 0.1  # inside the layers, in training

    def __post_init__(self) -> None:
        check_least(
            "strategy.", self, {"layers": 1, "width": 1, "heads": 1, "feed_forward": 1, "hidden_layers": 1, "hidden": 0}
        )
        check_shares("strategy.", self, "dropout")
        if self.hidden == 0 and self.pooler == "shared":
            raise ConfigError("strategy.pooler 'shared' needs a hidden layer", got="hidden = 0")
        unused = dict[str, str]()
        if self.form == "layer":
            unused["width"] = "whole layers are as wide as the trunk"
        if self.form != "attention":
            unused["heads"] = f"layers of form '{self.form}' have none of their own"
        if self.form != "feed_forward":
            unused |= dict.fromkeys(
                ("feed_forward", "hidden_layers"), f"it is of form 'feed_forward', not '{self.form}'"
            )
        if not self.residual:
            unused["norm_init"] = "layers without residual have no norm"
        check_unused("strategy.", self, unused)
        if self.form == "attention" and self.width is not None and self.width % self.heads:
            raise ConfigError(
                "strategy.width: narrow layers are as wide as a multiple of their heads",
                got=self.width,
                allowed=f"a multiple of heads = {self.heads}",
                do="change width or heads",
            )

    def path(self, task: Task, *, trunk: str, shape: Architecture, group: Owners = (), codec: Codec = LIVE) -> Path:
        """`Embed, Layers(0, N, trunk), Layers(N, N + layers, part), Pool, Head`.

        Narrow layers are between the part's `enter` and `leave`; whole ones have the trunk's shape.
        """
        return Path(
            nodes=(
                Embed(trunk=trunk),
                *shared_layers(shape.layers),
                _private(task, self, shape),
                last_state(task, shape, self.positions),
                head_of(task, shape, self.hidden, shared=self.pooler == "shared"),
            )
        )

    def bonds(self) -> frozenset[str]:
        """A shared pooler."""
        return frozenset({"pooler"} if self.pooler == "shared" else ())

    @property
    def layer_dropout(self) -> float | None:
        """Dropout inside its layers in training."""
        return self.dropout


def _private(task: Task, strategy: OnTop, shape: Architecture) -> Layers:
    start, owner = shape.layers, owner_of(task)
    narrow = strategy.form != "layer"
    stop = start + (strategy.layers or (6 if strategy.form == "attention" else 1))
    if not narrow:
        return Layers(start=start, stop=stop, weights=owner, residual=strategy.residual)
    attends = strategy.form == "attention"
    heads = strategy.heads if attends else 1
    width = strategy.width or narrowed(shape, multiple_of=heads)
    return Layers(
        start=start,
        stop=stop,
        weights=owner,
        width=width,
        feed_forward=0 if attends else strategy.feed_forward or _inner(width, strategy.hidden_layers),
        heads=heads,
        enter=True,
        leave=True,
        attention=attends,
        residual=strategy.residual,
        hidden_layers=strategy.hidden_layers,
    )


def _inner(width: int, hidden_layers: int) -> int:
    """The width h of n hidden layers with `4 width^2` parameters, as attention has: `2 width h + (n - 1) h^2`."""
    more = hidden_layers - 1
    return 2 * width if not more else round(width * (math.sqrt(1 + 4 * more) - 1) / more)
