"""Every strategy's path, by one function: the only place that tells strategies apart."""

from __future__ import annotations

from collections.abc import Sequence

from polyhead.errors import ConfigError
from polyhead.plan import Codec, Path
from polyhead.project.strategies import Branch, InLayer, OnTop, Pooled, Prompted, Strategy
from polyhead.sharing.branch import branch_path
from polyhead.sharing.in_layer import in_layer_path
from polyhead.sharing.on_top import on_top_path
from polyhead.sharing.pooled import pooled_path
from polyhead.sharing.prompted import prompted_path
from polyhead.store.codecs import EXACT
from polyhead.tasks.task import Task, owner_of
from polyhead.trunk.shape import Architecture

LIVE = Codec(name=EXACT)  # states as the trunk gives them


def path_of(
    task: Task, strategy: Strategy, *, trunk: str, shape: Architecture, group: Sequence[str] = (), codec: Codec = LIVE
) -> Path:
    """The task's path over the trunk of this digest and shape; raises ConfigError where the strategy does not fit.

    `group` holds the owners of its prompt group in order (`prompted.prompt_groups`), by default its own alone;
    `codec`, of a pooled path, carries its constants. A branch has its depth given here, never searched.
    """
    match strategy:
        case Pooled():
            return pooled_path(task, strategy, trunk=trunk, shape=shape, codec=codec)
        case Branch():
            layers = strategy.layers
            if layers is None:
                raise ConfigError(f"task '{task.name}': the depth of a branch must be decided before it has a path")
            tap = shape.layers - layers if strategy.tap is None else strategy.tap
            return branch_path(task, strategy, trunk=trunk, shape=shape, tap=tap, layers=layers)
        case Prompted():
            owners = tuple(group) or (owner_of(task),)
            return prompted_path(task, strategy, trunk=trunk, shape=shape, group=owners)
        case InLayer():
            return in_layer_path(task, strategy, trunk=trunk, shape=shape)
        case OnTop():
            return on_top_path(task, strategy, trunk=trunk, shape=shape)
