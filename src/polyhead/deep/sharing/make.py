"""Construction of modules from paths: the part at the end of each, and the families that several read."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import torch
from torch import nn

from polyhead.deep.nn.layer import Dense
from polyhead.deep.sharing.part import BranchPart, Family, OwnedPart
from polyhead.encoder.data import TrunkData
from polyhead.encoder.shape import Architecture
from polyhead.errors import ConfigError
from polyhead.plan import TRUNK, Delta, Path, cost, owners_of
from polyhead.project.strategies.base import DeltaStart, Strategy
from polyhead.project.strategies.branch import private_layers
from polyhead.project.strategies.generating import Generating


def make_part(
    path: Path,
    shape: Architecture,
    *,
    strategy: Strategy | None = None,
    families: Mapping[str, Family] | None = None,
    dropouts: tuple[float, float] = (0.0, 0.0),
    layer_dropout: float = 0.0,
    generator: torch.Generator | None = None,
) -> OwnedPart:
    """The module with the arrays of a path's own part; `families` (`make_families`) have the other owners' arrays.

    `strategy` determines initial values and dropout of deltas and layers; `dropouts` are before the head and before its
    output layer, `layer_dropout`
    in layers for which the strategy sets none. Without a `generator` prompts, deltas and layers are zeros to be filled.
    """
    private, owner = private_layers(path), path.head.part
    in_trunk = bool(private) and private.stop <= shape.layers
    kind = BranchPart if in_trunk else OwnedPart
    own_dropout = strategy.layer_dropout if strategy is not None else None
    return kind(
        path,
        shape,
        families=families,
        starts=delta_starts({owner: path}, {owner: strategy} if strategy else {}),
        norm_init=strategy.norm_init if strategy is not None else "one",
        dropouts=dropouts,
        layer_dropout=layer_dropout if own_dropout is None else own_dropout,
        generator=generator,
    )


def start_pooler(module: OwnedPart | Family, path: Path, data: TrunkData, strategy: Strategy | None) -> None:
    """Lets a tanh layer over the first position start as the checkpoint's own pooler, unless the strategy draws it."""
    drawn = getattr(strategy, "pooler_init", "random") != "checkpoint"
    if drawn or data.pooler is None or path.pool.positions != "first" or path.head.activation != "tanh":
        return
    hidden = module.head.hidden if isinstance(module, OwnedPart) else module.hidden
    if isinstance(hidden, Dense) and tuple(hidden.weight.shape) == data.pooler.weight.shape:
        with torch.no_grad():
            hidden.weight.copy_(torch.from_numpy(data.pooler.weight))
            hidden.bias.copy_(torch.from_numpy(data.pooler.bias))


def start_decoder(module: OwnedPart, data: TrunkData, strategy: Strategy | None) -> None:
    """Lets a decoder start as the checkpoint's own, unless the strategy draws it."""
    if module.decoder is None or data.decoder is None or not isinstance(strategy, Generating) or not strategy.start:
        return
    arrays = data.decoder().arrays
    module.decoder.load_state_dict(
        {name.removeprefix("decoder."): torch.tensor(np.asarray(array)) for name, array in arrays.items()}
    )


def make_families(
    paths: Mapping[str, Path],
    shape: Architecture,
    *,
    strategies: Mapping[str, Strategy] | None = None,
    generator: Callable[[str], torch.Generator] | None = None,
) -> dict[str, Family]:
    """The arrays that tasks' paths read from other owners, by owner: families, and tasks that are not here.

    `strategies`, by task like the paths, determine the initial values of shared deltas; `generator` gives each owner
    its own one. Raises ConfigError if two paths want shared arrays in two shapes, or with two initializations.
    """
    check_shapes(paths, shape)
    starts = delta_starts(paths, strategies or {})
    owned = {TRUNK, *(path.head.part for path in paths.values())}
    owners = dict.fromkeys(name for path in paths.values() for name in owners_of(path) if name not in owned)
    return {
        owner: Family(
            owner,
            list(paths.values()),
            shape,
            starts=starts,
            generator=generator(owner) if generator is not None else None,
        )
        for owner in owners
    }


def delta_starts(paths: Mapping[str, Path], strategies: Mapping[str, Strategy]) -> dict[Delta, DeltaStart]:
    """The initial values of each delta on the paths; paths and strategies by task.

    Raises ConfigError if equal deltas, which are made together, or tied arrays have two initializations or dropouts.
    """
    starts: dict[Delta, DeltaStart] = {}
    for task, path in paths.items():
        strategy = strategies.get(task)
        for delta, start in strategy.delta_starts(path) if strategy is not None else ():
            for other, before in starts.items():
                for name in _in_common(delta, other):
                    first, second = getattr(before, name), getattr(start, name)
                    if first != second:
                        raise ConfigError(
                            "equal adapters, and those with arrays in common, start and learn in one way",
                            got=f"{name} = {first!r} and {second!r}, '{delta.kind}' of {delta.ends or delta.part}",
                            do=f"give both one {name}, or arrays of their own: share = 'nothing'",
                        )
            starts.setdefault(delta, start)
    return starts


def check_shapes(paths: Mapping[str, Path], shape: Architecture) -> None:
    """Raises ConfigError if two tasks would read an array of one owner and name in two shapes."""
    shapes: dict[tuple[str, str], tuple[str, tuple[int, ...]]] = {}
    for task, path in paths.items():
        for array in cost.arrays_of_path(path, shape):
            other, before = shapes.setdefault((array.owner, array.name), (task, array.shape))
            if array.shape != before:
                raise ConfigError(
                    f"tasks '{other}' and '{task}' share arrays, '{array.owner}', and give them two shapes",
                    got=f"{array.name} of shape {before} and {array.shape}",
                    allowed="one shape for all tasks that share them",
                    do="declare in both what they share with the same numbers (size, heads, width, layers), or give "
                    "one task arrays of its own",
                )


def arrays_of_part(part: nn.Module) -> dict[str, np.ndarray]:
    """Copies of a part's or family's arrays, float32, by name."""
    return {name: value.detach().float().cpu().numpy().copy() for name, value in part.state_dict().items()}


def _in_common(delta: Delta, other: Delta) -> tuple[str, ...]:
    """The settings in which adapters of two deltas must agree: all, or the initialization of shared matrices."""
    if delta == other:
        return ("init", "norm_init", "dropout")
    same = delta.tied == other.tied and (delta.ends or delta.part) == (other.ends or other.part)
    return ("init",) if same and (delta.tied or delta.ends is not None) else ()
