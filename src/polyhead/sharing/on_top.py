"""Strategy `on_top` (Stickland and Murray 2019): layers of the task's own above the whole trunk."""

from __future__ import annotations

import math

from polyhead.plan import Embed, Layers, Path
from polyhead.project.strategies import OnTop
from polyhead.sharing.ends import head_of, last_state, narrowed
from polyhead.tasks.task import Task, owner_of
from polyhead.trunk.shape import Architecture


def on_top_path(task: Task, strategy: OnTop, *, trunk: str, shape: Architecture) -> Path:
    """`Embed, Layers(0, N, trunk), Layers(N, N + layers, part), Pool, Head`; `trunk` is the trunk's digest.

    Narrow layers stand between the part's `enter` and `leave`; whole ones have the trunk's shape.
    """
    return Path(
        nodes=(
            Embed(trunk=trunk),
            Layers(start=0, stop=shape.layers),
            _own(task, strategy, shape),
            last_state(task, shape, strategy.positions),
            head_of(task, shape, strategy.hidden, shared=strategy.pooler == "shared"),
        )
    )


def _own(task: Task, strategy: OnTop, shape: Architecture) -> Layers:
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
    """The width h of n hidden layers that weigh `4 width^2`, as attention does: `2 width h + (n - 1) h^2`."""
    more = hidden_layers - 1
    return 2 * width if not more else round(width * (math.sqrt(1 + 4 * more) - 1) / more)
